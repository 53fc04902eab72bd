"""Checks what a cluster depends on, before production and when something is odd: a line for each check.

It probes each root of the cluster: what this process may do there, whether the store keeps the promises on which
commits depend, how fast it is, whether its clock is right, and which rules of its bucket it tells of. It checks the
versions of packages, Java, the disks of this machine, and what `status` says. --roots checks roots before `format`
makes them. It writes to a folder of its own in each root, and removes that at the end. With --spark it also starts a
Spark session, and asks its executors.

The exit status is for monitors: 0 if nothing is wrong, 1 if something is, 2 for wrong usage. Warnings do not change it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby

from lakelog.jobs.admin import doctor_probes
from lakelog.jobs.admin.cluster_status import Problem, line_of, notes, problems
from lakelog.jobs.admin.doctor_findings import (
    ANY_ROLE,
    BROKER_KIND,
    CLUSTER_KIND,
    NEEDS,
    OKAY,
    OWN_KIND,
    ROLES,
    WARNING,
    WRONG,
    ClusterSize,
    Finding,
    Limits,
    clock_finding,
    cost_finding,
    disk_finding,
    executor_findings,
    format_finding,
    jar_finding,
    java_finding,
    not_checked,
    package_findings,
    root_findings,
    status_finding,
)
from lakelog.jobs.admin.doctor_probes import WriterClock
from lakelog.jobs.cli.console import FAILED, JSON, OK, Report, run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import FORMS, Invocation, admin_parser
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, root_uri
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.jobs.status import cluster_state
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster, storage_root
from lakelog.replication.storage.store_probe import Disk, StoreProbe
from lakelog.schemas import OLDEST_FORMAT, QUORUM_FORMAT

# Each URI but the first begins with a slash or a scheme, so the name of a folder may have a comma.
_SEPARATOR = re.compile(r"\s*,\s*(?=(?:\d+=)?(?:/|[a-z][a-z0-9]*://)|$)")
_NUMBERED = re.compile(r"(\d{1,9})=(.*)", re.DOTALL)

_SECONDS = 30
_CONTROLLERS = 2  # one that is active, and one that stands by; standby controllers are in no table
_RECENT_SECONDS = 3600.0  # an older commit may be that of a copied table, whose files are newer
_CLUSTER, _MACHINE, _SPARK = "the cluster", "this machine", "Spark"


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_signalled()
    parser = make_parser()
    return run(parser, lambda args: _doctor(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("doctor", __doc__, FORMS)
    parser.add_argument(
        "--roots", type=_roots, nargs="+", dest="instead_of_cluster", metavar="[N=]URI",
        help="check these roots, before a cluster is made of them, in place of those of a cluster; such as "
        "s3://bucket/cluster, or with the id of a broker, whose credentials are used, 1=s3://bucket/b1",
    )  # fmt: skip
    parser.add_argument(
        "--role", choices=ROLES, default=ANY_ROLE,
        help="what the process with these credentials is for: rights that it lacks are wrong, and those that it has "
        f"beyond that a warning; default: {ANY_ROLE}, which needs everything",
    )  # fmt: skip
    parser.add_argument(
        "--spark", action="store_true",
        help="start a Spark session with the options of spark-submit, and check the Python and packages of executors",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=whole_number(1, 3600), default=_SECONDS, metavar="SECONDS",
        help=f"wait so long for roots that do not answer; default: {_SECONDS}",
    )  # fmt: skip
    return parser


def _roots(text: str) -> list[tuple[int | None, str]]:
    """A type of argparse: URIs of roots with commas between them, each maybe after the id of its broker."""
    uris = [each for each in _SEPARATOR.split(text) if each]
    if not uris:
        raise argparse.ArgumentTypeError(f"{text!r} names no root")
    return [_numbered(each) for each in uris]


def _numbered(text: str) -> tuple[int | None, str]:
    found = _NUMBERED.fullmatch(text)
    if found and not found[2]:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a URI comes after the id of the broker, such as {found[1]}=s3://bucket/b{found[1]}"
        )
    return (int(found[1]), root_uri(found[2])) if found else (None, root_uri(text))


def _check_roots(parser: argparse.ArgumentParser, roots: Iterable[tuple[int | None, str]]) -> None:
    """Ends the process as one that was called wrongly if a broker has two roots, or if a root is there twice."""
    uris: set[str] = set()
    of_broker: dict[int, str] = {}
    for broker, uri in roots:
        if uri in uris:
            parser.error(f"--roots: {uri} is there twice")
        if broker is not None and of_broker.setdefault(broker, uri) != uri:
            parser.error(f"--roots: broker {broker} has two roots, {of_broker[broker]} and {uri}")
        uris.add(uri)


@dataclass
class _Examined:
    """A root to probe, whose it is, and what kind of root it is to this process."""

    subject: str
    kind: str
    probe: StoreProbe


@dataclass
class _ClusterFacts:
    """The findings of threads about the cluster; None where a thread has not ended."""

    error: str | None = None
    cluster: Cluster | None = None
    problems: Sequence[Problem] | None = None
    notes: Sequence[Problem] = ()
    status_error: str | None = None
    clocks: Mapping[str, WriterClock] = field(default_factory=dict)


def _doctor(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    config = settings(args.command_config)
    if args.instead_of_cluster and args.cluster != parser.get_default("cluster"):
        parser.error("--roots: it does not go with --cluster, whose roots are those that it has")
    _check_roots(parser, chain.from_iterable(args.instead_of_cluster or ()))
    with counting_bar(sys.stderr.isatty()) as progress:
        task = progress.add_task("checking", total=None)
        checkup = _Checkup(args, config, lambda: progress.advance(task))
        checkup.examine(lambda total: progress.update(task, total=total))
    found = [*checkup.findings(), *_of_this_machine(checkup.limits)]
    if args.spark:
        found += _of_executors()
    _show(found, checkup.not_checked, args)
    return FAILED if any(each.result == WRONG for each in found) else OK


class _Checkup:
    """The roots and the cluster."""

    def __init__(self, args: argparse.Namespace, config: Config, advance: Callable[[], object]) -> None:
        self._args, self._config, self._advance = args, config, advance
        self._facts = _ClusterFacts()
        self._roots: list[_Examined] = []
        self.limits = Limits.of(config.with_sessions(is_local=True))

    def examine(self, say_how_much: Callable[[int], object]) -> None:
        """Opens the cluster, if there is one, and probes all roots side by side."""
        args, facts = self._args, self._facts
        if args.instead_of_cluster:
            self._roots = [self._given(number, uri) for each in args.instead_of_cluster for number, uri in each]
            is_local = all(each.probe.facts.is_local for each in self._roots)
            self.limits = Limits.of(self._config.with_sessions(is_local))
        else:
            self._bounded([doctor_probes.Work(self._open)])
            self._roots = self._of_the_cluster()
            if facts.cluster is not None:
                self.limits = Limits.of(facts.cluster.config)
        work = [doctor_probes.probe_work(each.probe) for each in self._roots]
        if facts.cluster is not None:
            work += [doctor_probes.Work(partial(ask, facts.cluster)) for ask in (self._ask_status, self._read_clocks)]
        say_how_much(len(work))
        self._bounded(work, self._advance)

    def _bounded(self, work: Sequence[doctor_probes.Work], advance: Callable[[], object] = lambda: None) -> None:
        doctor_probes.run_in_parallel(work, self._args.timeout, advance)

    def _open(self) -> None:
        try:
            cluster = Cluster.open(self._args.cluster, self._config)
            cluster.refresh_brokers()
            self._facts.cluster = cluster
        except LakelogException as error:
            self._facts.error = f"{error.name}: {error}"

    def _ask_status(self, cluster: Cluster) -> None:
        try:
            state, invocation = cluster_state(cluster), self._invocation
            self._facts.notes = notes(state, invocation)
            self._facts.problems = problems(state, invocation)
        except LakelogException as error:
            self._facts.status_error = f"`status` cannot read the tables: {error.name}: {error}"

    def _read_clocks(self, cluster: Cluster) -> None:
        self._facts.clocks = doctor_probes.writer_clocks(cluster)

    @property
    def _invocation(self) -> Invocation:
        cluster = self._facts.cluster
        uri = self._args.cluster if cluster is None else cluster.root.uri
        return Invocation.of(self._args.cluster, uri, self._args.command_config)

    def _given(self, number: int | None, uri: str) -> _Examined:
        root = storage_root(uri, "cluster" if number is None else number, self._config)
        kind = CLUSTER_KIND if number is None else self._kind_of(number)
        return _Examined(root.uri if number is None else f"{root.uri} (broker {number})", kind, StoreProbe(root))

    def _kind_of(self, broker: int) -> str:
        return OWN_KIND if broker == self._config.broker_id else BROKER_KIND

    def _of_the_cluster(self) -> list[_Examined]:
        """The roots of the cluster and of its brokers. If the cluster cannot be opened, those of the command line."""
        facts, config = self._facts, self._config
        root = facts.cluster.root if facts.cluster else storage_root(self._args.cluster, "cluster", config)
        parts = [replace(part, guard=None) for part in root.parts]
        found = [_Examined(f"{part.uri} (cluster)", CLUSTER_KIND, StoreProbe(part)) for part in parts]
        for number, registration in sorted(facts.cluster.brokers.items()) if facts.cluster else ():
            root = storage_root(registration.root, number, config)
            found.append(_Examined(f"{root.uri} (broker {number})", self._kind_of(number), StoreProbe(root)))
        return found

    def _size(self, cluster: Cluster) -> ClusterSize:
        remote = [each.kind for each in self._roots if not each.probe.facts.is_local]
        of_cluster = remote.count(CLUSTER_KIND)
        heartbeat, poll = cluster.config.broker_heartbeat_interval_ms, cluster.config.lakelog_poll_interval_ms
        return ClusterSize(
            len(cluster.brokers), len(remote) - of_cluster, _CONTROLLERS, of_cluster, heartbeat / 1000, poll / 1000
        )

    # What is made of it

    @property
    def not_checked(self) -> list[str]:
        """The subjects that the command cannot check."""
        return not_checked((each.subject, each.probe.facts) for each in self._roots)

    def findings(self) -> Iterator[Finding]:
        """A finding for each check of the roots and of the cluster, in the order in which they are shown."""
        role, waited = self._args.role, self._args.timeout
        for each in self._roots:
            needs = NEEDS[role].get(each.kind, NEEDS[role][BROKER_KIND])
            yield from root_findings(each.subject, each.probe.facts, needs, role != ANY_ROLE, self.limits, waited)
        if not self._args.instead_of_cluster:
            yield from self._of_cluster()

    def _of_cluster(self) -> Iterator[Finding]:
        facts = self._facts
        if facts.cluster is None:
            found = facts.error or f"its tables cannot be read within {self._args.timeout} s"
            yield Finding(_CLUSTER, "tables", WRONG, found, "see the lines on its root, and give the URI of a cluster")
            return
        yield format_finding(_CLUSTER, facts.cluster.identity["format_version"], QUORUM_FORMAT, OLDEST_FORMAT)
        yield from self._of_clocks()
        status = self._invocation.command("status")
        if facts.problems is None:
            found = facts.status_error or f"`status` is not done within {self._args.timeout} s"
            yield Finding(_CLUSTER, "status", WRONG, found, f"see the lines on the roots, then run {status}")
        else:
            yield status_finding(_CLUSTER, [line_of(each) for each in facts.problems], len(facts.notes), status)
        yield cost_finding(_CLUSTER, self._size(facts.cluster))

    def _of_clocks(self) -> Iterator[Finding]:
        home = self._roots[0].probe.facts
        if home.clock_ahead is None:
            return
        now = time.time() + home.clock_ahead
        for name, clock in self._facts.clocks.items():
            if abs(now - clock.written_at) < _RECENT_SECONDS:
                ahead = clock.ahead + home.clock_ahead
                yield clock_finding(_CLUSTER, f"of {name}", ahead, home.clock_doubt, self.limits)


def _of_this_machine(limits: Limits) -> Iterator[Finding]:
    """Python, packages, Java, Delta's jar, and the disks of temporary files."""
    pins, optional = doctor_probes.pins()
    there = doctor_probes.installed(pins)
    yield Finding(_MACHINE, "Python", OKAY, f"Python {doctor_probes.python_version()}")
    if pins:
        yield from package_findings(_MACHINE, pins, there, optional)
    if there.get("pyspark"):
        yield java_finding(_MACHINE, *doctor_probes.java())
        yield jar_finding(_MACHINE, *doctor_probes.delta_jars())
    for folder, uses in doctor_probes.scratch_folders().items():
        try:
            yield disk_finding(f"{_MACHINE}, {folder} ({', '.join(uses)})", Disk.of(folder), limits)
        except OSError as error:
            do = "make the folder, or set TMPDIR or SPARK_LOCAL_DIRS to another one"
            yield Finding(f"{_MACHINE}, {folder}", "disk", WRONG, error.strerror or str(error), do)


def _of_executors() -> list[Finding]:
    """The executors of a Spark session that is started for this, against this process."""
    from lakelog.jobs.launch.session import job_session  # other checks need no Spark

    pins, optional = doctor_probes.pins()
    try:
        spark = job_session("lakelog doctor")
        try:
            here, found = doctor_probes.describe_executor([*pins]), doctor_probes.executors_of(spark, [*pins])
            return executor_findings(_SPARK, here, found, pins, optional)
        finally:
            spark.stop()
    except LakelogException as error:
        return [Finding(_SPARK, "executors", WRONG, str(error), "see docs/operations.md, On a cluster of Spark")]


def _show(found: Sequence[Finding], not_checked: Sequence[str], args: argparse.Namespace) -> None:
    wrong, warnings = ([each for each in found if each.result == result] for result in (WRONG, WARNING))
    if args.output == JSON:
        rows = [each._asdict() for each in found]
        Report(value={"ok": not wrong, "findings": rows, "not_checked": list(not_checked)}).show(JSON)
        return
    for subject, group in groupby(found, lambda each: each.subject):
        print(subject)
        for each in group:
            print(f"  {each.result.upper() if each.result == WRONG else each.result:<8} {each.check:<16} {each.found}")
        print()
    for words in not_checked:
        print(f"Not checked: {words}.\n")
    print(f"Wrong: {len(wrong)}" if wrong else "Nothing is wrong.")
    _print_advice(wrong)
    if warnings:
        print(f"\nWarnings: {len(warnings)}")
        _print_advice(warnings)


def _print_advice(found: Iterable[Finding]) -> None:
    for each in found:
        print(f"- {each.subject}: {each.check}: {each.found}\n  To do: {each.do}.")
