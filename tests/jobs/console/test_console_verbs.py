"""`lakelog console-producer` and `console-consumer` on real tables without brokers."""

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import console_consumer, console_producer
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.offset_lookup import EARLIEST
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.topic import Topic
from tests.clients.world import World
from tests.processes import wait_until
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill, start_at, values

Run = Any  # what a verb has answered: (status, stdout, stderr)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """flights-0 has the values 0, 1, 2, 0, 1, of which the last is not committed; flights-1 has 0."""
    made = World(str(tmp_path))
    fill(made.logs[1], P0, 3, 2)
    fill(made.logs[1], P1, 1)
    made.say(4)
    made.say(1, P1)
    return made


@pytest.fixture
def produce(lakelog: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Gives lines to the producer."""

    def call(lines: bytes, *words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        return lakelog(console_producer, "--cluster", world.uri, "--topic", TOPIC, *words)

    return call


@pytest.fixture
def consume(lakelog: Run, world: World) -> Run:
    """Consumes until nothing comes."""

    def run(*words: object) -> tuple[int, str, str]:
        given = {"--topic": TOPIC, "--timeout-ms": 0}
        defaults = [part for name, value in given.items() if name not in words for part in (name, value)]
        return lakelog(console_consumer, "--cluster", world.uri, *defaults, *words)

    return run


def processed(count: int) -> str:
    return f"Processed a total of {count} messages\n"


def sent(world: World) -> list[bytes]:
    """The values that were not there before."""
    return sorted(values(world.logs[1], P0, 5) + values(world.logs[1], P1, 1))


def test_each_line_is_a_record(produce: Run, world: World) -> None:
    assert produce(b"a\nb\n\nc", "--acks", 1) == (0, "", "")
    assert sent(world) == [b"", b"a", b"b", b"c"]


@pytest.mark.parametrize("words", [["--sync"], ["--timeout", 0, "--batch-size", 0, "--max-block-ms", 1000]])
def test_keys_and_headers_are_sent(produce: Run, world: World, words: list[object]) -> None:
    properties = ["parse.key=true", "parse.headers=true", "key.separator=:", "null.marker=NULL"]
    flags = [word for p in properties for word in ("--property", p)]
    assert produce(b"h:1\tk:v\nNULL\tk:NULL\n", "--request-required-acks", 1, *flags, *words) == (0, "", "")
    rows = [row for p, first in ((P0, 5), (P1, 1)) for row in world.logs[1].read(p, first).to_pylist()]
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        (b"k", b"v", [{"key": "h", "value": b"1"}]),
        (b"k", None, None),
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"no", "InvalidRecordException: line 3 has no key.separator: 'no'\n"),
        (b"k:large", f"RecordTooLargeException: line 3: {TOPIC}: a record has 6 bytes in key, value and headers, and "),
    ],
)
def test_records_before_a_wrong_line_are_sent(produce: Run, world: World, line: bytes, error: str) -> None:
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {"max.message.bytes": "5"})], (), {"who": "test"})
    flags = ["--property", "parse.key=true", "--property", "key.separator=:"]
    status, out, err = produce(b"k:a\nk:b\n" + line + b"\nk:c\n", "--acks", 1, *flags)
    assert (status, out, err[: len(error) + 9]) == (1, "", f"lakelog: {error}")
    assert sent(world) == [b"a", b"b"]


def test_records_that_are_not_delivered_are_counted(produce: Run) -> None:
    """Nobody follows, so that nothing is acknowledged."""
    status, out, err = produce(b"a\nb\n", "--producer-property", "delivery.timeout.ms=20", "--timeout", 0)
    assert (status, out) == (1, "")
    assert "lakelog: flights: a record was not delivered: TimeoutException: " in err
    assert err.endswith("lakelog: 2 records were not delivered\n")


class Terminal(io.TextIOWrapper):
    """An input that asks for a prompt, and in which somebody presses Ctrl-C after a line."""

    def isatty(self) -> bool:
        return True


class Typed(io.BytesIO):
    """A line, and then Ctrl-C."""

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        if not line:
            raise KeyboardInterrupt
        return line


def test_a_terminal_has_a_prompt_and_ctrl_c_sends_what_was_typed(
    lakelog: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(Typed(b"a\n")))
    called = lakelog(console_producer, "--cluster", world.uri, "--topic", TOPIC, "--acks", 1)
    assert called == (130, ">>", "")
    assert sent(world) == [b"a"]


# Options; the lines on stdout, and the number of records.
CONSUMED = {
    "latest": ([], "", 0),
    "all": (["--from-beginning"], "0\n1\n2\n0\n0\n", 5),
    "a partition": (["--partition", 1, "--offset", "earliest"], "0\n", 1),
    "from an offset": (["--partition", 0, "--offset", 2], "2\n0\n", 2),
    "after the latest": (["--partition", 0, "--offset", "latest"], "", 0),
    "some": (["--from-beginning", "--max-messages", 2], "0\n1\n", 2),
    "more than there are": (["--partition", 0, "--from-beginning", "--max-messages", 9], "0\n1\n2\n0\n", 4),
    "with keys": (["--partition", 1, "--from-beginning", "--property", "print.key=true"], "k\t0\n", 1),
}


def test_console_consumer_prints_the_records_that_its_options_choose(consume: Run) -> None:
    for words, lines, count in CONSUMED.values():
        status, out, err = consume(*words, *(["--timeout-ms", 30] if words else []))
        assert (status, out, err) == (0, lines, processed(count)), words


def test_a_group_goes_on_after_what_it_has_printed(consume: Run, world: World) -> None:
    begin = ["--from-beginning", "--timeout-ms", 30, "--group", "g"]
    assert consume(*begin, "--max-messages", 2)[1] == "0\n1\n"
    assert Consumer(world.uri, "g").committed(TOPIC) == {0: 2, 1: 0}
    assert consume(*begin)[1] == "2\n0\n0\n"
    assert Consumer(world.uri, "g").committed(TOPIC) == {0: 4, 1: 1}
    world.say(5)
    assert consume("--timeout-ms", 30, "--group", "g")[1] == "1\n"


# The offsets that the group has committed, and options; the lines on stdout.
UNREAD = {
    "some": ({0: 2, 1: 0}, [], "2\n0\n0\n"),
    "nothing is left": ({0: 4, 1: 1}, [], ""),
    "a partition without an offset": ({0: 4}, [], "0\n"),
    "one partition": ({0: 3, 1: 1}, ["--partition", 0], "0\n"),
    "some of it": ({0: 1}, ["--max-messages", 2], "1\n2\n"),
    "more than is committed": ({0: 9, 1: 0}, [], "0\n"),
    "in another form": ({0: 4, 1: 0}, ["--formatter", "noop"], ""),
}


def test_what_a_group_has_not_consumed_is_printed(lakelog: Run, world: World) -> None:
    """It ends by itself at the high watermark, and the group's offsets stay. The noop formatter counts records."""
    for number, (committed, words, lines) in enumerate(UNREAD.values()):
        group = Consumer(world.uri, f"g{number}")
        group.commit({TOPIC: committed})
        answer = lakelog(
            console_consumer, "--cluster", world.uri, "--topic", TOPIC, "--unread-by", f"g{number}", *words
        )
        assert answer == (0, lines, processed(lines.count("\n") + words.count("noop"))), words
        assert group.committed(TOPIC) == committed


def test_unread_records_that_were_deleted_are_left_out(consume: Run, world: World) -> None:
    Consumer(world.uri, "g").commit({TOPIC: {0: 0, 1: 1}})
    start_at(world.logs[1], P0, 3)
    assert consume("--unread-by", "g", "--timeout-ms", 60_000)[1] == "0\n"


def test_a_group_that_has_committed_nothing_of_the_topic_is_refused(consume: Run) -> None:
    status, out, err = consume("--unread-by", "g")
    assert (status, out) == (1, "")
    assert "InvalidRequestException: group g has committed no offsets of topic flights: print all" in err


def test_an_offset_out_of_range_is_reported_and_reading_goes_on(consume: Run, world: World) -> None:
    start_at(world.logs[1], P0, 3)
    status, out, err = consume("--partition", 0, "--offset", 1, "--timeout-ms", 30)
    assert (status, out) == (0, "")
    assert f"{TOPIC}-0: offset 1 is out of range" in err
    assert "; it goes on at 4\n" in err
    assert consume("--from-beginning", "--partition", 0, "--timeout-ms", 30)[1] == "0\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--partition", 9], f"InvalidPartitionsException: topic {TOPIC} has no partition 9, it has 0 to 1"),
        (["--topic", "nobody"], "UnknownTopicOrPartitionException: no topic nobody"),
    ],
)
def test_an_unknown_partition_is_refused(consume: Run, words: list[object], fault: str) -> None:
    status, out, err = consume(*words)
    assert (status, out) == (1, "")
    assert fault in err


def test_an_unreadable_leader_is_waited_for_and_reported_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = ConsoleReader(world.uri, world.cluster.config, TOPIC, EARLIEST, partition=0)

    def away(*_: object) -> None:
        raise KafkaStorageException("broker 1 is away")

    with monkeypatch.context() as here:
        here.setattr(TopicView, "log", away)
        for _ in range(2):
            assert list(reader.read(0, 9, 1000)) == []
    assert capsys.readouterr().err == "lakelog: KafkaStorageException: broker 1 is away; it is tried again\n"
    assert [table["offset"].to_pylist() for table in reader.read(0, 9, 1000)] == [[0, 1, 2, 3]]


def test_partitions_take_turns_if_a_fetch_is_too_small_for_all(world: World) -> None:
    reader = ConsoleReader(world.uri, world.cluster.config, TOPIC, EARLIEST)
    got = [(t["partition"][0].as_py(), t.num_rows) for _ in range(3) for t in reader.read(0, 9, 1)]
    assert got == [(0, 3), (1, 1), (0, 1)]


def test_ctrl_c_ends_it_with_the_number_of_records(world: World) -> None:
    words = [sys.executable, "-m", "lakelog.jobs", "console-consumer", "--cluster", world.uri, "--topic", TOPIC]
    process = subprocess.Popen(
        [*words, "--from-beginning", "--group", "g"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(5)] == ["0\n", "1\n", "2\n", "0\n", "0\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", processed(5))
    wait_until(lambda: Consumer(world.uri, "g").committed(TOPIC) == {0: 4, 1: 1}, "the offsets of the group")


def test_a_topic_that_is_made_again_is_read_as_a_new_one(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Its offsets are those of the new topic, also for the group."""
    reader = ConsoleReader(world.uri, Config(), TOPIC, EARLIEST, "g")
    before = [row for table in reader.read(0, 100, 10_000) for row in table["offset"].to_pylist()]
    world.make_again(6)
    reader.commit()
    assert world.consumer("g").committed(TOPIC) == {}, "it has read nothing of the new topic"
    after = [[row for table in reader.read(0, 100, 10_000) for row in table["offset"].to_pylist()] for _ in range(2)]
    reader.commit()
    assert (sorted(before), after) == ([0, 0, 1, 2, 3], [[], [0, 1, 2, 3, 4, 5]])
    assert "it is read as a new topic" in capsys.readouterr().err
    assert world.consumer("g").committed(TOPIC) == {0: 6}
