"""The common part of fault tests as verbs: a seed, a folder that is kept after a failure, and figures."""

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lakelog.jobs.cli.console import FAILED, OK, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.output_paths import empty_folder, out_file

Figures = Mapping[str, Any]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """--seed, --out and --keep."""
    seed = whole_number(0, MAX_OFFSET)
    parser.add_argument("--seed", type=seed, metavar="S", help="seed of all random choices; default: a new one")
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument("--keep", type=empty_folder, metavar="DIR", help="use this empty folder, and keep it")


def run_seeded(
    args: argparse.Namespace, verb: str, work: Callable[[Path, int], Figures], show_figures: Callable[[Figures], None]
) -> int:
    """Runs `work` in a folder under a seed and shows its figures. Returns OK if the figures are ok, otherwise FAILED.
    It keeps the folder of a failed run."""
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    folder = args.keep or Path(tempfile.mkdtemp(prefix=f"lakelog-{verb}-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}, in {folder}")
    figures = work(folder, seed)
    show_figures(figures)
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["ok"] and not args.keep:
        shutil.rmtree(folder)
    return OK if figures["ok"] else FAILED
