"""`lakelog brokers`: the brokers that have registered. A heartbeat that does not move is that of a dead one."""

import argparse

from lakelog.jobs.cli.console import OK, Row, run, show
from lakelog.jobs.cli.options import FORMS, admin_client, admin_parser
from lakelog.replication.protocol.broker_registration import BrokerRegistration


def main(argv: list[str]) -> int:
    """The verb."""
    return run(admin_parser("brokers", __doc__, FORMS), _brokers, argv)


def _brokers(args: argparse.Namespace) -> int:
    found = admin_client(args, "brokers").describe_brokers()
    show([_row(registration) for registration in found.values()], args.output)
    return OK


def _row(registration: BrokerRegistration) -> Row:
    return {
        "broker": registration.broker_id,
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
