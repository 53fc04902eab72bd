"""For tests of verbs that read heartbeats: the test moves their clock, and nothing waits."""

from types import SimpleNamespace

import pytest

from lakelog.jobs.admin import heartbeats
from tests.jobs.admin.seen import NOW


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the command's waits instead of waiting. Its clock stands still."""
    waited: list[float] = []
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(time=lambda: NOW))
    for poll in (heartbeats.observe, heartbeats.observe_brokers, heartbeats.observe_controller):
        monkeypatch.setattr(poll, "__defaults__", (waited.append,))
    return waited
