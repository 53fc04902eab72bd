"""Who leads a partition: its registration in the metadata, beside the row of the leader itself."""

from __future__ import annotations

from typing import NamedTuple

from lakelog.replication.errors import LakelogException, LeaderNotAvailableException
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica import LEADER_ROLE, Replica


class Leadership(NamedTuple):
    """A partition as the metadata has it, and what the broker that is to lead it says of it, if that can be read."""

    registration: PartitionRegistration
    row: Replica | None = None
    error: LakelogException | None = None

    @property
    def leader_row(self) -> Replica | None:
        """The row, once the broker has taken up the role under the epoch that the metadata has."""
        row = self.row
        leads = row is not None and row.role == LEADER_ROLE and row.leader_epoch == self.registration.leader_epoch
        return row if leads else None

    @property
    def unavailable(self) -> LakelogException | None:
        """Why nobody can be asked for the partition now; None if its leader can."""
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
    """The error of a partition that nobody leads."""
    return LeaderNotAvailableException(f"{registration.name}: no leader; replicas are {registration.replicas}")
