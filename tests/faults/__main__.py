"""Runs of the random test under many seeds: `python -m tests.faults --seeds 1000`. Names the seeds that failed."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tests.faults.check import STEPS, run

_IN_MEMORY = Path("/dev/shm")


def main() -> int:
    """How many seeds failed, as an exit code of 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="so many runs")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first run")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="steps with faults in each run")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    console, failed = Console(), []
    for seed in track(range(args.first, args.first + args.seeds), "Runs", console=console):
        with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
            try:
                run(folder, seed, args.steps)
            except Exception as error:  # whatever it is, the seed is to be known, and the other runs go on
                failed.append(seed)
                console.print(f"seed {seed}: {type(error).__name__}: {error}", soft_wrap=True)
    console.print(f"{args.seeds} runs, {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
