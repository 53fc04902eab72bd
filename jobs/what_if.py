"""Shows what becomes of a cluster if brokers die or stop, or if roots are lost. It changes nothing.

It lets the controller's own rules decide on what the tables say now: who leads then, who is in sync, which partitions
are offline or under min ISR, and which acknowledged records no broker has that is left. The worst come first. It only
reads tables, so that it answers without a controller too. Settings that the tables do not have, such as session
time-outs and unclean.leader.election.enable of the controllers, are those of the --command-config file.

--at asks as of an earlier time. The tables keep an hour of history, and on a disk 500 heartbeats, which are 16 minutes:
an earlier time is refused. With --at it also refuses a cluster with several roots: their heartbeats have no history.

The exit status: 0 if nothing goes offline or under min ISR, no committed record is at risk, and a majority of the
cluster roots is left; 1 otherwise, and after an error; 2 for wrong usage. A problem of before does not change it,
unless a loss makes it worse: the records of a partition that is offline are lost with their last root.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn

from lakelog.jobs.admin.cluster_snapshot import ClusterSnapshot, snapshot_at, snapshot_now
from lakelog.jobs.admin.heartbeats import Wait
from lakelog.jobs.admin.loss_report import LossReport, VotingRoots, as_object, show
from lakelog.jobs.admin.prediction import Forecast, Loss
from lakelog.jobs.admin.published_rows import Rows
from lakelog.jobs.cli.console import FAILED, JSON, OK, Report, run
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import FORMS, admin_parser
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.times import past_time
from lakelog.jobs.cli.verb_parser import VerbParser, root_uri
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.errors import BrokerNotAvailableException, InvalidRequestException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.root_identity import lies_in


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _what_if(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("what-if", __doc__, FORMS)
    group = parser.add_argument_group("losses, of which at least one is given")
    group.add_argument("--kill", type=whole_numbers(0), default=[], metavar="1,2", help="these brokers are killed")
    group.add_argument("--kill-rack", metavar="RACK", help="all brokers of a rack are killed")
    group.add_argument(
        "--stop", type=whole_numbers(0), default=[], metavar="1,2", help="these brokers are shut down in order"
    )
    group.add_argument(
        "--lose-root", type=root_uri, metavar="URI",
        help="this bucket or folder is lost, with all roots of brokers and of the cluster that lie in it",
    )  # fmt: skip
    group.add_argument(
        "--cluster-root", type=root_uri, action="append", default=[], metavar="URI",
        help="this cluster root is lost; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--at", type=past_time, metavar="TIME",
        help="ask as of an earlier time, such as 2025-01-31T12:00:00 in UTC unless it has a zone, or ms since 1970; "
        "default: now",
    )  # fmt: skip
    return parser


def _what_if(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if not (args.kill or args.kill_rack is not None or args.stop or args.lose_root or args.cluster_root):
        parser.error("what is lost? Give --kill, --kill-rack, --stop, --lose-root or --cluster-root")
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    question = LossQuestion(args.kill, args.kill_rack, args.stop, args.lose_root, args.cluster_root)
    report = predicted(cluster, question, args.at, parser.error)
    if args.output == JSON:
        Report(value=as_object(report)).show(JSON)
    else:
        show(report)
    return OK if report.is_harmless else FAILED


class LossQuestion(NamedTuple):
    """The loss, by the options of the verb."""

    kill: Sequence[int] = ()
    kill_rack: str | None = None
    stop: Sequence[int] = ()
    lose_root: str | None = None
    cluster_root: Sequence[str] = ()


def predicted(
    cluster: Cluster, asked: LossQuestion, at: float | None, refuse: Callable[[str], NoReturn], wait: Wait = let_pass,
    known_rows: Mapping[int, Rows] | None = None,
) -> LossReport:  # fmt: skip
    """The effects of a loss. `at`: as of an earlier time, in seconds since the epoch. `refuse` is called with why the
    question contradicts itself. `wait`: see `snapshot_now`. `known_rows`: rows of brokers that were just read.

    Raises BrokerNotAvailableException if the question names no broker that has registered, InvalidRequestException if
    it names no root of the cluster, and what `snapshot_at` raises.
    """
    roots, past = _roots(cluster, asked), None if at is None else snapshot_at(cluster, at)
    known = cluster.refresh_brokers() if past is None else {b: seen.registration for b, seen in past.brokers.items()}
    loss = _loss(asked, known, roots)
    if both := loss.killed & loss.stopped:
        refuse(f"broker {min(both)} is both killed and stopped: it can only be one of the two")
    return _predicted(cluster, past or snapshot_now(cluster, wait), loss, roots, known_rows or {})


def _predicted(
    cluster: Cluster, snapshot: ClusterSnapshot, loss: Loss, roots: VotingRoots, known: Mapping[int, Rows]
) -> LossReport:
    forecast, brokers = Forecast(snapshot.context, loss), snapshot.brokers
    wanted = sorted(forecast.brokers_with_rows & brokers.keys())
    read = snapshot.rows_of(brokers[broker].registration for broker in wanted if broker not in known)
    rows = {broker: known[broker] if broker in known else read[broker] for broker in wanted}
    return LossReport(cluster, snapshot, roots, forecast, forecast.changes(rows), rows)


def _roots(cluster: Cluster, asked: LossQuestion) -> VotingRoots:
    """Raises InvalidRequestException if --cluster-root names none of the cluster's roots."""
    if isinstance(cluster.root, QuorumRoot):
        found = [root for root in RootChanges(cluster).describe() if root.counts]
        voting, silent = tuple(root.uri for root in found), frozenset(root.uri for root in found if root.error)
    else:
        voting, silent = (cluster.root.uri,), frozenset[str]()
    lost = set[str]()
    for given in asked.cluster_root:
        uri = StorageRoot.of(given).uri
        if not (here := {root for root in voting if lies_in(root, uri) and lies_in(uri, root)}):
            raise InvalidRequestException(
                f"--cluster-root: {uri} is no root of the cluster; there are: {_list(voting)}"
            )
        lost |= here
    if asked.lose_root:
        lost |= {root for root in voting if lies_in(root, StorageRoot.of(asked.lose_root).uri)}
    return VotingRoots(voting, silent, frozenset(lost))


def _loss(asked: LossQuestion, brokers: Mapping[int, BrokerRegistration], roots: VotingRoots) -> Loss:
    """Raises BrokerNotAvailableException if an option names no broker that has registered."""
    for option, given in (("--kill", asked.kill), ("--stop", asked.stop)):
        for broker in given:
            if broker not in brokers:
                raise BrokerNotAvailableException(
                    f"{option}: broker {broker} has not registered; there are: {_list(brokers)}"
                )
    in_rack, emptied = set[int](), set[int]()
    if asked.kill_rack is not None:
        in_rack = {broker for broker, found in brokers.items() if found.rack == asked.kill_rack}
        if not in_rack:
            racks = sorted({found.rack for found in brokers.values() if found.rack is not None})
            raise BrokerNotAvailableException(
                f"--kill-rack: no broker is in rack {asked.kill_rack}; there are: {_list(racks)}"
            )
    if asked.lose_root:
        folder = StorageRoot.of(asked.lose_root).uri
        emptied = {broker for broker, found in brokers.items() if lies_in(found.root, folder)}
        if not emptied and not roots.lost:
            there = [*roots.voting, *(found.root for found in brokers.values())]
            raise BrokerNotAvailableException(f"--lose-root: no root lies in {folder}; there are: {_list(there)}")
    killed = frozenset({*asked.kill, *in_rack, *emptied})
    return Loss(killed, frozenset(asked.stop), frozenset(emptied), roots.left >= roots.needed)


def _list(names: Collection[object]) -> str:
    return ", ".join(map(str, names)) or "none"
