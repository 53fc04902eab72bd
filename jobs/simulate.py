"""`lakelog simulate`: what ships, in memory, under crashes, pauses, zombies and lost answers.

Tier `rules` (the default) has the protocol's rules and rounds over records in memory. Tier `stack` has the clients, the
brokers without Spark, the controllers and storage over files in memory. That store refuses, hangs, loses and delays.
"""

import argparse
import json
import sys
from pathlib import Path

from lakelog.jobs.cli.console import FAILED, OK, parser_of, run, say, show
from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.simulation.report import figures, simulate
from lakelog.replication.simulation.tiers import TIERS


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), _simulate, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("simulate", __doc__)
    parser.add_argument("--tier", choices=list(TIERS), default="rules", help="what is simulated; default: rules")
    parser.add_argument("--seeds", type=_count, required=True, metavar="N", help="run so many histories")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the first history; default: 1")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of histories: it is 1 or more")
    return int(text)


def _simulate(args: argparse.Namespace) -> int:
    tier = TIERS[args.tier]()
    with counting_bar(sys.stderr.isatty()) as progress:
        bars = {"histories": progress.add_task("histories", total=args.seeds),
                "sabotages": progress.add_task("sabotages", total=len(tier.sabotages))}  # fmt: skip
        result = simulate(args.seeds, args.seed, lambda what: progress.advance(bars[what]), tier)
    for found in result.found:
        say("\n".join(found.lines()))
    facts = figures(result)
    show([{"sabotage": s.what, "caught by": s.invariant, "histories": s.histories} for s in result.sabotages])
    show([{"figure": name, "value": value} for name, value in facts.items() if not isinstance(value, list)])
    if args.out:
        args.out.write_text(json.dumps(facts, indent=2) + "\n")
    return OK if result.is_good else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
