"""Which problems are told, and which are the same, though their words differ."""

import json

import pytest

from lakelog.jobs.admin.cluster_status import Problem
from lakelog.jobs.admin.problem_alerts import ProblemWatch, change_lines, change_object, key_of
from tests.clock import Clock

DEAD = Problem("broker 2 is dead: its last heartbeat was 30 s ago", (), "start it again")
OFFLINE = Problem("1 partition is offline", ("t-0",), "start broker 2")
MORE = Problem("2 partitions are offline", ("t-0", "t-1"), "start broker 2")
AWAY = Problem("the cluster cannot be read: it is away", (), "bring it back")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("broker 2 is dead: last seen 30 s ago", "broker 2 is dead: last seen 3 min ago", True),
        ("broker 2 is dead: last seen 30 s ago", "broker 3 is dead: last seen 30 s ago", False),
        ("1 partition is offline", "17 partitions are offline", True),
        ("1 partition is offline", "1 partition is under-replicated", False),
        ("brokers 1 and 2 refuse the cluster root", "brokers 1 and 3 refuse the cluster root", False),
        ("brokers 1, 2 and 4 refuse the cluster root", "brokers 1, 3 and 4 refuse the cluster root", False),
        ("the cluster cannot be read: its root is gone", "the cluster cannot be read: no cluster is there", True),
        ("cluster root /lake/cluster-1: away", "cluster root /lake/cluster-2: away", False),
        ("broker 1: its storage fails: version 7 is gone", "broker 1: its storage fails: version 8 is gone", True),
        ("host-1-ab renewed its lease 9 s ago", "host-1-ab renewed its lease 2 h ago", True),
        ("host-1-ab renewed its lease 9 s ago", "host-2-ab renewed its lease 9 s ago", False),
    ],
)  # fmt: skip
def test_a_problem_is_the_same_whatever_its_age_and_counts(one: str, other: str, is_same: bool) -> None:
    assert (key_of(Problem(one, (), "")) == key_of(Problem(other, (), ""))) == is_same


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> ProblemWatch:
    return ProblemWatch(60.0, clock)


def test_a_problem_is_told_once_it_has_lasted_and_once_more_when_it_is_over(watch: ProblemWatch, clock: Clock) -> None:
    watch.look([DEAD])
    assert watch.change() is None
    clock.now += 59
    assert watch.change() is None
    clock.now += 1
    change = watch.change()
    assert change == ((DEAD,), (), 1)
    assert watch.change() == change, "nobody was told yet"
    watch.note_reported(change)
    assert watch.change() is None
    watch.look([])
    change = watch.change()
    assert change == ((), (DEAD,), 0)
    watch.note_reported(change)
    assert watch.change() is None


def test_a_problem_that_does_not_last_is_not_told(watch: ProblemWatch, clock: Clock) -> None:
    for found in ([DEAD], [], [DEAD]):
        watch.look(found)
        clock.now += 40
        assert watch.change() is None


def test_new_partitions_of_a_problem_are_told_and_fewer_are_not(clock: Clock) -> None:
    watch = ProblemWatch(0.0, clock)
    for found, told in (([OFFLINE], [OFFLINE]), ([MORE], [MORE]), ([OFFLINE], None), ([MORE], None)):
        watch.look(found)
        change = watch.change()
        assert (change and list(change.begun)) == told
        if change is not None:
            watch.note_reported(change)


def test_what_nobody_was_told_is_told_as_it_is_then(clock: Clock) -> None:
    watch = ProblemWatch(0.0, clock)
    watch.look([OFFLINE])
    assert watch.change() == ((OFFLINE,), (), 1)
    watch.look([DEAD, MORE])
    assert watch.change() == ((DEAD, MORE), (), 2)
    watch.look([])
    assert watch.change() is None


def test_a_cluster_that_cannot_be_read_ends_no_problem(clock: Clock) -> None:
    watch = ProblemWatch(0.0, clock)
    watch.look([DEAD])
    watch.note_reported(watch.change())  # type: ignore[arg-type]
    watch.look([AWAY], is_whole=False)
    change = watch.change()
    assert change == ((AWAY,), (), 2)
    watch.note_reported(change)
    watch.look([DEAD])
    assert watch.change() == ((), (AWAY,), 1)


def test_a_change_is_an_object_with_a_text_for_chats(clock: Clock) -> None:
    many = Problem("2000 partitions are offline", tuple(f"t-{n}" for n in range(2000)), "start broker 2")
    watch = ProblemWatch(0.0, clock)
    watch.look([DEAD])
    watch.note_reported(watch.change())  # type: ignore[arg-type]
    watch.look([many])
    change = watch.change()
    assert change is not None
    found = json.loads(json.dumps(change_object("/lake/cluster", change, 1_700_000_000.5)))
    text = found.pop("text").splitlines()
    assert text[0] == "Lakelog cluster /lake/cluster: 1 problem"
    assert text[1].startswith("- 2000 partitions are offline: t-0, t-1")
    assert text[1].endswith(" more")
    assert text[2:] == ["  To do: start broker 2.", f"- Over: {DEAD.what}"]
    assert text[1:] == "\n".join(change_lines(change)).splitlines()
    (begun,) = found.pop("begun")
    assert (len(begun.pop("partitions")), begun) == (
        1000,
        {"what": many.what, "partition_count": 2000, "do": many.do},
    )
    assert found == {
        "version": 1,
        "cluster": "/lake/cluster",
        "at": "2023-11-14T22:13:20.500+00:00",
        "status": "firing",
        "problems": 1,
        "ended": [{"what": DEAD.what, "partitions": [], "partition_count": 0, "do": DEAD.do}],
    }


def test_the_last_problem_that_ends_is_resolved(clock: Clock) -> None:
    watch = ProblemWatch(0.0, clock)
    watch.look([DEAD])
    watch.note_reported(watch.change())  # type: ignore[arg-type]
    watch.look([])
    change = watch.change()
    assert change is not None
    found = change_object("/lake/cluster", change, 0.0)
    assert (found["status"], found["problems"]) == ("resolved", 0)
    assert str(found["text"]).splitlines()[0] == "Lakelog cluster /lake/cluster: no problem is left"
