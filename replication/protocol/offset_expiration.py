"""When the committed offsets of a group expire: once nobody has used them for `offsets.retention.minutes`.

The active controller checks each offset from time to time, and adds up the time in which nobody used it, by its own
monotonic clock. The sum is in the offset's row, so the next controller goes on from there. Time in which no controller
was at work does not count. So an offset may stay longer than its retention, and no clock removes it earlier.

Kafka: `GroupMetadata.removeExpiredOffsets`, `OffsetExpirationConditionImpl`. KIP-211. [AP-04]
"""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.replication.protocol.consumer_group import ConsumerGroup, has_members


@dataclass(frozen=True)
class SeenGroup:
    """A group as a controller has seen it. `fence`: as it was before the controller read the members. So a member that
    has taken partitions since then has moved it. A group that never had a member has an empty `group`."""

    fence: int
    group: ConsumerGroup

    def leaves_unused(self, topic: str, fence: int) -> bool:
        """Whether no member reads the topic, so that the group's offsets of it may expire. `fence`: the present fence
        of the group. `GroupTable.expire` removes the offsets."""
        if fence != self.fence:
            return False
        return topic not in self.group.topics if self.group.members else not has_members(fence)


def idle_ms_after(idle_ms: int | None, passed_ms: int | None, is_unused: bool) -> int | None:
    """The time that an offset was idle, after a check of it. None: it was in use since the last check.

    `passed_ms`: the time since the observer's last check, which found the same row; None if the row has changed since.
    An offset that was in use is idle from this check on, as its last use may be only just over.
    """
    if not is_unused:
        return None
    return 0 if idle_ms is None else idle_ms + (passed_ms or 0)
