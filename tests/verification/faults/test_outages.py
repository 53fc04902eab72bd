"""Times without an acknowledgement after kills: which count as short, and how they are summed up."""

from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.replication.config import Config
from lakelog.verification.faults.outages import Outage, OutageMeter, distribution, too_long

BROKER, CONTROLLER, BOTH = "kill-broker", "kill-controller", "kill-both"


def outage(kind: str, *acknowledged: float | None, taken_over: float | None = None) -> Outage:
    return Outage(kind, ["broker 1"], list(range(len(acknowledged))), list(acknowledged), taken_over)


@pytest.mark.parametrize(
    ("acknowledged", "settings", "short"),
    [
        ([8.0], {}, True),
        ([8.01], {}, False),
        ([None], {}, False),
        ([8.01, 0.1], {}, True),
        ([None, 0.1], {}, True),
        ([11.9], {"broker.session.timeout.ms": 10_000}, True),
        ([11.9], {"controller.session.timeout.ms": 10_000}, True),
        ([12.1], {"broker.session.timeout.ms": 10_000}, False),
    ],
)
def test_the_first_record_is_acknowledged_within_the_session_and_two_seconds(
    acknowledged: list[float | None], settings: dict[str, object], short: bool
) -> None:
    config = Config.from_properties(settings, "test").with_sessions(is_local=True)
    assert too_long([outage(BROKER, 0.1), outage(BOTH, *acknowledged)], config) == (not short)


def test_each_kind_has_its_distribution() -> None:
    """A kill after which nothing was ever acknowledged has no time, but is not forgotten."""
    times = [outage(BROKER, float(time), time + 0.5) for time in range(1, 41)]
    never, late = outage(BOTH, None, None, taken_over=5.25), outage(BOTH, 6.5, None, taken_over=4.75)
    broker, both = distribution([never, *times, late])
    assert broker == {
        "kind": BROKER, "kills": 40, "median_s": 20.5, "p95_s": 38.0, "max_s": 40.0, "all_median_s": 21.0,
        "all_p95_s": 38.5, "all_max_s": 40.5, "takeover_median_s": None, "takeover_p95_s": None, "takeover_max_s": None,
    }  # fmt: skip
    assert both == {
        "kind": BOTH, "kills": 2, "median_s": None, "p95_s": None, "max_s": None, "all_median_s": None,
        "all_p95_s": None, "all_max_s": None, "takeover_median_s": 5.0, "takeover_p95_s": 5.25, "takeover_max_s": 5.25,
    }  # fmt: skip
    (controller,) = distribution([outage(CONTROLLER, 0.5, 0.25, taken_over=4.0)])
    assert (controller["max_s"], controller["all_max_s"], controller["takeover_max_s"]) == (0.25, 0.5, 4.0)


class Answering:
    """A sender whose records are acknowledged, or are not."""

    def __init__(self, is_acknowledged: bool) -> None:
        self.is_acknowledged = is_acknowledged
        self.probes = 0

    def probe(self) -> bool:
        self.probes += 1
        return self.is_acknowledged


def test_a_kill_is_measured_by_a_record_to_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = [Answering(True), Answering(False), Answering(True)]
    made = iter(senders)
    monkeypatch.setattr("lakelog.verification.faults.outages.NumberSender", lambda *_: next(made))
    meter, done = OutageMeter("cluster", "t", 3, Config()), list[str]()

    def wait(lacks: Any, what: str) -> None:
        done.append(what)
        while lacks():
            pass

    process: Any = SimpleNamespace(name="broker 1", kill=lambda: done.append("killed"))
    meter.kill(BROKER, [process], {0, 1}, lambda: "", wait)
    (found,) = meter.outages
    assert (found.kind, found.killed, found.partitions, found.taken_over_s) == (BROKER, ["broker 1"], [0, 1], None)
    assert [time is None for time in found.acknowledged_s] == [False, True]
    assert [sender.probes for sender in senders] == [1, 1, 0]
    assert done[0] == "killed"
    meter.kill(CONTROLLER, [process], {2}, lambda: "", wait)
    assert meter.outages[1].taken_over_s is not None
    meter.kill(BROKER, [process], set(), lambda: "", wait)
    assert len(meter.outages) == 2  # it led nothing
