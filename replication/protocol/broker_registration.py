"""What a broker says of itself when it registers, and with each heartbeat. [BC-01]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import TopicIdPartition


class LogIdentity(NamedTuple):
    """A log table, one version of it, and the unique id of the commit that made it; "" where that is not known."""

    table_id: str
    version: int
    commit: str


@dataclass(frozen=True)
class BrokerRegistration:
    """Where a broker keeps its log, and the counter by which others see that it lives.

    `log_epoch`: the broker epoch under which it registered with this log for the first time. It only goes up, each time
    the log was lost: a member of an ISR that joined before that has not what it had then. [LI-04]
    """

    broker_id: int
    root: str
    rack: str | None
    broker_epoch: int
    heartbeat: int
    metadata_version: int
    shutting_down: bool
    storage_error: str | None
    log_table_id: str
    log_version: int
    log_commit: str = ""
    log_epoch: int = 0
    offline_partitions: tuple[str, ...] = ()
    leader_replication_quota: int | None = None
    leader_replication_rate: int | None = None
    follower_replication_quota: int | None = None
    follower_replication_rate: int | None = None
    divergences: int | None = None

    @property
    def log(self) -> LogIdentity:
        """The log that it has registered, as of its last heartbeat."""
        return LogIdentity(self.log_table_id, self.log_version, self.log_commit)

    @property
    def offline(self) -> frozenset[TopicIdPartition]:
        """The partitions that it has a broken file of. [OL-01]"""
        parts = (text.rpartition("/") for text in self.offline_partitions)
        return frozenset(TopicIdPartition(topic_id, int(number)) for topic_id, _, number in parts)
