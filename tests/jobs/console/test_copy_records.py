"""`lakelog copy-records` on real tables without brokers: what it copies, once and in order, wherever it dies."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import copy_records
from lakelog.replication.clients.send_executor import SendExecutor
from lakelog.replication.clients.sink import routed_records
from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.staged_batch import stages_of
from tests.jobs.console.two_topics import C0, C1, COPIES, COPIES_ID, TwoTopics, append, filled, publishing, record
from tests.storage.logs import NOON, P0, P1, TOPIC, start_at

Run = Any  # what a verb has answered: (status, stdout, stderr)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TwoTopics]:
    world = filled(tmp_path)
    with publishing(world):
        yield world


@pytest.fixture
def copy(lakelog: Run, world: TwoTopics) -> Run:
    """Copies from flights into copies, and answers with the rows for JSON."""

    def run(*words: object, source: str = TOPIC, target: str = COPIES) -> tuple[int, Any, str]:
        topics = "--from-topic", source, "--to-topic", target
        status, out, err = lakelog(copy_records, "--cluster", world.uri, *topics, "-o", "json", *words)
        return status, json.loads(out) if out else None, err

    return run


def values(world: TwoTopics, *partitions: Any) -> list[list[str]]:
    """The values of partitions; - for null."""
    return [[(row["value"] or b"-").decode() for row in world.kept(partition)] for partition in partitions]


def test_a_copy_keeps_keys_values_headers_times_and_order(copy: Run, world: TwoTopics) -> None:
    status, rows, err = copy()
    assert (status, err) == (0, "")
    assert [(row["partition"], row["start_offset"], row["end_offset"], row["records"]) for row in rows] == [
        (0, 0, 5, 5), (1, 0, 2, 2)
    ]  # fmt: skip
    for source, target in ((P0, C0), (P1, C1)):
        assert world.kept(target) == world.kept(source)


def test_a_copy_goes_to_another_cluster(copy: Run, world: TwoTopics, tmp_path: Path) -> None:
    other = TwoTopics(str(tmp_path / "other"))
    with publishing(other):
        status, _, err = copy("--to-cluster", other.uri)
    assert (status, err) == (0, "")
    assert (other.kept(C0), other.kept(C1)) == (world.kept(P0), world.kept(P1))
    assert values(world, C0, C1) == [[], []]


# Options; the values in the partitions of the copy.
CHOSEN = {
    "offsets": (["--partitions", 0, "--offset", 1, "--before-offset", 4], [["b", "c", "d"], []]),
    "offsets that there are not": (["--offset", 9, "--before-offset", 99], [[], []]),
    "an end before the begin": (["--offset", 4, "--before-offset", 1], [[], []]),
    "times": (["--since", "2026-01-01T12:01", "--until", "2026-01-01T12:03"], [["b", "c"], ["x", "y"]]),
    "a time after all": (["--since", "2026-01-02"], [[], []]),
    "an end before all": (["--until", "2026-01-01"], [[], []]),
    "a key": (["--key", "other"], [["d"], ["y"]]),
    "keys": (["--key", "other", "--key", "k"], [["a", "b", "c", "d"], ["x", "y"]]),
    "no such key": (["--key", "nobody"], [[], []]),
}


def test_options_choose_what_is_copied(copy: Run, world: TwoTopics) -> None:
    for name, (words, expected) in CHOSEN.items():
        before = [world.end(C0), world.end(C1)]
        copied = [len(each) for each in expected]
        status, tried, err = copy(*words, "--dry-run")
        assert (status, [row["records"] for row in tried]) == (0, copied[: len(tried)]), name
        assert "Nothing was written." in err
        assert [world.end(C0), world.end(C1)] == before, name
        status, rows, err = copy(*words)
        assert (status, [row["records"] for row in rows], err) == (0, copied[: len(rows)], ""), name
        found = values(world, C0, C1)
        assert [found[0][before[0] :], found[1][before[1] :]] == expected, name


def test_a_second_run_goes_on_with_what_is_new(copy: Run, world: TwoTopics) -> None:
    assert copy("--before-offset", 2)[0] == 0
    assert values(world, C0, C1) == [["a", "b"], ["x", "y"]]
    assert [row["records"] for row in copy()[1]] == [3, 0]
    assert [row["records"] for row in copy()[1]] == [0, 0]
    append(world, P1, [record("z")])
    world.publish({})
    assert copy()[0] == 0
    assert values(world, C0, C1) == [["a", "b", "c", "d", "-"], ["x", "y", "z"]]
    assert copy("--copy-name", "again", "--partitions", 1)[0] == 0
    assert values(world, C1) == [["x", "y", "z", "x", "y", "z"]]


def test_a_copy_whose_place_is_forgotten_is_refused(copy: Run, world: TwoTopics) -> None:
    assert copy()[0] == 0
    stages = stages_of(world.cluster.root, 0)
    (name,) = stages.list()
    SinkStage(stages.child(name)).free(before=NOON.timestamp() * 2)
    status, answer, _ = copy()
    assert (status, answer["error"]["code"]) == (1, "IllegalStateException")
    assert answer["error"]["message"].startswith(f"{name} was unused for so long that its place is forgotten: begin ")
    assert values(world, C1) == [["x", "y"]]


def test_a_copy_whose_stage_is_lost_is_refused(copy: Run, world: TwoTopics) -> None:
    assert copy()[0] == 0
    stages = stages_of(world.cluster.root, 0)
    SinkStage(stages.child(*stages.list())).delete()
    status, answer, _ = copy()
    assert (status, answer["error"]["code"]) == (1, "OutOfOrderSequenceException")
    assert "the logs of topic copies do not have the records that this copy has written, or have more: " in str(answer)
    assert values(world, C1) == [["x", "y"]]


class Killed(BaseException):
    """The process is dead."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, bool], Any]:
    """From now on the write of a number kills the process, before it or after it. Returns the counter of writes."""
    places = [(SinkStage, name) for name in ("put_parts", "put_batch", "copy_batch", "put_done", "clean")]
    originals = [(cls, name, getattr(cls, name)) for cls, name in [*places, (SendExecutor, "_append")]]

    def kill_at(number: int | None, is_after: bool) -> Any:
        counter = itertools.count()

        def counting(call: Any) -> Any:
            def write(*given: Any) -> Any:
                kills = next(counter) == number
                if kills and not is_after:
                    raise Killed
                done = call(*given)
                if kills:
                    raise Killed
                return done

            return write

        for cls, name, call in originals:
            monkeypatch.setattr(cls, name, counting(call))
        return counter

    return kill_at


def test_a_copy_that_is_killed_between_two_writes_copies_each_record_once(
    copy: Run, world: TwoTopics, writes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of the source is a batch of the copy here. Every other copy encodes its records when it stages them.
    To be killed after a write is to be killed before the next one."""
    monkeypatch.setattr(copy_records, "_BATCH_BYTES", 1)
    counter = writes(None, False)
    assert copy("--partitions", 0, "--before-offset", 4)[0] == 0
    count = next(counter)
    assert count >= 2 * 6, "two batches, of six writes each"
    for number, is_after in [(0, False), *((each, True) for each in range(count))]:
        monkeypatch.setattr(routed_records, "LARGE_BYTES", 1 if number % 2 else 1 << 62)
        end, words = world.end(C0), ("--partitions", 0, "--before-offset", 4, "--copy-name", f"{number} {is_after}")
        writes(number, is_after)
        with pytest.raises(Killed):
            copy(*words)
        writes(None, False)
        assert copy(*words)[0] == 0
        assert world.kept(C0, end) == world.kept(P0)[:4], (number, is_after)


def test_a_try_after_a_crash_tells_what_is_still_to_be_copied(copy: Run, world: TwoTopics, writes: Any) -> None:
    writes(3, False)  # the batch is staged, and not sent
    with pytest.raises(Killed):
        copy()
    writes(None, False)
    assert [row["records"] for row in copy("--dry-run")[1]] == [5, 2]
    assert values(world, C0, C1) == [[], []]
    status, rows, err = copy()
    assert (status, [row["records"] for row in rows]) == (0, [0, 0])
    assert err == "lakelog: a batch of an earlier run, of 7 offsets, was finished\n"
    assert values(world, C0, C1) == [["a", "b", "c", "d", "-"], ["x", "y"]]


def test_two_processes_with_one_copy_write_no_record_twice(
    copy: Run, world: TwoTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one runs while this one has read its records, and not staged them yet."""
    put_parts, others = SinkStage.put_parts, list[int]()

    def late(stage: SinkStage, *given: Any) -> Any:
        if not others:
            others.append(0)
            others.append(copy("--before-offset", 2)[0])
        return put_parts(stage, *given)

    monkeypatch.setattr(SinkStage, "put_parts", late)
    status, answer, err = copy()
    assert (status, answer["error"]["code"], others) == (1, "ProducerFencedException", [0, 0])
    assert "another process runs this copy, and has copied up to {0: 2, 1: 2}: let one of them go on" in err
    assert copy()[0] == 0
    assert values(world, C0, C1) == [["a", "b", "c", "d", "-"], ["x", "y"]]


def test_records_of_a_key_go_to_its_partition_and_others_stay_together(lakelog: Run, tmp_path: Path) -> None:
    world = filled(tmp_path, copies=3)
    with publishing(world):
        topics = "--from-topic", TOPIC, "--to-topic", COPIES
        status, _, err = lakelog(copy_records, "--cluster", world.uri, *topics, "--partitioner", "key")
    assert (status, err) == (0, "lakelog: topic flights has 2 partitions, topic copies has 3\n")
    places: dict[Any, set[int]] = {}
    for partition in world.copies:
        for row in world.kept(partition):
            places.setdefault(row["key"], set()).add(partition.partition)
    assert {key: len(found) for key, found in places.items()} == {b"k": 1, b"other": 1, None: 1}
    ours = [row for partition in world.copies for row in world.kept(partition) if row["key"] == b"k"]
    assert [row["value"] for row in ours] == [b"a", b"b", b"c", b"x"]
    assert sum(map(len, values(world, *world.copies))) == 7


def test_a_target_without_the_partition_is_refused(lakelog: Run, tmp_path: Path) -> None:
    world = filled(tmp_path, copies=1)
    topics = "--from-topic", TOPIC, "--to-topic", COPIES
    status, out, err = lakelog(copy_records, "--cluster", world.uri, *topics)
    assert (status, out, world.kept(C0)) == (1, "", [])
    assert "InvalidPartitionsException: topic copies has 1 partitions, and lacks partition 1 of topic flights: " in err


# Options of a copy of flights into itself; whether it is done.
INTO_ITSELF = [([], False), (["--until", "2026-01-01T12:01"], False), (["--before-offset", 3], False),
               (["--before-offset", 2], True), (["--partitions", 0, "--before-offset", 5], True)]  # fmt: skip


def test_a_topic_is_copied_into_itself_up_to_a_bound_only(copy: Run, world: TwoTopics) -> None:
    for words, is_done in INTO_ITSELF:
        ends = world.end(P0), world.end(P1)
        status, _, err = copy(*words, target=TOPIC)
        assert status == (0 if is_done else 1), words
        assert is_done or "topic flights is to be copied into itself" in err
        assert is_done == (ends != (world.end(P0), world.end(P1)))
    assert values(world, P0, P1) == [["a", "b", "c", "d", "-", "a", "b", "a", "b", "c", "d", "-"], ["x", "y", "x", "y"]]


REFUSED = [
    (
        {"max.message.bytes": "3"}, "RecordTooLargeException",
        "copies-0: a record has 12 bytes in key, value and headers, and max.message.bytes is 3",
    ),
    (
        {"cleanup.policy": "compact"}, "InvalidRecordException",
        "a record has no key, and a topic with cleanup.policy=compact takes none without one",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("configs", "code", "text"), REFUSED, ids=["too large", "without a key"])
def test_a_record_that_the_target_does_not_take_is_refused_before_anything_is_written(
    copy: Run, world: TwoTopics, configs: dict[str, str], code: str, text: str
) -> None:
    topics = [each for each in world.cluster.topics.topics.values() if each.topic != COPIES]
    world.cluster.topics.change([*topics, Topic(COPIES, COPIES_ID, 2, configs)], (), {"who": "test"})
    status, answer, err = copy()
    assert (status, answer["error"]["code"]) == (1, code)
    assert text in err
    assert values(world, C0, C1) == [[], []]


def test_records_that_are_deleted_are_left_out(copy: Run, world: TwoTopics) -> None:
    start_at(world.logs[1], P0, 3)
    status, rows, err = copy("--offset", 1)
    assert (status, [row["records"] for row in rows]) == (0, [2, 1])
    assert err == "lakelog: flights-0: the records below offset 3 are deleted, it begins there\n"
    assert values(world, C0, C1) == [["d", "-"], ["y"]]


WRONG = [
    (["--partitions", 7], {}, "InvalidPartitionsException: topic flights has no partition 7, it has 0 to 1"),
    ([], {"target": "nobody"}, "UnknownTopicOrPartitionException: no topic nobody"),
    ([], {"source": "nobody"}, "UnknownTopicOrPartitionException: no topic nobody"),
    ([], {"target": "__consumer_offsets"}, "InvalidTopicException: "),
]


def test_what_is_not_there_is_refused(copy: Run, world: TwoTopics) -> None:
    for words, topics, fault in WRONG:
        status, _, err = copy(*words, **topics)
        assert (status, fault in err) == (1, True), err
    assert values(world, C0, C1) == [[], []]
