"""A partition's leader: the registration in the metadata, with the leader's own row."""

from __future__ import annotations

from typing import NamedTuple

from lakelog.replication.errors import LakelogException, LeaderNotAvailableException
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica import LEADER_ROLE, Replica


class Leadership(NamedTuple):
    """A partition's registration, and its row at the registered leader, or the error of reading that row."""

    registration: PartitionRegistration
    row: Replica | None = None
    error: LakelogException | None = None

    @property
    def leader_row(self) -> Replica | None:
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

    def available_row(self) -> Replica:
        """The leader's row. Raises `unavailable`."""
        row, unavailable = self.leader_row, self.unavailable
        if row is None or unavailable:
            raise unavailable or no_leader(self.registration)
        return row


def no_leader(registration: PartitionRegistration) -> LeaderNotAvailableException:
    """The error of a partition without a leader."""
    return LeaderNotAvailableException(f"{registration.name}: no leader; replicas are {registration.replicas}")
