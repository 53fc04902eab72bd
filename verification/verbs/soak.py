"""Runs brokers, controllers and clients as processes, and makes things fail at random: it kills and freezes processes,
breaks roots, and moves partitions. Then it checks every record.

Exit status 0 if every fault was carried out, no acknowledged record was lost or doubled, readers got each record once
and in order, and all replicas are equal at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lakelog.jobs.cli.console import FAILED, OK, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.output_paths import empty_folder, out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.verification.faults.soak_plan import KINDS, STORED, kinds_of
from lakelog.verification.faults.soak_run import SoakPlan, run_soak, show_figures


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_signalled()
    parser = make_parser()
    return run(parser, lambda args: _soak(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("soak", __doc__)
    parser.add_argument("--minutes", type=whole_number(1), default=40, metavar="N", help="least time; default: 40")
    parser.add_argument("--faults", type=whole_number(1), default=100, metavar="N", help="how many; default: 100")
    kinds = f"kinds of faults, in turn: some of {', '.join(KINDS)}; default: all"
    parser.add_argument("--kinds", type=kinds_of, default=tuple(KINDS), metavar="KIND,KIND", help=kinds)
    parser.add_argument(
        "--store", choices=STORED, default="mixed",
        help="where the roots are: mixed: broker 3's in an object store, the others on the disk; s3: each root, the "
        "cluster's too, in an object store of its own, run on the loopback; disks: each on an ext4 file system of its "
        "own, with storage.fsync=true, where power cuts are real and may hit all at once (needs the right to mount); "
        "default: mixed",
    )  # fmt: skip
    roots = "roots of the cluster: of several, one at a time is lost; with --store disks they are folders; default: 1"
    parser.add_argument("--cluster-roots", type=int, choices=(1, 3, 5), default=1, help=roots)
    seed = whole_number(0, MAX_OFFSET)
    parser.add_argument("--seed", type=seed, metavar="S", help="seed of all random choices; default: a new one")
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument("--keep", type=empty_folder, metavar="DIR", help="use this empty folder, and keep it")
    return parser


def _soak(parser: VerbParser, args: argparse.Namespace) -> int:
    try:
        SoakPlan(args.minutes * 60, args.faults, 0, args.kinds, args.store, args.cluster_roots).planned()
    except ValueError as error:
        return parser.error(f"--kinds {','.join(args.kinds)} and --store {args.store}: {error}")

    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    folder = args.keep or Path(tempfile.mkdtemp(prefix="lakelog-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}, in {folder}")
    plan = SoakPlan(args.minutes * 60, args.faults, seed, args.kinds, args.store, args.cluster_roots)
    with SoakProgress(args.faults) as progress:
        figures = run_soak(folder, plan, progress)
    show_figures(figures)
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["ok"] and not args.keep:  # a failed run leaves its folder for a search
        shutil.rmtree(folder)
    return OK if figures["ok"] else FAILED


class SoakProgress:
    """A bar on stderr: the faults so far, of `total`, and as its last step the recovery after them."""

    def __init__(self, total: int) -> None:
        counts = (TextColumn("{task.completed} faults"), TextColumn("{task.fields[acknowledged]} acknowledged"))
        self._progress = Progress(
            BarColumn(), *counts, TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
        )
        self._task = self._progress.add_task("", total=total + 1, acknowledged=0)

    def __enter__(self) -> SoakProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None:
        """Shows the present fault, and the numbers of faults and of acknowledged records."""
        self._progress.update(self._task, description=description, completed=completed, acknowledged=acknowledged)
