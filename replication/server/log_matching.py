"""Whether a follower's logs have the history of their leaders', and the word of it where they do not.

Raft: the log matching property. [TR-08]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from replication.errors import CorruptRecordException
from replication.protocol import fetch_state
from replication.protocol.partition_log import PartitionLog
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.truncation import has_other_history, leader_lost_its_end
from replication.server.fetch_states import FetchStates
from replication.storage.filesystem import StorageRoot
from replication.storage.log_snapshot import batch_ends_from

logger = logging.getLogger(__name__)

_ERROR = "DIVERGED: the log has other batches than its leader's under the same leader epochs"
_LOST_END = "DIVERGED: the leader's log has lost records of its own epoch; waiting for another leader epoch"

Logs = Mapping[TopicIdPartition, PartitionLog]
Leaders = Mapping[TopicIdPartition, Replica]


class LogMatching:
    """Compares the logs of one fetcher. `source` is the leader's log; `on_diverged` counts, `publish` writes rows."""

    def __init__(
        self, name: str, states: FetchStates, source: StorageRoot,
        on_diverged: Callable[[Collection[TopicIdPartition]], None], publish: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._name = name
        self._states = states
        self._source = source
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
    ) -> tuple[Mapping[TopicIdPartition, Sequence[LogEnd]], Mapping[TopicIdPartition, CorruptRecordException]]:
        """Where the leaders' batches end, of partitions that are to be truncated and whose epochs do not tell where;
        and the partitions of which that cannot be read. Raises KafkaStorageException."""
        wanted = {
            p: logs[p].first_offset
            for p, state in self._states.truncating().items()
            if p in leaders and (state.diverged or has_other_history(logs[p], leaders[p]))
        }
        return batch_ends_from(self._source, wanted, {p: leaders[p].topic for p in wanted})
