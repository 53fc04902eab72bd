"""The result of a soak: ok only if everything was done and nothing is wrong. Unknown is not zero."""

from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.verification.faults.number_producer import Waited, Waits
from lakelog.verification.faults.outages import Outage
from lakelog.verification.faults.soak_run import WRONG, Course, note_pauses, show_figures, soak_figures

TOPIC = {**dict.fromkeys(WRONG, 0), "acknowledged": 10, "read": 12, "deleted": 0}
WAITS = [
    {"topic": "kept", "partition": partition, "longest_ms": longest, "began_s": 4.0}
    for partition, longest in enumerate((250, 7100, 300))
]
ERRORS = {"not_acknowledged": {"TimeoutException": 41}, "not_read_at_once": {"LeaderNotAvailableException": 3}}


def course(*ended: float | None, **changes: Any) -> Course:
    faults = [{"kind": "kill-both" if at else "reassign", "began_s": 1.0, "ended_s": at} for at in ended]
    return Course(**{"planned": 2, "seed": 7, "fault_list": faults, **changes})


def figures(course: Course, **changes: Any) -> dict[str, Any]:
    return soak_figures(course, {"kept": TOPIC, "trimmed": {**TOPIC, **changes}}, WAITS, ERRORS)


def test_all_is_well() -> None:
    found = figures(course(3.0, 9.0, rotted=1, repaired=1))
    assert found["ok"] is True
    assert (found["faults"], found["faults_by_kind"]) == (2, {"kill-both": 2})
    assert (found["lost"], found["duplicated"], found["different"], found["repaired"]) == (0, 0, 0, 1)
    assert (found["longest_unavailable_ms"], found["seed"]) == (7100, 7)
    assert [fault["ended_s"] for fault in found["fault_list"]] == [3.0, 9.0]


@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_wrong_in_one_topic_counts(name: str) -> None:
    found = figures(course(3.0, 9.0), **{name: 2})
    assert (found[name], found["ok"]) == (2, False)


@pytest.mark.parametrize("change", [{"acknowledged": 0}, {"read": 0}])
def test_a_topic_that_was_not_used_is_not_ok(change: dict[str, object]) -> None:
    assert figures(course(3.0, 9.0), **change)["ok"] is False


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(course(3.0), id="a fault did not begin"),
        pytest.param(course(3.0, None), id="a fault did not end"),
        pytest.param(course(3.0, 9.0, failures=["TimeoutException: too late"]), id="something failed"),
        pytest.param(course(3.0, 9.0, not_in_order=1), id="a process did not stop in order"),
        pytest.param(course(3.0, 9.0, rotted=2, repaired=1), id="a file has stayed rotten"),
    ],
)
def test_a_soak_that_left_its_course_is_not_ok(changed: Course) -> None:
    assert figures(changed)["ok"] is False


def test_outages_are_counted_and_a_slow_machine_is_no_fault() -> None:
    found = figures(course(3.0, 9.0, outages=[Outage("kill-both", ["broker 1"], [0], [8.5], 4.0)], too_long=1))
    assert (found["kills_beyond_session_timeout_plus_2_s"], found["ok"]) == (1, True)
    assert [(row["kind"], row["max_s"]) for row in found["time_to_first_acknowledged"]] == [("kill-both", 8.5)]


def test_what_was_not_looked_for_is_not_known() -> None:
    found = soak_figures(course(3.0, 9.0), {}, WAITS, ERRORS)
    assert found["ok"] is False
    assert [found[name] for name in WRONG] == [None] * len(WRONG)


def test_a_person_sees_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    seen = course(3.0, None, failures=["TimeoutException: too late"])
    seen.fault_list[0]["longest_send_ms"] = 6400
    show_figures(figures(seen))
    shown = capsys.readouterr().out
    words = ("longest_unavailable_ms", "kill-both", "6400", "trimmed", "7100", "TimeoutException", "41", "too late")
    assert all(word in shown for word in words), shown


def waiting(*waits: tuple[float, float]) -> Any:
    found = SimpleNamespace(waits=Waits())
    found.waits.all = [Waited(*wait) for wait in waits]
    return found


def test_a_pause_belongs_to_the_fault_under_which_most_of_it_lies() -> None:
    """The soak began at second 100, its faults at 110 and 120; the third one has not begun."""
    faults: list[dict[str, Any]] = [{"began_s": 10.0}, {"began_s": 20.0}, {"began_s": None}]
    before, under_both, under_the_second = (101.0, 9.0), (112.0, 12.0), (119.0, 4.0)
    load: Any = SimpleNamespace(
        senders=[waiting(before, under_both), waiting(under_the_second, (130.0, 0.5))], reader=waiting((125.0, 1.25))
    )
    note_pauses(faults, [load], 100.0)
    assert faults == [
        {"began_s": 10.0, "longest_send_ms": 12_000, "longest_fetch_ms": 0},
        {"began_s": 20.0, "longest_send_ms": 4000, "longest_fetch_ms": 1250},
        {"began_s": None},
    ]
