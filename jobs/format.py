"""Makes the root of a cluster, or the root of a broker of that cluster, and prints the id of the cluster.

A root must be empty, and may not lie in another root. A root that belongs to another cluster or broker is refused, and
so is a second root for a broker that is at work. An unmounted folder is empty, too: so a cluster root is refused where
the folders broker-N beside it belong to a cluster, and on a terminal the command asks before it makes a cluster.
"""

import argparse
from collections.abc import Sequence
from itertools import combinations

from lakelog.jobs.admin.heartbeats import ALIVE, observe_brokers
from lakelog.jobs.cli.console import FAILED, OK, confirm, is_interactive, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of, root_uri
from lakelog.replication.errors import DuplicateBrokerRegistrationException
from lakelog.replication.storage.cluster import Cluster, check_may_format, format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_new, is_formatted, share_a_store


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
    parser.add_argument("--dry-run", action="store_true", help="check whether the root can be made, and write nothing")
    parser.add_argument(
        "--new-cluster", action="store_true",
        help="make a new cluster although brokers' roots of another one lie beside it, and without a question",
    )  # fmt: skip
    add_command_config(parser, "settings of the cluster, and credentials of the roots")
    return parser


def _format(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.broker_id is None) != (args.root is None):
        parser.error("--broker-id and --root go together")
    made = make_cluster(args) if args.root is None else make_broker(args)
    if made:
        print(made)
    return OK if made or args.dry_run else FAILED


def say_which_are_lost_together(roots: Sequence[StorageRoot]) -> None:
    """Warns of cluster roots that share a disk or a bucket."""
    for first, second in combinations(roots, 2):
        if share_a_store(first, second):
            say(f"lakelog: {first.uri} and {second.uri} are on one device or in one bucket, so they are lost together")


def make_cluster(args: argparse.Namespace) -> str:
    """Makes the root of a cluster; its id, empty if none was made.

    Raises InconsistentClusterIdException if brokers' roots beside it belong to another cluster: its root may only be
    unmounted. On a terminal it asks first.
    """
    config = settings(args.command_config)
    root = storage_root(args.cluster, "cluster", config)
    if not args.new_cluster:
        check_may_format(root)
    say_which_are_lost_together(root.parts)
    if args.dry_run:
        check_new(root)
        say(f"{root.uri} would become the root of a new cluster; nothing is written")
        return ""
    if not (args.new_cluster or _confirms(f"Make a new, empty cluster at {root.uri}? It has no topics and no brokers")):
        say(f"{root.uri}: nothing is written")
        return ""
    cluster_id = format_cluster(root, config)
    say(f"{root.uri} is the root of a new cluster")
    return cluster_id


def _confirms(question: str) -> bool:
    """Whether a person at a terminal confirms it. A script is not asked: True."""
    return confirm(f"{question}.") if is_interactive() else True


def make_broker(args: argparse.Namespace) -> str:
    """Makes the root of a broker; the id of its cluster. Raises DuplicateBrokerRegistrationException."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    _check_is_not_at_work(cluster, args.broker_id, args.root)
    root = cluster.format_broker(args.broker_id, args.root, args.dry_run)
    becomes = "would become" if args.dry_run and not is_formatted(root) else "is"
    say(f"{root.uri} {becomes} the root of broker {args.broker_id}")
    return cluster.cluster_id


def _check_is_not_at_work(cluster: Cluster, broker_id: int, uri: str) -> None:
    """A broker may get a new root when it is down, or when its root fails; one that works has a root. A folder that is
    a root already, also by another name such as a link, gets none: whose it is decides.

    Raises DuplicateBrokerRegistrationException.
    """
    root = cluster.storage_of(broker_id, uri)
    registered = None if is_formatted(root) else cluster.refresh_brokers().get(broker_id)
    if registered is None or registered.root == root.uri:
        return
    if observe_brokers(cluster, only=[broker_id])[broker_id].state == ALIVE:
        raise DuplicateBrokerRegistrationException(
            f"{root.uri}: broker {broker_id} is at work at {registered.root}; stop it before you make another root for "
            "it, or use another id"
        )
