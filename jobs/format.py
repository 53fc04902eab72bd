"""Makes the root of a cluster, or the root of a broker of that cluster, and prints the id of the cluster.

A root must be empty, and may not lie in another root. A root that belongs to another cluster or broker is refused, and
so is a second root for a broker that is at work.
"""

import argparse

from lakelog.jobs.admin.heartbeats import ALIVE, observe_brokers
from lakelog.jobs.cli.console import OK, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of, root_uri
from lakelog.replication.errors import DuplicateBrokerRegistrationException
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _format(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("format", __doc__)
    add_cluster(parser)
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="make the root of this broker")
    parser.add_argument(
        "--root", type=root_uri, metavar="URI", help="root of the broker, such as /lake/broker-1 or s3://bucket/b1"
    )
    add_command_config(parser, "settings of the cluster, and credentials of the roots")
    return parser


def _format(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.broker_id is None) != (args.root is None):
        parser.error("--broker-id and --root go together")
    print(_format_cluster(args) if args.root is None else _format_broker(args))
    return OK


def _format_cluster(args: argparse.Namespace) -> str:
    config = settings(args.command_config)
    root = storage_root(args.cluster, "cluster", config)
    cluster_id = format_cluster(root, config)
    say(f"{root.uri} is the root of a new cluster")
    return cluster_id


def _format_broker(args: argparse.Namespace) -> str:
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    _check_is_not_at_work(cluster, args.broker_id, args.root)
    root = cluster.format_broker(args.broker_id, args.root)
    say(f"{root.uri} is the root of broker {args.broker_id}")
    return cluster.cluster_id


def _check_is_not_at_work(cluster: Cluster, broker_id: int, uri: str) -> None:
    """A broker may get a new root when it is down, or when its root fails; one that works has a root.

    Raises DuplicateBrokerRegistrationException.
    """
    registered, root = cluster.refresh_brokers().get(broker_id), cluster.storage_of(broker_id, uri)
    if registered is None or registered.root == root.uri:
        return
    if observe_brokers(cluster, only=[broker_id])[broker_id].state == ALIVE:
        raise DuplicateBrokerRegistrationException(
            f"{root.uri}: broker {broker_id} is at work at {registered.root}; stop it before you make another root for "
            "it, or use another id"
        )
