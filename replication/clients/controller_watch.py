"""Tells a waiting client why no controller answers, before its request times out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.lease import Lease
from lakelog.replication.storage.cluster import Cluster

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
        if lease is None:
            return "no controller is active, and none ever was: start one with `lakelog controller`"
        if lease.resigned:
            return f"no controller is active, the last one has stopped ({lease.controller_id})"
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if now - self._seen_at < self._session_timeout:
            return None
        return f"controller {lease.controller_id} is dead: it has not renewed its lease for its session time-out"
