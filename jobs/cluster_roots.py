"""Shows the roots of a cluster, of which a majority decides; replaces a lost one, adds two, or removes two.

The cluster runs on meanwhile, also one that has one root and gets two more. A new root learns all tables before it
votes. A root that was lost, emptied, restored or copied may have forgotten votes, so it does not vote until --replace
has made it anew. In an object store that takes 10 s more: for so long processes rely on what they have read there. A
command that was interrupted is finished by the same command. Afterwards give the new list to processes that you start;
those that run find the roots.
"""

import argparse
import sys

from lakelog.jobs.admin.cluster_status import ROOT_COLUMNS, root_row
from lakelog.jobs.cli.console import FAILED, OK, TABLE, Report, run, say
from lakelog.jobs.cli.options import FORMS, admin_parser
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, root_uri
from lakelog.jobs.format import say_which_are_lost_together
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import SIZES, RootChanges, RootStatus


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _cluster_roots, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("cluster-roots", __doc__, FORMS)
    group = parser.add_argument_group("actions, of which at most one is given").add_mutually_exclusive_group()
    group.add_argument(
        "--describe", action="store_true",
        help="show whether each root votes, and how many commits it is behind; the default",
    )  # fmt: skip
    group.add_argument(
        "--replace", type=root_uri, nargs=2, metavar=("OLD", "NEW"),
        help="make a root at NEW and let it vote in place of OLD; NEW may be the place of OLD, and what is left of OLD "
        "there is deleted",
    )  # fmt: skip
    group.add_argument(
        "--add", type=root_uri, nargs=2, metavar=("URI", "URI"), help="let two more roots vote, three or five in all"
    )
    group.add_argument(
        "--remove", type=root_uri, nargs=2, metavar=("URI", "URI"), help="let two of five roots vote no more"
    )
    return parser


def _cluster_roots(args: argparse.Namespace) -> int:
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    is_change = args.replace or args.add or args.remove
    if is_change:
        _change(args, cluster)
    found = RootChanges(cluster).describe()
    if is_change and args.output == TABLE:
        say_which_are_lost_together([StorageRoot.of(root.uri) for root in found if root.has_vote])
    return _show(found, args.output)


def _change(args: argparse.Namespace, cluster: Cluster) -> None:
    with counting_bar(sys.stderr.isatty()) as progress:
        task = progress.add_task("tables", total=None)
        roots = RootChanges(cluster, lambda done, tables: progress.update(task, completed=done, total=tables))
        if args.replace:
            has_changed = roots.replace(*args.replace)
        else:
            has_changed = roots.add(args.add) if args.add else roots.remove(args.remove)
    if not has_changed:
        say("Nothing was left to do: the roots of the cluster are so already.")


def _show(found: list[RootStatus], output: str) -> int:
    rows = [root_row(each) for each in found]
    Report(rows, ROOT_COLUMNS).show(output)
    voting = [each.uri for each in found if each.has_vote]
    if output == TABLE and len(voting) in SIZES and not any(each.error for each in found):
        say(f"Give processes that you start --cluster {','.join(voting)}")
    return FAILED if any(each.error for each in found) else OK
