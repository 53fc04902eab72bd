"""The row in which a broker publishes the state of one replica, and a partition's leader: its registration with that
row."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from lakelog.replication.errors import LakelogException, LeaderNotAvailableException
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import OfPartition

LEADER_ROLE, FOLLOWER_ROLE = "leader", "follower"


@dataclass(frozen=True, slots=True)
class ReplicaStatus(OfPartition):
    """A replica as its broker last published it. It never claims more than the log had at that time.

    `chain`: the chain at the LEO; replicas with equal chains have equal records. `lag`: number of committed records
    that a follower lacks, None if unknown. `log_version`: the version of the log table that the row describes.
    """

    topic: str
    topic_id: str
    partition: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    role: str
    state: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    error: str | None
    log_version: int
    lag: int | None = None
    chain: str = ""

    def tells_the_same(self, other: ReplicaStatus) -> bool:
        """Whether both rows tell the same of the replica. They may describe different versions of its log table."""
        return self is other or _told(self) == _told(other)

    def may_wait_after(self, published: ReplicaStatus) -> bool:
        """Whether this row of a follower tells no more than a published one, except of the HW."""
        is_follower = self.role == published.role == FOLLOWER_ROLE
        return is_follower and _told_at_once(self) == _told_at_once(published)

    @property
    def log_start_chain(self) -> str:
        """The chain before the log start, where the lineage begins. Without a lineage the log is empty: the chain at
        its end."""
        return self.epochs[0].chain if self.epochs else self.chain


_told = attrgetter(*(field.name for field in fields(ReplicaStatus) if field.name != "log_version"))
_LATER = {"log_version", "high_watermark", "lag"}
_told_at_once = attrgetter(*(field.name for field in fields(ReplicaStatus) if field.name not in _LATER))


class Leadership(NamedTuple):
    """A partition's registration, and its row at the registered leader, or the error of reading that row."""

    registration: PartitionRegistration
    row: ReplicaStatus | None = None
    error: LakelogException | None = None

    @property
    def leader_row(self) -> ReplicaStatus | None:
        """The row, if the broker has taken up leadership under the registered leader epoch; else None."""
        row = self.row
        leads = row is not None and row.role == LEADER_ROLE and row.leader_epoch == self.registration.leader_epoch
        return row if leads else None

    @property
    def unavailable(self) -> LakelogException | None:
        """Why no leader can serve the partition now; None if one can."""
        registration = self.registration
        if self.error or self.leader_row:
            return self.error
        if registration.leader == NO_LEADER:
            return no_leader(registration)
        return LeaderNotAvailableException(
            f"{registration.name}: broker {registration.leader} has not taken up its role "
            f"under leader epoch {registration.leader_epoch}"
        )

    def available_row(self) -> ReplicaStatus:
        """The leader's row. Raises `unavailable`."""
        row, unavailable = self.leader_row, self.unavailable
        if row is None or unavailable:
            raise unavailable or no_leader(self.registration)
        return row


def no_leader(registration: PartitionRegistration) -> LeaderNotAvailableException:
    """The error of a partition without a leader."""
    return LeaderNotAvailableException(f"{registration.name}: no leader; replicas are {registration.replicas}")
