"""Shows the brokers that have registered, and whether they are alive; or unregisters one that is gone for good.

`cordoned` brokers (`configs --add-config cordoned.log.dirs=*`) get no new replica; the table has the column once there
is one.
`state` is alive, stopping, stopped, dead, storage error, or unknown if no heartbeat can be written.
`heartbeat_age_s` is the time since the last heartbeat, by the clock of the store that holds the cluster's root. If that
exceeds broker.session.timeout.ms, the command waits and reads again: a broker without a new heartbeat is dead. A broker
that refuses the cluster root sends no heartbeat either; a line before the table names it. If the brokers have another
broker.session.timeout.ms than the default, give it in the --command-config file.
"""

import argparse

from lakelog.jobs.admin.cluster_notes import read_notes
from lakelog.jobs.admin.cluster_status import refusals
from lakelog.jobs.admin.heartbeats import SILENT, UNKNOWN, SeenBroker, observe_brokers, unwritable
from lakelog.jobs.cli.console import OK, Report, Row, add_all, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import FORMS, add_dry_run, admin_client, admin_parser
from lakelog.jobs.cli.outcomes import show_outcomes
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.assignment import cordoned_brokers
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.root_identity import describe_brokers_beside

_COLUMNS = ("broker", "state", "heartbeat_age_s", "root", "storage_error")


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _brokers(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("brokers", __doc__, FORMS)
    add_all(parser)
    parser.add_argument(
        "--unregister", type=whole_number(0), metavar="ID",
        help="remove the registration and the settings of a broker that is stopped and has no replica",
    )  # fmt: skip
    add_dry_run(parser)
    return parser


def _brokers(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.unregister is not None:
        return _unregister(args)
    if args.dry_run:
        parser.error("--dry-run goes with --unregister only")
    return _show(args)


def _unregister(args: argparse.Namespace) -> int:
    admin = admin_client(args, "brokers")
    message = admin.unregister_broker(args.unregister, validate_only=args.dry_run)
    return show_outcomes("broker", {str(args.unregister): Outcome(None, message)}, args)


def _show(args: argparse.Namespace) -> int:
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    seen = observe_brokers(cluster)
    if not seen:
        beside = describe_brokers_beside(cluster.root)
        say(f"No broker has registered at {args.cluster}{beside and f', and {beside}'}.")
    silent = {number: broker.registration for number, broker in seen.items() if broker.state in SILENT}
    for refusal in refusals(read_notes(cluster, silent).refused):
        say(f"{refusal[0].upper()}{refusal[1:]}. `lakelog status` says what to do.")
    if any(broker.state == UNKNOWN for broker in seen.values()):
        say(f"Brokers may run: {unwritable(cluster.root)}.")
    cluster.configs.refresh()
    cordoned = cordoned_brokers(cluster.configs.configs, seen)
    columns = (*_COLUMNS, "cordoned") if cordoned else _COLUMNS
    rows = [_row(broker, number in cordoned) for number, broker in seen.items()]
    Report(rows, () if args.all else columns).show(args.output)
    return OK


def _row(broker: SeenBroker, is_cordoned: bool) -> Row:
    registration = broker.registration
    return {
        "broker": registration.broker_id,
        "state": broker.state,
        "cordoned": is_cordoned,
        "heartbeat_age_s": round(broker.age, 1),
        "root": registration.root,
        "rack": registration.rack,
        "epoch": registration.broker_epoch,
        "heartbeat": registration.heartbeat,
        "metadata_version": registration.metadata_version,
        "shutting_down": registration.shutting_down,
        "storage_error": registration.storage_error,
        "offline_partitions": list(registration.offline_partitions),
        "leader_replication_rate": registration.leader_replication_rate,
        "leader_replication_quota": registration.leader_replication_quota,
        "follower_replication_rate": registration.follower_replication_rate,
        "follower_replication_quota": registration.follower_replication_quota,
        "divergences": registration.divergences,
    }
