"""Writes a backup of a cluster root to one file: topics, settings, group offsets, named producers and metadata.

The records are not in it: they are in the roots of the brokers. The cluster may run. A file that is there is not
replaced. `lakelog recover --backup FILE` uses the file beside the copies that the brokers' roots have.
"""

import argparse

from lakelog.jobs.cli.console import OK, run, say
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.cluster_backup import take_backup
from lakelog.schemas import GROUPS, METADATA, TOPICS


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _backup, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("backup", __doc__)
    add_cluster(parser)
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the file to write, such as /backups/cluster.tar.gz"
    )
    add_command_config(parser, "settings of the cluster, and credentials of the root")
    return parser


def _backup(args: argparse.Namespace) -> int:
    backup = take_backup(Cluster.open(args.cluster, settings(args.command_config)), args.out)
    topics, partitions, offsets = (len(backup.tables[table.name].rows) for table in (TOPICS, METADATA, GROUPS))
    say(f"{args.out} is a backup of cluster {backup.cluster_id}: {topics} topics, {partitions} partitions, {offsets} "
        "offsets of groups")  # fmt: skip
    return OK
