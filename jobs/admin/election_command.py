"""What `lakelog leader-election` says. Kafka: `LeaderElectionCommand`."""

import argparse

from lakelog.jobs.cli.console import FAILED, OK, say
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.replication.clients.admin import Outcomes
from lakelog.replication.errors import ElectionNotNeededException


def say_elected(outcomes: Outcomes, args: argparse.Namespace) -> int:
    """The status, with Kafka's sentences: FAILED if any was refused; where nobody need be elected is no failure."""
    done = [name for name, outcome in outcomes.items() if outcome.error is None]
    needless = [name for name, outcome in outcomes.items() if outcome.error == ElectionNotNeededException.__name__]
    refused = {name: outcome for name, outcome in outcomes.items() if name not in (*done, *needless)}
    if done:
        begin = "Nothing was written. Would complete" if args.dry_run else "Successfully completed"
        say(f"{begin} leader election ({args.election_type.upper()}) for partitions {', '.join(done)}")
    if needless:
        say(f"Valid replica already elected for partitions {', '.join(needless)}")
    if not outcomes:
        say("No partition needs an election")
    for name, outcome in refused.items():
        say_refused(name, outcome)
    return FAILED if refused else OK
