"""The arguments of `lakelog bench`: the benchmark and its size."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from itertools import pairwise

from lakelog.jobs.cli.numbers import whole_number, whole_numbers
from lakelog.jobs.cli.out_file import out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.verification.bench.controller import REPLICAS
from lakelog.verification.bench.counting_store import KINDS


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


def _maintenance(command: ArgumentParser) -> None:
    _number(command, "--files", 100, 2_000, "small files")
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
    known = [name for name in _COMMANDS if name != "all"]
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
    "all": ("run all benchmarks, and write their figures to one file", _all),
}
