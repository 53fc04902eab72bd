"""Whether a follower's logs have the history of their leaders', and the word of it where they do not.

Raft: the log matching property. [TR-08]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from replication.errors import KafkaStorageException, LakelogException
from replication.protocol import fetch_state
from replication.protocol.fencing import check_leader_row
from replication.protocol.partition_log import PartitionLog
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.truncation import are_of_the_log, has_other_history, leader_lost_its_end
from replication.server.fetch_states import FetchStates
from replication.storage.filesystem import StorageRoot
from replication.storage.log_snapshot import batch_ends_from
from replication.storage.replica_table import ReplicaTable

logger = logging.getLogger(__name__)

_ERROR = "DIVERGED: the log has other batches than its leader's under the same leader epochs"
_LOST_END = "DIVERGED: the leader's log has lost records of its own epoch; waiting for another leader epoch"

Logs = Mapping[TopicIdPartition, PartitionLog]
Leaders = Mapping[TopicIdPartition, Replica]


class LogMatching:
    """Compares the logs of one fetcher. `source` is the leader's log and `leader_replicas` its rows; `on_diverged`
    counts, `publish` writes the follower's rows."""

    def __init__(
        self, name: str, states: FetchStates, source: StorageRoot, leader_replicas: Callable[[], ReplicaTable],
        on_diverged: Callable[[Collection[TopicIdPartition]], None], publish: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._name = name
        self._states = states
        self._source = source
        self._leader_replicas = leader_replicas
        self._on_diverged = on_diverged
        self._publish = publish

    def compare_rows(self, logs: Logs, leaders: Leaders) -> None:
        """Finds the partitions that are fetched although their leaders' rows have other chains."""
        fetching = self._states.fetchable()
        self.diverged(p for p in fetching if p in leaders and has_other_history(logs[p], leaders[p]))

    def diverged(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Tells of partitions with another history: before anything is truncated their rows count for nothing."""
        found = list(partitions)
        if found:
            logger.error("%s: %s: %s", self._name, ", ".join(f"{p.topic_id}-{p.partition}" for p in found), _ERROR)
            self._states.diverged(found, _ERROR)
            self._on_diverged(found)
            self._publish("diverged")

    def without_lost_ends(
        self, logs: Logs, leaders: Leaders, batches: Mapping[TopicIdPartition, Sequence[LogEnd]]
    ) -> set[TopicIdPartition]:
        """Delays the partitions whose leaders have lost the end of their logs, until there is another leader epoch."""
        found = {p for p, ends in batches.items() if leader_lost_its_end(logs[p], leaders[p], ends)}
        for partition in found:
            logger.error("%s: %s-%d: %s", self._name, *partition, _LOST_END)
            self._states.delay(partition, _LOST_END, fetch_state.NEVER)
        return found

    def leader_batches(
        self, logs: Logs, leaders: Leaders
    ) -> tuple[Mapping[TopicIdPartition, Sequence[LogEnd]], Mapping[TopicIdPartition, LakelogException]]:
        """Where the leaders' batches end, of partitions that are to be truncated and whose epochs do not tell where;
        and the partitions of which that cannot be told. Raises KafkaStorageException.

        A log does not say who leads, nor whether it is the one that its leader's row tells of. So the rows are read
        once more, after the log. [TR-02, TR-08]
        """
        wanted = {
            p: logs[p].first_offset
            for p, state in self._states.truncating().items()
            if p in leaders and (state.diverged or has_other_history(logs[p], leaders[p]))
        }
        if not wanted:
            return {}, {}
        ends, broken = batch_ends_from(self._source, wanted, {p: leaders[p].topic for p in wanted})
        table = self._leader_replicas()
        table.refresh()
        rows = table.replicas
        errors = {p: _doubt(found, leaders[p], rows.get(p), wanted[p]) for p, found in ends.items()}
        failed = {**broken, **{p: error for p, error in errors.items() if error is not None}}
        return {p: found for p, found in ends.items() if p not in failed}, failed


def _doubt(ends: Sequence[LogEnd], before: Replica, now: Replica | None, first: int) -> LakelogException | None:
    """Why a log is not truncated by what was read of its leader's; None if nothing speaks against it."""
    partition = before.topic_id_partition
    error = check_leader_row(now, partition, before.leader_epoch)
    if error is not None or (now is not None and are_of_the_log(ends, before, now, first)):
        return error
    return KafkaStorageException(
        f"{before.topic}-{partition.partition}: not truncated: broker {before.broker_id} has another log than its row "
        f"tells of, which ends at {before.log_end_offset}"
    )
