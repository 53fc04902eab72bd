"""The commands of `lakelog bench`: each writes its figures to a file and shows them, or prints the error."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import FAILED, OK, Report, Row, say
from lakelog.jobs.cli.numbers import whole_number, whole_numbers
from lakelog.jobs.cli.output_paths import out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.launch.session import job_session
from lakelog.verification.bench.beside_kafka import (
    QUICK_KAFKA,
    KafkaPlan,
    kafka_figures,
    kafka_rows,
    measure_beside_kafka,
)
from lakelog.verification.bench.controller_bench import (
    REPLICAS,
    controller_figures,
    controller_rows,
    measure_controller,
)
from lakelog.verification.bench.counting_store import KINDS
from lakelog.verification.bench.maintenance import maintenance_figures, maintenance_rows, measure_maintenance
from lakelog.verification.bench.processes import (
    idle_figures,
    idle_rows,
    measure_idle,
    measure_processes,
    processes_figures,
    processes_rows,
)
from lakelog.verification.bench.produce import QUICK as QUICK_SENDS
from lakelog.verification.bench.produce import ProducePlan, measure_produce, produce_figures, produce_rows
from lakelog.verification.bench.read import QUICK_READ, ReadPlan, measure_read, read_figures, read_rows
from lakelog.verification.bench.replication import QUICK, Plan, circumstances, figures, measure, rows
from lakelog.verification.bench.requests import RequestsPlan, measure_requests, requests_figures, requests_rows
from lakelog.verification.bench.scale import QUICK_SCALE, ScalePlan, measure_scale, scale_figures, scale_tables
from lakelog.verification.bench.workers import measure_workers, workers_figures, workers_plan, workers_rows

_LAST_WORDS = 300  # letters of a failed suite's last words


def parser(description: str | None) -> VerbParser:
    """A command for each benchmark."""
    bench = parser_of("bench", description)
    commands = bench.add_subparsers(dest="what", required=True, metavar="WHAT", help="one of the following")
    for name, (words, arguments) in _COMMANDS.items():
        command = commands.add_parser(name, help=words, formatter_class=bench.formatter_class, allow_abbrev=False)
        arguments(command)
        command.add_argument("--out", metavar="FILE", type=out_file, help="write all figures to this file, as JSON")
    return bench


def _replication(command: ArgumentParser) -> None:
    _number(command, "--rounds", 1, 3, "rounds, fewer if they take longer than --seconds")
    _number(command, "--seconds", 1, 150, "seconds in which the rounds must end, except for the first")
    command.add_argument(
        "--workers", metavar="N,N", type=_rising,
        help="instead of the rounds: time a catch-up between two slow object stores, with so many workers of Spark's "
        "standalone cluster, such as 1,2,4",
    )  # fmt: skip
    _quick(command)


def _rising(text: str) -> list[int]:
    """The type of numbers of workers: a cluster gets more of them."""
    found = whole_numbers(1)(text)
    if any(number >= following for number, following in pairwise(found)):
        raise ArgumentTypeError(f"{text!r}: each number must be larger than the one before it, such as 1,2,4")
    return found


def _rounds(command: ArgumentParser) -> None:
    _number(command, "--rounds", 1, 5, "rounds")
    _quick(command)


def _quick(command: ArgumentParser) -> None:
    command.add_argument("--quick", action="store_true", help="run a few sends or records; its times mean nothing")


def _idle(command: ArgumentParser) -> None:
    _number(command, "--seconds", 1, 30, "seconds of each measurement")


def _processes(command: ArgumentParser) -> None:
    _number(command, "--sends", 1, 40, "measured sends of one record a partition")
    _number(command, "--seconds", 1, 30, "seconds of the idle measurement, after as many without a count")


def _requests(command: ArgumentParser) -> None:
    for flag, what in (
        ("--brokers", "numbers of brokers, such as 1,3"),
        ("--partitions", "numbers of partitions, such as 3,30"),
    ):
        command.add_argument(flag, metavar="N,N", type=whole_numbers(1), default=[3], help=f"{what}; default: 3")
    _number(command, "--controllers", 1, 2, "controllers in the same session")
    _cluster_roots(command)
    _number(command, "--seconds", 1, 60, "seconds in which the requests of the idle cluster are counted")
    _number(command, "--sends", 1, 10, "acknowledged sends of one record a partition")
    command.add_argument(
        "--poll-interval-ms", metavar="MS", type=whole_number(1),
        help="lakelog.poll.interval.ms of brokers, controllers and producer; default: 50",
    )  # fmt: skip
    command.add_argument(
        "--latencies", metavar="KIND=MS,…", type=_latencies, default={},
        help="time until the store answers a kind of request, such as PUT=40,GET=25,HEAD=15,LIST=60; default: 0",
    )  # fmt: skip


def _latencies(text: str) -> dict[str, int]:
    """The type of milliseconds by kind of request."""
    found: dict[str, int] = {}
    for word in text.split(","):
        kind, _, milliseconds = word.partition("=")
        if kind not in KINDS:
            raise ArgumentTypeError(f"{word!r} does not begin with a kind of request: {', '.join(KINDS)}")
        found[kind] = whole_number(0)(milliseconds)
    return found


def _controller(command: ArgumentParser) -> None:
    _number(command, "--partitions", 1, 10_000, "partitions of three replicas")
    _number(command, "--brokers", REPLICAS, 5, f"brokers, {REPLICAS} or more")
    _cluster_roots(command)


def _cluster_roots(command: ArgumentParser) -> None:
    command.add_argument(
        "--cluster-roots", metavar="N,N", type=whole_numbers(1), default=[1],
        help="numbers of cluster roots, such as 1,3; default: 1",
    )  # fmt: skip


def _maintenance(command: ArgumentParser) -> None:
    _number(command, "--small-files", 100, 2_000, "files that are compacted")
    _number(command, "--commits", 100, 10_000, "commits")
    _number(command, "--sends", 2, 60, "sends of 1 MB without compaction, and as many beside it")


def _scale(command: ArgumentParser) -> None:
    _number(command, "--most", 10, 10_000, "largest number of partitions, topics, brokers, files and commits")
    _quick(command)


def _all(command: ArgumentParser) -> None:
    _quick(command)
    command.add_argument(
        "--only", metavar="WHAT,WHAT", type=_suites, default=_suites(), help="these alone; default: all of them"
    )


def _suites(text: str = "") -> list[str]:
    """Some benchmarks by name; all of them without names."""
    known = [name for name in _COMMANDS if name not in ("kafka", "all")]  # kafka needs a registry, and its client
    unknown = [name for name in text.split(",") if text and name not in known]
    if unknown:
        raise ArgumentTypeError(f"there is no benchmark {unknown[0]!r}; name some of {', '.join(known)}")
    return text.split(",") if text else known


def _number(command: ArgumentParser, flag: str, least: int, default: int, words: str) -> None:
    number = whole_number(least)
    command.add_argument(flag, metavar="N", type=number, default=default, help=f"{words}; default: {default}")


_COMMANDS: dict[str, tuple[str, Callable[[ArgumentParser], None]]] = {
    "replication": ("compare a follower with a plain Delta-to-Delta stream", _replication),
    "produce": ("time sends with acks=all, beside plain appends to a Delta table", _rounds),
    "read": ("time reads of a topic, beside reads of a plain Delta table", _rounds),
    "idle": ("measure the cores that an idle cluster uses", _idle),
    "processes": ("time the start and the sends of brokers in processes of their own", _processes),
    "requests": ("count the requests of a cluster in an object store", _requests),
    "controller": ("time the controller: start, loss of a broker, shutdown of one", _controller),
    "maintenance": ("time compaction of small files, and thousands of commits on one log", _maintenance),
    "scale": ("show how the time of one change grows with partitions, topics, brokers, files and commits", _scale),
    "kafka": ("compare sends and reads with those of a real Kafka, which Spark's resolver fetches", _quick),
    "all": ("run all benchmarks but kafka, and write their figures to one file", _all),
}


def replication(args: argparse.Namespace) -> int:
    """Measures a follower against a plain stream, or with several numbers of workers. Returns the exit status."""
    differ = "a follower does not have the rows of its leader"
    if args.workers:
        catch_ups = measure_workers(workers_plan(args.workers, args.quick))
        wrong = None if catch_ups.rows_equal else differ
        return _report(args, workers_figures(catch_ups), workers_rows(catch_ups), wrong=wrong)
    with _session() as spark:
        results = measure(spark, QUICK if args.quick else replace(Plan(), rounds=args.rounds, seconds=args.seconds))
    for reduction in results.reductions:
        say(f"lakelog: measured {reduction}")
    found = figures(results)
    wrong = None if found["rows_equal"] else f"{differ}: {found.get('rows_differ_in')}"
    return _report(args, found, rows(results), wrong=wrong)


def produce(args: argparse.Namespace) -> int:
    """Measures acknowledged sends. Returns the exit status."""
    with _session() as spark:
        found = measure_produce(spark, QUICK_SENDS if args.quick else replace(ProducePlan(), rounds=args.rounds))
    differ = "the committed records are not the records that were sent"
    return _report(args, produce_figures(found), produce_rows(found), wrong=None if found.rows_equal else differ)


def read(args: argparse.Namespace) -> int:
    """Measures reads of a topic. Returns the exit status."""
    with _session() as spark:
        found = measure_read(spark, QUICK_READ if args.quick else replace(ReadPlan(), rounds=args.rounds))
    differ = "a read does not have the rows of the plain table"
    return _report(args, read_figures(found), read_rows(found), wrong=None if found.rows_equal else differ)


def idle(args: argparse.Namespace) -> int:
    """Measures a cluster that does nothing. Returns the exit status."""
    with _session() as spark:
        found = measure_idle(spark, args.seconds)
    return _report(args, idle_figures(found), idle_rows(found))


def processes(args: argparse.Namespace) -> int:
    """Measures a cluster of processes. Returns the exit status."""
    found = measure_processes(args.sends, args.seconds)
    differ = "the committed records are not the records that were sent"
    return _report(args, processes_figures(found), processes_rows(found), wrong=None if found.rows_equal else differ)


def requests(args: argparse.Namespace) -> int:
    """Counts the requests of clusters in an object store. Returns the exit status."""
    interval = args.poll_interval_ms
    configs = {} if interval is None else {"lakelog.poll.interval.ms": interval}
    plan = RequestsPlan(
        args.brokers, args.partitions, args.controllers, args.seconds, args.sends, configs, args.latencies,
        args.cluster_roots,
    )  # fmt: skip
    with _session() as spark:
        found = measure_requests(spark, plan)
    differ = "the committed records are not the records that were sent"
    wrong = None if all(each.rows_equal for each in found) else differ
    return _report(args, requests_figures(found), requests_rows(found), wrong=wrong)


def controller(args: argparse.Namespace) -> int:
    """Measures the controller alone. Returns the exit status."""
    steps = measure_controller(args.partitions, args.brokers, args.cluster_roots)
    found = controller_figures(steps, args.partitions, args.brokers)
    wrong = f"the controller decided wrongly: {found.get('wrong')}"
    return _report(args, found, controller_rows(steps), wrong=None if found["outcome_is_right"] else wrong)


def maintenance(args: argparse.Namespace) -> int:
    """Measures maintenance of a log: compaction, and the time of commits over thousands of them. Returns the exit
    status."""
    with _session() as spark:
        found = measure_maintenance(spark, args.small_files, args.commits, args.sends)
    differ = "a log does not have its earlier rows, or the rows of its leader"
    return _report(
        args, maintenance_figures(found), maintenance_rows(found), wrong=None if found.rows_equal else differ
    )


def scale(args: argparse.Namespace) -> int:
    """Measures how times grow. Returns the exit status."""
    found = measure_scale(QUICK_SCALE if args.quick else ScalePlan().up_to(args.most))
    return _report(args, scale_figures(found), *scale_tables(found))


def kafka(args: argparse.Namespace) -> int:
    """Measures Lakelog beside Kafka. Returns the exit status."""
    found = measure_beside_kafka(QUICK_KAFKA if args.quick else KafkaPlan())
    differ = "a cluster does not have the records that were sent to it, in order"
    return _report(args, kafka_figures(found), kafka_rows(found), wrong=None if found.rows_equal else differ)


def all_suites(args: argparse.Namespace) -> int:
    """Runs all benchmarks. Returns the exit status: 1 if one has failed."""
    found = run_suites(args.only, args.quick, say)
    status = _report(args, suites_figures(found), suites_rows(found))
    return FAILED if any(suite.error for suite in found) else status


COMMANDS = {
    "all": all_suites,
    "replication": replication,
    "produce": produce,
    "read": read,
    "idle": idle,
    "processes": processes,
    "requests": requests,
    "controller": controller,
    "maintenance": maintenance,
    "scale": scale,
    "kafka": kafka,
}


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = job_session("lakelog bench")
    try:
        yield spark
    finally:
        spark.stop()


def _report(
    args: argparse.Namespace, found: Mapping[str, object], *tables: Sequence[Row], wrong: str | None = None
) -> int:  # fmt: skip
    """Writes the figures to the file, and shows them unless something is wrong: then the times mean nothing."""
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if wrong is not None:
        say(f"lakelog: {wrong}")
        return FAILED
    for number, table in enumerate(tables):
        if number:
            print()
        Report(table).show()
    return OK


# The suites in their order: the arguments of a quick run, and the figures of the summary.
SUITES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "replication": (("--quick",), ("throughput_vs_plain_stream", "latency_vs_plain_stream", "time_vs_file_copy")),
    "produce": (("--quick",), ("first_send_ms", "small_send_ms", "small_send_core_seconds", "in_flight_mb_per_s")),
    "read": (
        ("--quick",),
        (
            "read_vs_plain_delta",
            "tail_s",
            "source_batch_vs_plain_delta",
            "source_stream_vs_plain_stream",
            "consumer_mb_per_s",
        ),
    ),
    "idle": (("--seconds", "1"), ("session_cores", "cluster_cores")),
    "processes": (
        ("--sends", "2", "--seconds", "1"),
        ("start_seconds", "small_send_ms", "small_send_core_seconds", "idle_cores"),
    ),
    "requests": (
        ("--seconds", "1", "--sends", "1"),
        ("most_idle_per_second", "most_idle_dollars_a_month", "most_per_send"),
    ),
    "controller": (("--partitions", "60"), ("longest_seconds", "commits")),
    "scale": (("--quick",), ("largest_growth", "action_that_grows_most")),
    "maintenance": (
        ("--small-files", "100", "--commits", "100", "--sends", "2"),
        ("files_after_compaction", "end_vs_start", "sends"),
    ),
}


@dataclass(frozen=True)
class Suite:
    """The result of one suite: its figures, or why there are none. `seconds`: the duration of the whole suite."""

    name: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


def run_suites(names: Sequence[str], is_quick: bool, say: Callable[[str], None]) -> list[Suite]:
    """Runs suites, with a line for each as it begins and ends."""
    found = []
    for number, name in enumerate(names, 1):
        say(f"{number} of {len(names)}: {name} …")
        suite = _run(name, SUITES[name][0] if is_quick else ())
        say(f"{number} of {len(names)}: {name}: {suite.error or 'done'}, {suite.seconds:.0f} s")
        found.append(suite)
    return found


def _run(name: str, flags: Sequence[str]) -> Suite:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-all-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "lakelog.jobs", "bench", name, *flags, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.perf_counter() - started
        figures = json.loads(out.read_text()) if out.exists() else {}
    if done.returncode == 0 and figures:
        return Suite(name, seconds, figures)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it wrote no figures"]
    return Suite(name, seconds, figures, f"exit status {done.returncode}: {lines[-1][:_LAST_WORDS]}")


def suites_figures(found: Sequence[Suite]) -> dict[str, object]:
    """One object a suite, and the machine that they ran on."""
    suites = {suite.name: _figures(suite) for suite in found}
    return {"suites": suites, **circumstances()}


def _figures(suite: Suite) -> dict[str, object]:
    error = {} if suite.error is None else {"error": suite.error}
    return {**error, "suite_seconds": round(suite.seconds, 1), **suite.figures}


def suites_rows(found: Sequence[Suite]) -> list[Row]:
    """The summary: the main figures of each suite, or its error."""
    return [row for suite in found for row in _rows(suite)]


def _rows(suite: Suite) -> list[Row]:
    if suite.error is not None:
        return [{"suite": suite.name, "figure": "error", "value": suite.error}]
    known = [name for name in SUITES[suite.name][1] if name in suite.figures]
    return [
        {"suite": suite.name, "figure": name.replace("_", " "), "value": _text(suite.figures[name])} for name in known
    ] or [{"suite": suite.name, "figure": "seconds of the suite", "value": f"{suite.seconds:.0f}"}]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return str(value)
