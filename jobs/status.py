"""Shows the health of a cluster on one screen: controller, brokers, partitions, lag, problems.

The exit status is for monitors: 0 if nothing is wrong, 1 if something is, 2 for wrong usage. Notes do not change it.
They name partitions at min ISR, reassignments and throttles: read them before you stop a broker. It only reads tables,
so that it answers without a controller too. If a heartbeat of a broker or the controller is old, it reads them again
3 seconds later. If they have other session time-outs than the defaults, give these in the --command-config file.
"""

import argparse

from lakelog.jobs.admin.cluster_notes import read_notes
from lakelog.jobs.admin.cluster_status import (
    ROOT_COLUMNS,
    ClusterState,
    Problem,
    broker_figures,
    controller_row,
    known_partitions,
    line_of,
    notes,
    problems,
    root_row,
    summary,
)
from lakelog.jobs.admin.heartbeats import SILENT, observe, unwritable
from lakelog.jobs.admin.published_rows import published_rows
from lakelog.jobs.admin.reassignment_throttle import REPLICAS
from lakelog.jobs.cli.console import FAILED, JSON, OK, Report, run
from lakelog.jobs.cli.options import FORMS, Invocation, admin_parser
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.root_identity import describe_brokers_beside


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), status, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    return admin_parser("status", __doc__, FORMS)


def status(args: argparse.Namespace) -> int:
    """Prints the health of the cluster; FAILED if something is wrong. It only reads tables, and sends no request."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    state = cluster_state(cluster)
    invocation = Invocation.of(args.cluster, cluster.root.uri, args.command_config)
    found, known = problems(state, invocation), notes(state, invocation)
    if args.output == JSON:
        Report(value=_object(cluster, state, found, known)).show(JSON)
    else:
        _print(cluster, state, found, known)
    return FAILED if found else OK


def cluster_state(cluster: Cluster) -> ClusterState:
    """Reads what a cluster is judged by. It waits for half a session if a heartbeat is old. Raises
    KafkaStorageException."""
    brokers, controller = observe(cluster)
    cluster.topics.refresh()
    cluster.metadata.refresh()
    rows = {b: published_rows(cluster, seen.registration) for b, seen in brokers.items() if seen.state not in SILENT}
    refused = read_notes(cluster, {broker: seen.registration for broker, seen in brokers.items()}).refused
    others = "" if brokers else describe_brokers_beside(cluster.root)
    return ClusterState(
        controller, brokers, known_partitions(cluster), rows, _throttled(cluster), unwritable(cluster.root), refused,
        others, RootChanges(cluster).describe() if isinstance(cluster.root, QuorumRoot) else (),
    )  # fmt: skip


def _throttled(cluster: Cluster) -> list[str]:
    topics = [topic for topic in cluster.topics.topics.values() if not topic.deleting]
    return sorted(topic.topic for topic in topics if any(topic.configs.get(name) for name in REPLICAS))


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
