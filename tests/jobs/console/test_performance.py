"""`lakelog producer-perf-test` and `consumer-perf-test`: their lines, and what is sent and consumed."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.jobs import consumer_perf_test, producer_perf_test
from lakelog.jobs.producer_perf_test import LatencyStats
from lakelog.replication.clients.consumer import Consumer
from tests.clients.world import World
from tests.storage.logs import P0, P1, TOPIC, fill, values

Run = Any  # what a verb has answered: (status, stdout, stderr)
TOTAL = re.compile(
    r"(\d+) records sent, \d+\.\d{6} records/sec \(\d+\.\d{2} MB/sec\), \d+\.\d{2} ms avg latency, "
    r"\d+\.\d{2} ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.\n"
)
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
)
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
FIGURES = r"\d+\.\d{4}, \d+\.\d{4}, (\d+), \d+\.\d{4}, \d+, -?\d+, \d+\.\d{4}, \d+\.\d{4}\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(str(tmp_path))
    made.say(0)
    made.say(0, P1)
    return made


@pytest.fixture
def perf(lakelog: Run, world: World) -> Run:
    words = ("--cluster", world.uri, "--topic", TOPIC)
    return lambda verb, *more: lakelog(verb, *words, *more)


def sent(world: World) -> list[bytes]:
    return values(world.logs[1], P0) + values(world.logs[1], P1)


@pytest.mark.parametrize("records_per_send", [1, 4])
def test_records_are_sent_and_counted(perf: Run, world: World, records_per_send: int) -> None:
    words = ["--num-records", 10, "--record-size", 7, "--throughput", -1, "--records-per-send", records_per_send]
    status, out, err = perf(producer_perf_test, *words, "--producer-props", "acks=1", "linger.ms=0")
    assert (status, err) == (0, "")
    found = TOTAL.fullmatch(out)
    assert found is not None, out
    assert found[1] == "10"
    assert all(re.fullmatch(b"[A-Z]{7}", value) for value in sent(world))
    assert len(sent(world)) == 10
    assert len(set(sent(world))) == 10


def test_payloads_of_a_file(perf: Run, world: World, tmp_path: Path) -> None:
    (tmp_path / "payloads").write_bytes(b"ab;c;")
    words = ["--num-records", 30, "--throughput", 1000, "--payload-file", tmp_path / "payloads"]
    status, out, _ = perf(producer_perf_test, *words, "--payload-delimiter", ";", "--producer-props", "acks=1")
    first, second, last = out.splitlines(keepends=True)
    assert status == 0
    assert first == f"Reading payloads from: {tmp_path}/payloads\n"
    assert second == "Number of messages read: 2\n"
    assert TOTAL.fullmatch(last)
    assert set(sent(world)) == {b"ab", b"c"}


def test_rising_payloads_come_no_faster_than_asked(perf: Run, world: World) -> None:
    words = ["--num-records", 5, "--throughput", 100, "--payload-monotonic", "--producer-props", "acks=1"]
    status, out, _ = perf(producer_perf_test, *words)
    assert status == 0
    assert float(out.split(", ")[1].split()[0]) <= 125, "the first record does not wait"
    assert sorted(sent(world)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("records_per_send", [1, 2])
def test_records_that_are_not_delivered_do_not_count(
    perf: Run, monkeypatch: pytest.MonkeyPatch, records_per_send: int
) -> None:
    monkeypatch.setattr("lakelog.jobs.producer_perf_test._TIMEOUT_MS", 20)
    words = ["--num-records", 4, "--record-size", 1, "--throughput", -1, "--records-per-send", records_per_send]
    status, out, err = perf(producer_perf_test, *words, "--producer-props", "delivery.timeout.ms=20")
    assert status == 1
    assert out.startswith("0 records sent, 0.000000 records/sec (0.00 MB/sec), 0.00 ms avg latency")
    assert err.endswith("lakelog: 4 records were not delivered\n")


def test_latencies_are_printed_each_5_seconds_and_in_total(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 records of 1 MB, a tenth of a second apart, the n-th with a latency of n ms; a line after 5 seconds."""
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(producer_perf_test, "time", clock)
    stats = LatencyStats(100)
    for n in range(1, 101):
        stats.add(n / 10 - n / 1000 - 1e-9, n / 10, 1 << 20)
    assert capsys.readouterr().out == (
        "50 records sent, 10.0 records/sec (10.00 MB/sec), 25.5 ms avg latency, 50.0 ms max latency.\n"
        "50 records sent, 10.0 records/sec (10.00 MB/sec), 75.5 ms avg latency, 100.0 ms max latency.\n"
    )
    clock.monotonic = lambda: 20.0
    assert stats.total_line() == (
        "100 records sent, 5.000000 records/sec (5.00 MB/sec), 50.50 ms avg latency, 100.00 ms max latency, "
        "51 ms 50th, 96 ms 95th, 100 ms 99th, 100 ms 99.9th."
    )


def test_of_more_latencies_than_samples_every_nth_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_perf_test, "_SAMPLES", 10)
    stats = LatencyStats(100)
    for n in range(10):
        stats.add(0, n / 1000 + 1e-9, 1, records=10)
    assert stats._latencies.tolist() == [*range(10)]


@pytest.fixture
def filled(world: World) -> World:
    fill(world.logs[1], P0, 3, 2)
    fill(world.logs[1], P1, 4)
    world.say(5)
    world.say(4, P1)
    return world


@pytest.mark.parametrize(("messages", "consumed"), [(9, 9), (4, 4), (10, 9)])
@pytest.mark.usefixtures("filled")
def test_records_are_consumed_and_counted(perf: Run, messages: int, consumed: int) -> None:
    status, out, err = perf(consumer_perf_test, "--messages", messages, "--timeout", 20)
    lines = out.splitlines(keepends=True)
    assert (status, err, lines[0]) == (0, "", HEADER)
    found = re.fullmatch(f"{TIME}, {TIME}, {FIGURES}", lines[-1])
    assert found is not None, out
    assert int(found[1]) == consumed
    warning = "WARNING: Exiting before consuming the expected number of messages: timeout (20 ms) exceeded. "
    assert [line.startswith(warning) for line in lines[1:-1]] == [True] * (consumed < messages)


@pytest.mark.usefixtures("filled")
def test_details_are_a_line_each_interval(perf: Run) -> None:
    details = ["--show-detailed-stats", "--reporting-interval", 1, "--fetch-size", 1, "--hide-header"]
    out = perf(consumer_perf_test, "--messages", 9, *details)[1]
    lines = out.splitlines(keepends=True)
    counts = [int(found[1]) for line in lines if (found := re.fullmatch(f"{TIME}, 0, {FIGURES}", line))]
    assert len(counts) == len(lines) > 0, out
    assert counts == sorted(set(counts))


def test_a_group_goes_on_and_latest_begins_at_the_end(perf: Run, filled: World) -> None:
    brief = ["--hide-header", "--timeout", 20, "--group", "g"]
    assert perf(consumer_perf_test, "--messages", 4, *brief)[1].split(", ")[4] == "4"
    assert sum(Consumer(filled.uri, "g").committed(TOPIC).values()) == 4
    assert perf(consumer_perf_test, "--messages", 5, *brief)[1].split(", ")[4] == "5"
    latest = perf(consumer_perf_test, "--messages", 1, "--hide-header", "--timeout", 20, "--from-latest")[1]
    assert latest.splitlines()[-1].split(", ")[4] == "0"
