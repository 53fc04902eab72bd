"""Shows the health of a cluster on one screen: controller, brokers, partitions, lag, problems.

The exit status is for monitors: 0 if nothing is wrong, 1 if something is, 2 for wrong usage. Notes do not change it.
They name partitions at min ISR, reassignments, cordoned brokers, throttles, and settings that only a newer version
knows: read them before you stop a broker. It only reads tables, so that it answers without a controller too. If a
heartbeat of a broker or the controller is old, it reads them again 3 seconds later. If they have other session
time-outs than the defaults, give these in the --command-config file.

With -o html the answer is one page, to keep or to send: it has the style of the console, and needs no server.

With --follow it runs until Ctrl-C, and prints each problem that begins or ends. With --webhook it also posts these as
JSON to a URL, with a field `text` that Slack, Teams and Mattermost show. It posts again until it is told that it was
received. After a restart it posts the problems that there are once more.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

from lakelog.jobs.admin.cluster_status import (
    ROOT_COLUMNS,
    ClusterState,
    Problem,
    broker_figures,
    controller_row,
    cordons,
    known_partitions,
    line_of,
    notes,
    problems,
    root_row,
    summary,
    with_warnings,
)
from lakelog.jobs.admin.heartbeats import SILENT, observe
from lakelog.jobs.admin.problem_alerts import (
    UNREADABLE,
    ProblemChange,
    ProblemPosts,
    ProblemWatch,
    Webhook,
    change_lines,
    change_object,
    webhook_url,
)
from lakelog.jobs.admin.published_rows import published_rows
from lakelog.jobs.cli.console import FAILED, HTML, JSON, OK, Lines, Report, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import FORMS, Invocation, admin_parser
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.times import local_time
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import until_signalled, wait_until
from lakelog.jobs.web.status_page import StatusPage
from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.root_changes import RootChanges

WEBHOOK_VARIABLE = "LAKELOG_WEBHOOK"
_DAY = 86_400


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _status(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("status", __doc__, (*FORMS, HTML))
    parser.add_argument("--follow", action="store_true", help="go on with problems as they begin and end")
    parser.add_argument(
        "--webhook", type=webhook_url, metavar="URL",
        help="with --follow: post them to this URL, too; other users of the machine can read it in the list of "
        f"processes; default: {WEBHOOK_VARIABLE} of the environment, and none without it",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=whole_number(1, _DAY), default=30, metavar="SECONDS",
        help="with --follow: time between two polls; default: 30",
    )  # fmt: skip
    parser.add_argument(
        "--for", type=whole_number(0, _DAY), default=60, metavar="SECONDS", dest="least_seconds",
        help="with --follow: how long a problem must have lasted before it is told; default: 60",
    )  # fmt: skip
    return parser


def _status(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.follow:
        if args.output == HTML:
            return parser.error(f"-o {HTML} shows one moment: it does not go with --follow")
        return _follow(args, _webhook(parser, args))
    for name, dest in (("--webhook", "webhook"), ("--interval", "interval"), ("--for", "least_seconds")):
        if getattr(args, dest) != parser.get_default(dest):
            return parser.error(f"{name} goes with --follow only")
    return status(args)


def _webhook(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Webhook | None:
    if args.webhook is not None:
        return Webhook(args.webhook)
    try:
        given = os.environ.get(WEBHOOK_VARIABLE)
        return Webhook(webhook_url(given)) if given else None
    except argparse.ArgumentTypeError as error:
        return parser.error(f"{WEBHOOK_VARIABLE} of the environment: {error}")


def status(args: argparse.Namespace) -> int:
    """Prints the health of the cluster; FAILED if something is wrong. It only reads tables, and sends no request."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    state = cluster_state(cluster)
    invocation = Invocation.of(args.cluster, cluster.root.uri, args.command_config)
    found, known = problems(state, invocation), notes(state, invocation)
    if args.output == JSON:
        Report(value=_object(cluster, state, found, known)).show(JSON)
    elif args.output == HTML:
        print(StatusPage(cluster.root.uri, time.time(), state, found, known).html(), end="")
    else:
        _print(cluster, state, found, known)
    return FAILED if found else OK


class _ClusterPolls:
    """Polls a cluster again and again, with the same tables open."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises as `Cluster.open`: a cluster that is not there at the start is a wrong option."""
        self._args = args
        self._cluster: Cluster | None = self._open()
        self.uri = self._cluster.root.uri if self._cluster else args.cluster

    def _open(self) -> Cluster:
        return Cluster.open(self._args.cluster, settings(self._args.command_config))

    def poll(self) -> tuple[list[Problem], bool]:
        """The problems, and whether they are all there are: not if the cluster cannot be read."""
        try:
            self._cluster = self._cluster or self._open()
            invocation = Invocation.of(self._args.cluster, self.uri, self._args.command_config)
            return problems(cluster_state(self._cluster), invocation), True
        except (LakelogException, OSError) as error:
            self._cluster = None  # the next poll opens it anew
            do = "check that the cluster root is there, and that this machine may read it"
            return [Problem(f"{UNREADABLE}{' '.join(str(error).split())}", (), do)], False


def _follow(args: argparse.Namespace, webhook: Webhook | None) -> int:
    """Tells what begins and ends until a signal comes."""
    polls = _ClusterPolls(args)
    printed = ProblemWatch(args.least_seconds)
    posted = ProblemPosts(webhook, polls.uri, args.least_seconds) if webhook else None
    to = f", and posts them to {webhook.name}" if webhook else ""
    say(f"lakelog: follows the problems of {polls.uri}{to}")
    with until_signalled() as is_stopped:
        while not is_stopped():
            next_at = time.monotonic() + args.interval
            found, is_whole = polls.poll()
            printed.look(found, is_whole)
            if (change := printed.change()) is not None:
                _print_change(change, polls.uri, args.output)
                printed.note_reported(change)
            if posted is not None:
                posted.watch.look(found, is_whole)
                posted.post_until(next_at, is_stopped)
            _wait(is_stopped, next_at)
    return OK


def _wait(is_stopped: Callable[[], bool], until: float) -> None:
    wait_until(lambda: is_stopped() or time.monotonic() >= until)


def _print_change(change: ProblemChange, uri: str, output: str) -> None:
    now = time.time()
    if output == JSON:
        Lines([json.dumps(change_object(uri, change, now))]).show()
    else:
        Lines([local_time(now), *change_lines(change)]).show()


def cluster_state(cluster: Cluster) -> ClusterState:
    """Reads what a cluster is judged by. It waits for half a session if a heartbeat is old. Raises
    KafkaStorageException."""
    brokers, controller = observe(cluster)
    for table in (cluster.topics, cluster.metadata, cluster.configs):
        table.refresh()
    rows = {b: published_rows(cluster, seen.registration) for b, seen in brokers.items() if seen.state not in SILENT}
    roots = RootChanges(cluster).describe() if isinstance(cluster.root, QuorumRoot) else ()
    state = ClusterState(
        controller, brokers, known_partitions(cluster), rows, roots=roots, cordoned=cordons(cluster)
    )  # fmt: skip
    return with_warnings(cluster, state)


def _object(cluster: Cluster, state: ClusterState, found: list[Problem], known: list[Problem]) -> dict[str, object]:
    """All of it, with the names of all partitions."""
    return {
        "ok": not found,
        "cluster": cluster.root.uri,
        "controller": controller_row(state.controller),
        "brokers": [figures._asdict() for figures in broker_figures(state)],
        "partitions": len(state.partitions),
        **({"roots": [root_row(root) for root in state.roots]} if state.roots else {}),
        "problems": [problem._asdict() for problem in found],
        "notes": [note._asdict() for note in known],
    }


def _print(cluster: Cluster, state: ClusterState, found: list[Problem], known: list[Problem]) -> None:
    for name, words in {"cluster": cluster.root.uri, **summary(state)}.items():
        print(f"{name:<12}{words}")
    print()
    if state.roots:
        Report([root_row(root) for root in state.roots], ROOT_COLUMNS).show()
        print()
    if state.brokers:
        Report([figures._asdict() for figures in broker_figures(state)]).show()
        print()
    print(f"Problems: {len(found)}" if found else "Nothing is wrong.")
    for problem in found:
        print(f"- {line_of(problem)}\n  To do: {problem.do}.")
    if known:
        print(f"\nNotes: {len(known)}")
    for note in known:
        print(f"- {line_of(note)}\n  {note.do[0].upper() if note.do[0] != '`' else '`'}{note.do[1:]}.")
