"""The arguments of `lakelog bench`: the benchmark and its size."""

from __future__ import annotations

from lakelog.jobs.benchmark.controller import REPLICAS
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.out_file import out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of


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
    for command in (replication, produce, idle, controller, maintenance):
        command.add_argument("--out", metavar="FILE", type=out_file, help="write all figures to this file, as JSON")
    return bench
