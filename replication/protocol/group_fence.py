"""Who may commit offsets of a group: a member of the current generation, or anybody while the group has no members.

The offsets of all groups lie in another table than the members of one group. So the table of offsets has a fence for
each group, which a member raises before it reads the offsets of the partitions that it has taken. From that commit on
nobody can commit who was expelled before. The fence is one number: twice the generation, and 1 more while the group has
members. Kafka: `GroupCoordinator.validateOffsetCommit`. [AP-04]
"""

from __future__ import annotations

from lakelog.replication.errors import IllegalGenerationException, UnknownMemberIdException

NO_FENCE = 0


def fence_of(generation: int, has_members: bool) -> int:
    """The fence of a generation."""
    return 2 * generation + has_members


def generation_of(fence: int) -> int:
    """The generation that the fence is of."""
    return fence // 2


def has_members(fence: int) -> bool:
    """Whether the group had members when the fence was raised. They may have died since."""
    return fence % 2 == 1


def check_may_commit(fence: int, generation: int | None, group: str) -> None:
    """Refuses a commit of a member that may have been expelled, or of others while the group has members.

    `generation`: the one in which the member has last seen itself in the group; None for a consumer that is no member.
    A member that is still in the group looks at it again, and then commits under its newest generation.

    Raises IllegalGenerationException for a member, UnknownMemberIdException for others.
    """
    if generation is None and has_members(fence):
        raise UnknownMemberIdException(f"group {group} has members: others cannot change its offsets meanwhile")
    if generation is not None and generation < generation_of(fence):
        raise IllegalGenerationException(
            f"group {group}: generation {generation} is over, the group is in generation {generation_of(fence)}"
        )
