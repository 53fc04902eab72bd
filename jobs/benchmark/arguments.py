"""The arguments of `lakelog bench`: the benchmark and its size."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from lakelog.jobs.benchmark.controller import REPLICAS
from lakelog.jobs.cli.console import parser_of


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with one subcommand for each benchmark."""
    bench = parser_of("bench", description)
    commands = bench.add_subparsers(dest="what", required=True, metavar="WHAT")
    replication = commands.add_parser(
        "replication", help="compare a follower with a plain Delta-to-Delta stream", allow_abbrev=False
    )
    replication.add_argument(
        "--rounds", metavar="N", type=_number_from(1), default=5, help="number of rounds; default: 5"
    )
    replication.add_argument(
        "--quick", action="store_true", help="run one round of few records, to check that the benchmark works"
    )
    controller = commands.add_parser(
        "controller",
        help="measure the controller alone: start-up, loss of a broker, controlled shutdown",
        allow_abbrev=False,
    )
    controller.add_argument(
        "--partitions",
        metavar="N",
        type=_number_from(1),
        default=10_000,
        help="number of partitions, with three replicas each; default: 10000",
    )
    controller.add_argument(
        "--brokers",
        metavar="N",
        type=_number_from(REPLICAS),
        default=5,
        help=f"number of brokers, {REPLICAS} or more; default: 5",
    )
    maintenance = commands.add_parser(
        "maintenance", help="measure compaction of small files, and thousands of commits on one log", allow_abbrev=False
    )
    maintenance.add_argument(
        "--files", metavar="N", type=_number_from(100), default=2_000, help="number of small files; default: 2000"
    )
    maintenance.add_argument(
        "--commits", metavar="N", type=_number_from(100), default=10_000, help="number of commits; default: 10000"
    )
    for command in (replication, controller, maintenance):
        command.add_argument("--out", metavar="FILE", type=Path, help="write all figures to this file, as JSON")
    return bench


def _number_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r}: it must be a whole number, {least} or more")
        return int(text)

    return number
