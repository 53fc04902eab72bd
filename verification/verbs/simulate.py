"""Runs random histories in memory, full of crashes, pauses, zombies and lost answers, and checks each one. Then it
disables each rule in turn (a sabotage), and confirms that a check fails. If only very few histories show a sabotage, it
begins with a seed that is known to show it. The column "first seed" has the seed with which each sabotage began.

Tier rules runs the rules and rounds of the protocol over records in memory. Tier stack runs the clients, the brokers
without Spark, the controllers and the storage, over a store in memory that refuses, hangs, loses and delays. Tier
quorum runs the consensus of three or five cluster roots over stores that are also emptied, restored, and become copies
of each other. Before its histories it runs through every interleaving of a few processes on one version of a table.
Tier cluster-roots is tier stack with three cluster roots, one of which is away, hangs, fails, or is lost and replaced.
"""

import argparse
import json
import sys

from lakelog.jobs.cli.console import FAILED, OK, Report, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.output_paths import out_file
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.verification.simulation.tiers import TIERS, figures, simulate


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _simulate, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("simulate", __doc__)
    parser.add_argument("--tier", choices=list(TIERS), default="rules", help="see above; default: rules")
    parser.add_argument("--seeds", type=whole_number(1), required=True, metavar="N", help="how many histories to run")
    seed = whole_number(0, MAX_OFFSET)
    parser.add_argument("--seed", type=seed, default=1, metavar="S", help="seed of the first history; default: 1")
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write the figures to this file, as JSON")
    return parser


def _simulate(args: argparse.Namespace) -> int:
    tier = TIERS[args.tier]()
    say(
        f"Runs {args.seeds} histories, then {len(tier.sabotages)} sabotages, each with up to {tier.sabotage_seeds} "
        "histories until a check catches it. This takes minutes."
    )
    with counting_bar(sys.stderr.isatty()) as progress:
        totals = {"explorations": len(tier.explorations), "histories": args.seeds, "sabotages": len(tier.sabotages)}
        bars = {what: progress.add_task(what, total=total) for what, total in totals.items() if total}
        result = simulate(args.seeds, args.seed, lambda what: progress.advance(bars[what]), tier)
    for found in result.found:
        say("\n".join(found.lines()))
    facts = figures(result)
    caught = [
        {"sabotage": s.what, "caught by": s.invariant, "first seed": s.first_seed, "histories": s.histories}
        for s in result.sabotages
    ]
    if result.explored:
        Report([{"every interleaving of": e.what, "states": e.states, "interleavings": e.interleavings,
                 "violation": e.violation} for e in result.explored]).show()  # fmt: skip
    Report(caught).show()
    Report([{"figure": name, "value": value} for name, value in facts.items() if not isinstance(value, list)]).show()
    if args.out:
        args.out.write_text(json.dumps(facts, indent=2) + "\n")
    return OK if result.is_good else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
