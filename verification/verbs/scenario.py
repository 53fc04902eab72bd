"""Runs event scripts: YAML files with events for a cluster, and the state that each event must lead to.

Exit status 0 if every step had the outcome that its script expects, 1 if not, 2 if a script cannot be run.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from lakelog.jobs.cli.console import run, say
from lakelog.jobs.cli.output_paths import out_file
from lakelog.jobs.cli.root_names import add_store
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.verification.scenarios.script import ScriptError, read_script

_UNREADABLE, _SIMULATED = 2, "simulated"
_NOT_SIMULATED = "several cluster roots need --mode embedded or processes"
_IN_MEMORY = "it needs --mode embedded or processes; simulated clusters lie in memory"


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_signalled()
    parser = make_parser()
    return run(parser, partial(_scenario, parser), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("scenario", __doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="scripts; each runs on a cluster of its own")
    modes = (
        "embedded: all servers in one Spark session; processes: each server in a process; "
        "simulated: all servers in memory, without Spark; default: embedded"
    )
    parser.add_argument("--mode", choices=["embedded", "processes", _SIMULATED], default="embedded", help=modes)
    add_store(parser, default=None, default_in_words="the store that a script needs, or disk")
    roots = "roots of each cluster whose script does not say how many it needs; default: 1"
    parser.add_argument("--cluster-roots", type=int, choices=(1, 3, 5), default=1, help=roots)
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write JSON: an object, or a list of them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave each cluster in DIR/<name of its script>")
    return parser


def _scenario(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """All scripts are read before the first one runs."""
    is_simulated = args.mode == _SIMULATED
    if args.keep and is_simulated:
        parser.error(f"--keep: nothing of --mode {_SIMULATED} can be kept, its clusters lie in memory")
    if args.cluster_roots > 1 and is_simulated:
        parser.error(f"--cluster-roots {args.cluster_roots}: {_NOT_SIMULATED}")
    if args.store and is_simulated:
        parser.error(f"--store {args.store}: {_IN_MEMORY}")
    try:
        scripts = [read_script(path) for path in args.files]
    except ScriptError as error:
        say(f"lakelog: {error}")
        return _UNREADABLE
    for script in scripts:
        if is_simulated and script.has_several_roots:
            parser.error(f"{script.path} has several cluster roots: {_NOT_SIMULATED}")
        if is_simulated and script.store:
            parser.error(f"{script.path} has store: {script.store}: {_IN_MEMORY}")
        if args.store and script.store not in (None, args.store):
            parser.error(f"--store {args.store}: {script.path} has store: {script.store}; leave out one of them")
    from lakelog.verification.scenarios.run import run_all  # Spark is not needed to find a fault in a script

    return run_all(scripts, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
