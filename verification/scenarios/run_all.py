"""Runs the scripts of a command line one after the other, and reports them."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from lakelog.jobs.cli.console import FAILED, OK
from lakelog.verification.scenarios.report import Report, write_json
from lakelog.verification.scenarios.run import clusters_of, run_script
from lakelog.verification.scenarios.script import Script


def run_all(scripts: Iterable[Script], args: argparse.Namespace) -> int:
    """FAILED if a step of any script came out otherwise than it says."""
    report, results = Report(), []
    with clusters_of(args.mode, args.store) as make:
        for script in scripts:
            report.begins(script)
            keep = args.keep and args.keep / Path(script.path).stem
            results.append(run_script(make, script, keep, report.step))
    report.ends(results)
    if args.out:
        write_json(args.out, results)
    return OK if all(result.ok for result in results) else FAILED
