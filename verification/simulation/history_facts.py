"""What a history has shown so far: what was committed, acknowledged and read since each unclean election."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.verification.simulation.simulated_tables import Metadata
from lakelog.verification.simulation.world_state import WorldState

# A partition, and which of its histories: an unclean election begins a new one, which owes nothing to the one before.
Branch = tuple[TopicIdPartition, int]
Leadership = tuple[TopicIdPartition, int]  # a partition and a leader epoch


class Entry(NamedTuple):
    """What a log has at one offset."""

    leader_epoch: int
    value: int


class AcknowledgedBatch(NamedTuple):
    """Records that acks=all has promised, by the word of a leader at `granted` epoch."""

    granted: int
    base_offset: int
    entries: tuple[Entry, ...]


class HistoryFacts:
    """The facts that the invariants are about, and the world that they are of."""

    def __init__(self, world: WorldState) -> None:
        self.world = world
        self.values: dict[tuple[TopicIdPartition, int, int], int] = {}
        self.previous_epochs: dict[tuple[TopicIdPartition, int, int], int] = {}
        self.openers: dict[tuple[TopicIdPartition, int], int] = {}
        self.unclean: defaultdict[TopicIdPartition, list[int]] = defaultdict(list)
        self.committed: defaultdict[Branch, list[Entry]] = defaultdict(list)
        self.committed_values: defaultdict[Branch, set[int]] = defaultdict(set)
        self.acknowledged: defaultdict[Branch, list[AcknowledgedBatch]] = defaultdict(list)
        self.read: defaultdict[Branch, list[Entry]] = defaultdict(list)
        self.high_watermarks: dict[Leadership, int] = {}
        self.read_to: dict[Leadership, int] = {}
        self.deleted: defaultdict[Branch, int] = defaultdict(int)

    def branch(self, partition: TopicIdPartition, leader_epoch: int) -> Branch:
        """The history that a leader epoch belongs to."""
        return partition, bisect_right(self.unclean[partition], leader_epoch)

    def before(self, partition: TopicIdPartition, leader_epoch: int, known: Mapping[Leadership, int]) -> int:
        """How far earlier leaderships of the same history had come: the most that `known` has of any of them."""
        branch = self.branch(partition, leader_epoch)
        earlier = (
            end for (p, e), end in known.items() if p == partition and e < leader_epoch and self.branch(p, e) == branch
        )
        return max(earlier, default=0)

    def later_leaders(self, partition: TopicIdPartition, leader_epoch: int) -> Iterator[tuple[int, PartitionLog]]:
        """The logs that are open at a later epoch of the same history, and their brokers."""
        for broker in self.world.logs:
            log = self.log(broker, partition)
            is_later = log.role.is_leader and log.role.leader_epoch > leader_epoch
            if is_later and self.branch(partition, log.role.leader_epoch) == self.branch(partition, leader_epoch):
                yield broker, log

    def registration(self, partition: TopicIdPartition) -> PartitionRegistration | None:
        """What the metadata has now."""
        found: Metadata = self.world.metadata.at(self.world.metadata.newest)
        return found.partitions.get(partition)

    def log(self, broker: int, partition: TopicIdPartition) -> PartitionLog:
        """What a broker's log has now."""
        table = self.world.logs[broker]
        return table.at(table.newest).partition(partition)

    def entries(self, log: PartitionLog, start: int, stop: int) -> Iterator[Entry]:
        """What a log has from offset `start` to before `stop`, as far as it goes."""
        batches = log.batches
        first = max(0, bisect_right(batches, start, key=lambda batch: batch.base_offset) - 1)
        for index in range(first, len(batches)):
            base, header, segment = batches[index]
            if base >= stop:
                return
            values = self.world.records[segment]
            for offset in range(max(start, base), min(stop, base + len(values))):
                yield Entry(header.leader_epoch, values[offset - base])

    def lacks(
        self, log: PartitionLog, branch: Branch, base_offset: int, wanted: list[Entry] | tuple[Entry, ...]
    ) -> str | None:
        """Where a log does not have the entries; None if it has all of them, but for those that were deleted."""
        first = min(max(base_offset, self.deleted[branch]), base_offset + len(wanted))
        wanted, base_offset = wanted[first - base_offset :], first
        found = list(self.entries(log, base_offset, base_offset + len(wanted)))
        for index, entry in enumerate(wanted):
            other = found[index] if index < len(found) else None
            if other != entry:
                return f"offset {base_offset + index}: {_words(entry)} is wanted, {_words(other)} found"
        return None

    def begin(self, log: PartitionLog, branch: Branch) -> None:
        """A history that an unclean election has begun may begin with a log that had lost its beginning before."""
        committed = self.committed[branch]
        if len(committed) < log.log_start_offset:
            self.deleted[branch] = max(self.deleted[branch], log.log_start_offset)
            committed += [Entry(-1, -1)] * (log.log_start_offset - len(committed))

    def commit(self, log: PartitionLog, branch: Branch, high_watermark: int) -> list[Entry]:
        """What a HW newly commits is remembered, and answered."""
        committed = self.committed[branch]
        new = list(self.entries(log, len(committed), high_watermark))
        committed += new
        return new


def _words(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"{entry.value} of epoch {entry.leader_epoch}"
