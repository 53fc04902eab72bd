"""A broker's registration, which it publishes again with each heartbeat. [BC-01]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import TopicIdPartition


class LogIdentity(NamedTuple):
    """A log table, one of its versions, and the unique id of that version's commit ("" if it is not known)."""

    table_id: str
    version: int
    commit: str


@dataclass(frozen=True)
class BrokerRegistration:
    """Where a broker keeps its log, and its heartbeat: a number that changes as long as the broker is alive. Rows that
    differ in the heartbeat alone are equal.

    `log_epoch`: the broker epoch under which it first registered with this log. It rises each time the log is lost. A
    member that joined an ISR before that lacks the records it had then. [LI-04]

    `offline_partitions`: `<topic id>/<partition>` of each replica with a broken file. Quotas and rates are in bytes/s;
    a quota of None is no limit. `divergences`: how often a log differed from its leader's under equal epochs.
    `incarnation_id`: a random id of the process, so that none takes another's row for its own. Kafka:
    `BrokerRegistrationRequest`.
    """

    broker_id: int
    root: str
    rack: str | None
    broker_epoch: int
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
    incarnation_id: str = ""
    heartbeat: int = field(default=0, compare=False)

    @property
    def log(self) -> LogIdentity:
        """The log as of the last heartbeat."""
        return LogIdentity(self.log_table_id, self.log_version, self.log_commit)

    @property
    def offline(self) -> frozenset[TopicIdPartition]:
        """The partitions whose replica on this broker has a broken file. [OL-01]"""
        parts = (text.rpartition("/") for text in self.offline_partitions)
        return frozenset(TopicIdPartition(topic_id, int(number)) for topic_id, _, number in parts)
