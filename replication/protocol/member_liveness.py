"""Which members of a group are dead, and how long a member may trust that it is not taken for dead.

A member moves its heartbeat. An observer takes it for dead once the heartbeat has not moved for the member's session
time-out, on the observer's own monotonic clock. The member trusts itself for a heartbeat interval less, counted from
the begin of its last successful heartbeat, which is before anybody can have seen it. So it stops before others go on,
and no clocks are compared. Kafka: `Heartbeat`, `GroupCoordinator.completeAndScheduleNextHeartbeatExpiration`. [AP-04]
"""

from __future__ import annotations

from collections.abc import Callable

from lakelog.replication.protocol.consumer_group import ConsumerGroup


class MemberLiveness:
    """The heartbeats that an observer has seen. `clock`: monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sightings: dict[str, tuple[int, float]] = {}

    def dead(self, group: ConsumerGroup) -> set[str]:
        """Records the heartbeats; returns the ids of the members that are dead. None is when it is first seen."""
        now = self._clock()
        known = self._sightings
        self._sightings = {
            m.member_id: known[m.member_id] if known.get(m.member_id, (-1,))[0] == m.heartbeat else (m.heartbeat, now)
            for m in group.members
        }
        return {m.member_id for m in group.members if now - self._since(m.member_id) >= m.session_timeout_ms / 1000}

    def _since(self, member_id: str) -> float:
        return self._sightings[member_id][1]


def is_trusted(now: float, beat_at: float, session_timeout_ms: int, heartbeat_interval_ms: int) -> bool:
    """Whether a member may still return records: `beat_at` is when its last successful heartbeat began, in seconds."""
    return now < beat_at + (session_timeout_ms - heartbeat_interval_ms) / 1000
