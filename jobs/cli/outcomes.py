"""The outcomes of a request: rows on stdout in the forms table and JSON, words on stderr."""

import argparse

from lakelog.jobs.cli.console import FAILED, OK, TEXT, Report, Row, say
from lakelog.replication.clients.admin import Outcomes
from lakelog.replication.protocol.admin_request import Outcome


def show_outcomes(what: str, outcomes: Outcomes, args: argparse.Namespace) -> int:
    """The outcome of each topic or partition, and the status: FAILED if any was refused."""
    Report(outcome_rows(what, outcomes, args.dry_run), text=()).show(args.output)
    return say_outcomes(outcomes, args)


def say_outcomes(outcomes: Outcomes, args: argparse.Namespace) -> int:
    """Prints each refusal to stderr, and in text form each outcome. Returns the status."""
    if args.dry_run:
        say("Nothing was written. This is what would be done.")
    for name, outcome in outcomes.items():
        if outcome.error is not None:
            say_refused(name, outcome)
        elif args.output == TEXT:
            say(f"{name}: {outcome.message}")
    return FAILED if any(outcome.error for outcome in outcomes.values()) else OK


def say_refused(name: str, outcome: Outcome) -> None:
    """The error's name in Kafka, what it is about, and why."""
    is_named = name in outcome.message.replace(":", " ").split()
    message = outcome.message if is_named else f"{name}: {outcome.message}"
    say(f"lakelog: {outcome.error}: {message}")


def outcome_rows(what: str, outcomes: Outcomes, dry_run: bool) -> list[Row]:
    """A row for each; `what` is the name of the first column."""
    return [
        {what: name, "error": outcome.error, "message": outcome.message, "dry_run": dry_run}
        for name, outcome in outcomes.items()
    ]
