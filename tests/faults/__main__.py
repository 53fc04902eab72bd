"""Runs of the random test under many seeds, `python -m tests.faults --seeds 1000 --jobs 2`: names those that failed."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.faults.check import STEPS
from tests.faults.runs import run_one

_TOLD = 20  # a line each time so many runs are done


def main() -> int:
    """How many seeds failed, as an exit code of 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="so many runs")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first run")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="steps with faults in each run")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many processes at once")
    args = parser.parse_args()
    jobs, failed, begun = [(args.first + n, args.steps) for n in range(args.seeds)], [], time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for done, (seed, error) in enumerate(pool.imap_unordered(run_one, jobs), start=1):
            if error is not None:
                failed.append(seed)
                print(f"seed {seed}: {error}", flush=True)
            if done % _TOLD == 0 or done == args.seeds:
                print(f"{done} runs, {len(failed)} failed, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"failed: {', '.join(map(str, sorted(failed))) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
