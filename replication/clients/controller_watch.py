"""Tells a client why no controller answers: a waiting one before its request times out, a dry run before it asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil

from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import ControllerNotAvailableException, LakelogException
from lakelog.replication.protocol.lease import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_reader import newest_commit
from lakelog.schemas import CONTROLLER

Report = Callable[[str], None]

_LOOKS = 3  # per session time-out, as often as a controller renews its lease; stores charge for each read


class ControllerWatch:
    """Reads the controller's lease at once, and again while the client waits. Reports each reason once."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report
        self._session_timeout = cluster.config.controller_session_timeout_ms / 1000
        self._next_look = float("-inf")
        self._seen: Lease | None = None
        self._seen_at = time.monotonic()
        self._reported: set[str] = set()

    def look(self, deadline: float) -> None:
        """Reports a new reason. It ignores a lease that cannot be read: the request itself raises that error."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._session_timeout / _LOOKS
        with suppress(LakelogException):
            reason = self._reason(self._cluster.lease.read(), now)
            if reason is not None and reason not in self._reported:
                self._reported.add(reason)
                self._report(f"{reason}; waiting up to {ceil(deadline - now)} s, then the request is withdrawn")

    def _reason(self, lease: Lease | None, now: float) -> str | None:
        if lease is None or lease.resigned:
            return _none_is_active(lease)
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if now - self._seen_at < self._session_timeout:
            return None
        return f"controller {lease.controller_id} is dead: it has not renewed its lease for its session time-out"


def check_active(cluster: Cluster, report: Report | None, deadline: float) -> None:
    """Raises ControllerNotAvailableException if no controller is active, for a client that would ask in vain.

    It waits only if the newest commit of the lease looks old. The clocks of the store and of this machine may differ,
    so it looks again half a session time-out later: a controller that has renewed its lease since is active.
    """
    lease, session_timeout_ms = cluster.lease.read(), cluster.config.controller_session_timeout_ms
    reason = _none_is_active(lease)
    if lease is not None and reason is None:
        _, written = newest_commit(cluster.root.child(CONTROLLER.name))
        if abs(time.time() - written) < session_timeout_ms / 1000:
            return
        if report:
            seconds = f"{session_timeout_ms / 2000:g} s"
            report(f"controller {lease.controller_id} has not renewed its lease lately: looking again in {seconds}")
        pause(session_timeout_ms // 2, deadline)
        found = cluster.lease.read()
        reason = f"controller {lease.controller_id} is dead: it does not renew its lease"
        if found != lease:
            reason = _none_is_active(found)
    if reason is not None:
        raise ControllerNotAvailableException(f"{reason}; a dry run asks the controller, and nothing was written")


def _none_is_active(lease: Lease | None) -> str | None:
    """The reason if the lease alone says that no controller is active."""
    if lease is None:
        return "no controller is active, and none ever was: start one with `lakelog controller`"
    return f"no controller is active, the last one has stopped ({lease.controller_id})" if lease.resigned else None
