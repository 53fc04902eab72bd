"""The arguments of `lakelog bench`: the benchmark and its size."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from lakelog.jobs.benchmark.controller import REPLICAS
from lakelog.jobs.cli.numbers import whole_number, whole_numbers
from lakelog.jobs.cli.out_file import out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of

Commands: TypeAlias = "argparse._SubParsersAction[VerbParser]"


def parser(description: str | None) -> VerbParser:
    """A command for each benchmark."""
    bench = parser_of("bench", description)
    commands = bench.add_subparsers(dest="what", required=True, metavar="WHAT", help="one of the following")
    replication = commands.add_parser(
        "replication", help="compare a follower with a plain Delta-to-Delta stream", allow_abbrev=False
    )
    produce = commands.add_parser(
        "produce", help="time sends with acks=all, beside plain appends to a Delta table", allow_abbrev=False
    )
    for command in (replication, produce):
        command.add_argument("--rounds", metavar="N", type=whole_number(1), default=5, help="rounds; default: 5")
        command.add_argument(
            "--quick", action="store_true", help="run one round of few records; its times mean nothing"
        )
    idle = commands.add_parser("idle", help="measure the cores that an idle cluster uses", allow_abbrev=False)
    idle.add_argument(
        "--seconds", metavar="N", type=whole_number(1), default=30, help="seconds of each measurement; default: 30"
    )
    requests = _requests(commands, bench)
    controller = commands.add_parser(
        "controller", help="time the controller: start, loss of a broker, shutdown of one", allow_abbrev=False
    )
    controller.add_argument(
        "--partitions",
        metavar="N",
        type=whole_number(1),
        default=10_000,
        help="of three replicas; default: 10000",
    )
    controller.add_argument(
        "--brokers",
        metavar="N",
        type=whole_number(REPLICAS),
        default=5,
        help=f"{REPLICAS} or more; default: 5",
    )
    maintenance = commands.add_parser(
        "maintenance", help="time compaction of small files, and thousands of commits on one log", allow_abbrev=False
    )
    maintenance.add_argument(
        "--files", metavar="N", type=whole_number(100), default=2_000, help="small files; default: 2000"
    )
    maintenance.add_argument(
        "--commits", metavar="N", type=whole_number(100), default=10_000, help="commits; default: 10000"
    )
    for command in (replication, produce, idle, requests, controller, maintenance):
        command.add_argument("--out", metavar="FILE", type=out_file, help="write all figures to this file, as JSON")
    return bench


def _requests(commands: Commands, bench: VerbParser) -> VerbParser:
    requests = commands.add_parser(
        "requests",
        help="count the requests of a cluster in an object store",
        formatter_class=bench.formatter_class,
        allow_abbrev=False,
    )
    for name, what in (
        ("--brokers", "numbers of brokers, such as 1,3"),
        ("--partitions", "numbers of partitions, such as 3,30"),
    ):
        requests.add_argument(name, metavar="N,N", type=whole_numbers(1), default=[3], help=f"{what}; default: 3")
    for name, default, what in (
        ("--controllers", 1, "controllers in the same session"),
        ("--seconds", 60, "seconds in which the requests of the idle cluster are counted"),
        ("--sends", 10, "acknowledged sends of one record a partition"),
    ):
        requests.add_argument(
            name, metavar="N", type=whole_number(1), default=default, help=f"{what}; default: {default}"
        )
    requests.add_argument(
        "--poll-interval-ms", metavar="MS", type=whole_number(1),
        help="lakelog.poll.interval.ms of brokers, controllers and producer; default: 50",
    )  # fmt: skip
    return requests
