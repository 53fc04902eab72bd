"""`lakelog format`: makes the root of a cluster, or of a broker of that cluster, and prints the cluster's id."""

import argparse

from lakelog.jobs.cli.console import OK, parser_of, run, say
from lakelog.jobs.cli.settings import broker_id, settings
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _format(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("format", __doc__)
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    parser.add_argument("--broker-id", type=broker_id, metavar="N", help="make the root of this broker")
    parser.add_argument("--root", metavar="URI", help="root of the broker")
    parser.add_argument("--config", metavar="FILE", help="server.properties: settings, and credentials of the roots")
    return parser


def _format(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.broker_id is None) != (args.root is None):
        parser.error("--broker-id and --root go together")
    print(_format_cluster(args) if args.root is None else _format_broker(args))
    return OK


def _format_cluster(args: argparse.Namespace) -> str:
    config = settings(args.config)
    root = storage_root(args.cluster, "cluster", config)
    cluster_id = format_cluster(root, config)
    say(f"{root.uri} is the root of a new cluster")
    return cluster_id


def _format_broker(args: argparse.Namespace) -> str:
    cluster = Cluster.open(args.cluster, settings(args.config))
    root = cluster.storage_of(args.broker_id, args.root)
    format_broker(root, cluster.cluster_id, args.broker_id)
    say(f"{root.uri} is the root of broker {args.broker_id}")
    return cluster.cluster_id
