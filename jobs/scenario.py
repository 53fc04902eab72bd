"""`lakelog scenario`: runs event scripts, YAML files that say what happens to a cluster and what must be seen of it.

Exit status 0 if every step came out as its script says, 1 if not, 2 for a script that cannot be run.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from lakelog.jobs.cli.console import FAILED, OK, parser_of, run, say
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.scenarios.report import Report, write_json
from lakelog.jobs.scenarios.script import Script, ScriptError, read_script

_UNREADABLE, _SIMULATED = 2, "simulated"


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_told()
    parser = parser_of("scenario", __doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="scripts; each runs on a cluster of its own")
    modes = (
        "embedded (the default): all servers in one Spark session; processes: each server a process; "
        "simulated: all servers in memory, without Spark, by a simulated clock"
    )
    parser.add_argument("--mode", choices=["embedded", "processes", _SIMULATED], default="embedded", help=modes)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON: an object for one script, else a list")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave each cluster in DIR/<name of its file>")
    return run(parser, partial(_scenario, parser), argv)


def _scenario(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """All scripts are read before the first one runs."""
    if args.keep and args.mode == _SIMULATED:
        parser.error(f"--keep: nothing of --mode {_SIMULATED} can be kept, its clusters lie in memory")
    try:
        return _run([read_script(path) for path in args.files], args)
    except ScriptError as error:
        say(f"lakelog: {error}")
        return _UNREADABLE


def _run(scripts: list[Script], args: argparse.Namespace) -> int:
    from lakelog.jobs.scenarios.run import clusters_of, run_script  # Spark is not needed to find a fault in a script

    report, results = Report(), []
    with clusters_of(args.mode) as make:
        for script in scripts:
            report.begins(script)
            results.append(run_script(make, script, args.keep and args.keep / Path(script.path).stem, report.step))
    report.ends(results)
    if args.out:
        write_json(args.out, results)
    return OK if all(result.ok for result in results) else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
