"""The findings of `lakelog doctor`: one for each check, from the facts of the probes, and what to do about it.

Nothing here reads or writes anything. Limits are derived from the settings of brokers, as each function says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.cli.numbers import size_text
from lakelog.replication.config import Config
from lakelog.replication.protocol.quorum_slot import majority
from lakelog.replication.storage import cluster_copier
from lakelog.replication.storage.delta import freshness
from lakelog.replication.storage.delta.object_headers import ObjectRules
from lakelog.replication.storage.delta.store_requests import DOLLARS
from lakelog.replication.storage.store_probe import (
    CONDITIONAL_PUT,
    CONTENT,
    LIST,
    LIST_AFTER_DELETE,
    LIST_AFTER_WRITE,
    OPERATIONS,
    READ,
    READ_AFTER_DELETE,
    READ_AFTER_WRITE,
    SYNC,
    WRITE,
    Disk,
    StoreFacts,
)

OKAY, WARNING, WRONG = "ok", "warning", "wrong"


class Finding(NamedTuple):
    """The result of one check on one subject, what was found, and what to do if that is not well."""

    subject: str
    check: str
    result: str
    found: str
    do: str = ""


# Whose root it is, as a process sees it.
CLUSTER_KIND, OWN_KIND, BROKER_KIND = "cluster", "own", "broker"

_READS = frozenset({LIST, READ})
_APPENDS = _READS | {WRITE}
_ALL = frozenset(OPERATIONS)
ANY_ROLE = "all"

# What each role does at each root. The tables of docs/doctor.md have the same, and why.
NEEDS: dict[str, dict[str, frozenset[str]]] = {
    ANY_ROLE: {CLUSTER_KIND: _ALL, OWN_KIND: _ALL, BROKER_KIND: _ALL},
    "reader": {CLUSTER_KIND: _READS, BROKER_KIND: _READS},
    "consumer": {CLUSTER_KIND: _ALL, BROKER_KIND: _READS},
    "producer": {CLUSTER_KIND: _READS, BROKER_KIND: _APPENDS},
    "broker": {CLUSTER_KIND: _ALL, OWN_KIND: _ALL, BROKER_KIND: _READS},
    "controller": {CLUSTER_KIND: _ALL, BROKER_KIND: _ALL},
    "admin": {CLUSTER_KIND: _APPENDS, BROKER_KIND: _APPENDS},
}
ROLES = tuple(NEEDS)

_POLICIES = "docs/doctor.md has the permissions of each role"


class Limits(NamedTuple):
    """Limits that the settings of the cluster imply. Times are in seconds.

    `clock`: an observer, such as `status` or the exporter, takes a broker for dead if its newest heartbeat is older
    than the session time-out by the clock of the store. The newest heartbeat of a living broker is up to one interval
    old, which is a third of the session. So a clock that is wrong by two thirds of a session makes every broker look
    dead now and then; the limit is half of that. `commit`: a heartbeat is a commit. Four of them fit into an interval,
    so that one that is repeated is not late. `free_bytes`: a fetch and a compaction are written before the files that
    they replace are deleted.
    """

    clock: float
    commit: float
    free_bytes: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        """The limits by a configuration whose session time-outs are filled in."""
        session = min(config.broker_session_timeout_ms, config.controller_session_timeout_ms) / 1000
        largest = config.log_cleaner_max_bytes + config.replica_fetch_response_max_bytes
        return cls(session / 3, config.broker_heartbeat_interval_ms / 4000, largest)


# A root


def root_findings(
    subject: str, facts: StoreFacts, needs: frozenset[str], is_judged_for_excess: bool, limits: Limits, waited: float
) -> list[Finding]:
    """The findings on one root. If it does not answer, that is the only one. `needs`: the operations that the process
    needs there. `waited`: the seconds that the probe was given."""
    if facts.step:
        return [_silent(subject, facts, waited)]
    found = [_access(subject, facts, needs, is_judged_for_excess)]
    if not facts.may:
        return found
    found += [*_promises(subject, facts), *_bucket_rules(subject, facts)]
    if WRITE in facts.may:
        found += [*_latency(subject, facts, limits), *_clock_of_store(subject, facts, limits)]
    if facts.disk is not None:
        found.append(disk_finding(subject, facts.disk, limits))
    if facts.left:
        do = f"delete it once the store allows it, or let a later `lakelog doctor` do that: {facts.left}"
        found.append(Finding(subject, "files of the probe", WARNING, "the probe could not delete all of its files", do))
    return found


def _silent(subject: str, facts: StoreFacts, waited: float) -> Finding:
    where = "" if facts.step == "begin" else f" to a {facts.step}"
    do = "check the network and the endpoint of the root, or the disk and its mount; --timeout gives it more time"
    return Finding(subject, "access", WRONG, f"it does not answer{where} within {waited:g} s", do)


def _access(subject: str, facts: StoreFacts, needs: frozenset[str], is_judged_for_excess: bool) -> Finding:
    may = [each for each in OPERATIONS if each in facts.may]
    found = f"this process may {_and(may)}" if may else "this process may do nothing"
    missing = [each for each in OPERATIONS if each in needs and each in facts.refused]
    if missing:
        why = dict.fromkeys(facts.refused[each] for each in missing)
        refused = f"{found}, and not {_and(missing, 'or')}: {'; '.join(why)}"
        return Finding(subject, "access", WRONG, refused if may else "; ".join(why), _advice(facts, missing))
    # A role that writes may delete the files of the probe, and maybe no others: that cannot be told apart.
    more = [] if WRITE in needs else [each for each in may if each not in needs]
    if is_judged_for_excess and more:
        do = f"give it credentials that may not {_and(more, 'or')}; {_POLICIES}"
        return Finding(subject, "access", WARNING, f"{found}, and needs no right to {_and(more, 'or')}", do)
    if READ not in facts.may:
        found += "; there is no file yet that shows whether it may read"
    if facts.removed:
        found += f"; what {facts.removed} killed probe{'s' if facts.removed > 1 else ''} had left was removed"
    return Finding(subject, "access", OKAY, found)


def _advice(facts: StoreFacts, missing: Sequence[str]) -> str:
    if facts.is_local:
        if LIST in missing:
            return "mount it, check its path and its owner, or make the folder if it is to be a new root"
        return "check its owner, its mode, and whether it is mounted read-only"
    if LIST in missing and not facts.may:
        return (
            "check the URI, and the endpoint and credentials that this process has for this root: settings "
            "storage.<owner>.… or variables LAKELOG_STORAGE_<OWNER>_…, where the owner is `cluster` or a broker's id"
        )
    return f"allow it to {_and(missing)}, or say with --role what this process is for; {_POLICIES}"


_GROUPS = (
    (
        "conditional put", (CONDITIONAL_PUT,), "a second put of a name is refused, and of two at once one wins",
        "do not use this store: commits could be lost without a word",
    ),
    (
        "consistency", (READ_AFTER_WRITE, LIST_AFTER_WRITE, READ_AFTER_DELETE, LIST_AFTER_DELETE),
        "reads and listings see each write and each deletion at once",
        "do not use this store, nor a cache or a replicated bucket before it: brokers would miss commits",
    ),
    (
        "content", (CONTENT,), "files come back byte for byte, as a whole and in part",
        "look for a proxy or a gateway that changes content, or does not take files in parts",
    ),
    (
        "fsync", (SYNC,), "files and folders can be synced",
        "use a file system that can: after a power cut the cluster root could lack commits",
    ),
)  # fmt: skip


def _promises(subject: str, facts: StoreFacts) -> Iterator[Finding]:
    for check, promises, well, do in _GROUPS:
        broken = [facts.broken[each] for each in promises if each in facts.broken]
        if broken:
            yield Finding(subject, check, WRONG, "; ".join(dict.fromkeys(broken)), do)
        elif facts.kept.issuperset(promises):
            yield Finding(subject, check, OKAY, well)


# The rules of a bucket

_AZURE = ("az", "abfs", "abfss")
_HOW_TO_LOOK = "docs/doctor.md says how to look"
_DEAR = ("STANDARD_IA", "ONEZONE_IA", "GLACIER_IR", "NEARLINE", "COLDLINE", "ARCHIVE", "Cool", "Cold")

# What the headers of objects do not tell, by the schemes of the stores' URIs.
_NEVER_TOLD = {
    ("s3", "s3a"): (
        "in S3: lifecycle rules for other objects than those that were looked at, rules that archive objects later, "
        "and object lock, unless this process may s3:GetObjectRetention"
    ),
    ("gs",): (
        "in Google Cloud Storage: lifecycle rules with another condition than an age, such as a prefix, rules that "
        "change the storage class later, versioning, and soft delete"
    ),
    _AZURE: "in Azure: lifecycle rules, soft delete, and immutability policies of containers",
}


def not_checked(roots: Iterable[tuple[str, StoreFacts]]) -> list[str]:
    """The rules that the checks of these roots cannot see, by their subjects and facts. Roots on a disk have no such
    rules."""
    remote = [(subject, facts) for subject, facts in roots if not facts.is_local]
    schemes = {_scheme(facts) for _, facts in remote}
    return [
        *(
            f"{words}. A rule that deletes or archives objects destroys the cluster; {_HOW_TO_LOOK}"
            for those, words in _NEVER_TOLD.items()
            if schemes.intersection(those)
        ),
        *(
            f"in {subject}: all lifecycle rules, versioning, object lock and storage classes, because this process "
            f"cannot sign the URL that asks for them: {facts.unsigned}"
            for subject, facts in remote
            if facts.unsigned
        ),
    ]


def _scheme(facts: StoreFacts) -> str:
    return facts.uri.partition("://")[0]


def _bucket_rules(subject: str, facts: StoreFacts) -> Iterator[Finding]:
    by_path = facts.rules
    yield from _expiry(subject, facts)
    if archived := [path for path, rules in by_path.items() if rules.archived]:
        found = f"{archived[0]} cannot be read, because it is in {by_path[archived[0]].archived}"
        do = "restore what lies below the root, and remove the rule or the tier that has archived it"
        yield Finding(subject, "storage class", WRONG, found + _share(archived, by_path), do)
    elif dear := [path for path, rules in by_path.items() if rules.storage_class in _DEAR]:
        found = f"{dear[0]} is in {by_path[dear[0]].storage_class}, where reads and early deletions cost extra"
        do = "give the bucket a default class for data in use, and remove rules that change the class below the root"
        yield Finding(subject, "storage class", WARNING, found + _share(dear, by_path), do)
    if any(rules.version for rules in by_path.values()):
        found = "the bucket keeps versions, which cost space: give non-current ones a rule that expires them"
        yield Finding(subject, "versioning", OKAY, found)
    if locked := [path for path, rules in by_path.items() if rules.lock]:
        found = f"{locked[0]} is locked {by_path[locked[0]].lock}"
        do = "remove the default retention of the bucket, or shorten it: brokers delete many files, which then stay"
        yield Finding(subject, "object lock", WARNING, found + _share(locked, by_path), do)


def _expiry(subject: str, facts: StoreFacts) -> Iterator[Finding]:
    by_path, check = facts.rules, "lifecycle rules"
    unknown = facts.unanswered or next((rules.unknown for rules in by_path.values() if rules.unknown), "")
    if expiring := [path for path, rules in by_path.items() if rules.expires]:
        first = min(expiring, key=lambda path: by_path[path].expires)
        rule = f"the lifecycle rule {by_path[first].rule!r}" if by_path[first].rule else "a lifecycle rule"
        found = f"{rule} deletes objects of this root: {first} on {by_path[first].expires}"
        do = "remove the rule, or limit it to what lies outside of the root: it would destroy the cluster"
        yield Finding(subject, check, WRONG, found + _share(expiring, by_path), do)
    elif unknown:
        found = f"the store does not say whether a rule deletes its objects: {unknown}"
        yield Finding(subject, check, WARNING, found, f"look at the rules of the bucket: {_HOW_TO_LOOK}")
    elif by_path and _scheme(facts) not in _AZURE:
        found = f"the store tells of no rule that deletes its objects; looked at: {len(by_path)}"
        yield Finding(subject, check, OKAY, found)


def _share(some: Sequence[str], by_path: Mapping[str, ObjectRules]) -> str:
    return f" ({len(some)} of the {len(by_path)} objects that were looked at)"


# Latency

_SHOWN_KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")


def _latency(subject: str, facts: StoreFacts, limits: Limits) -> Iterator[Finding]:
    times = facts.milliseconds
    if not set(_SHOWN_KINDS) <= times.keys():
        return
    found = "median " + ", ".join(f"{kind} {_ms(times[kind])}" for kind in _SHOWN_KINDS)
    commit = (times["PUT"] + times["HEAD"]) / 1000
    if commit <= limits.commit:
        yield Finding(subject, "latency", OKAY, found)
        return
    do = (
        "move the root nearer to its brokers, or raise broker.heartbeat.interval.ms and broker.session.timeout.ms in "
        "all processes"
    )
    slow = f"{found}: a commit takes {commit:.1f} s, more than a quarter of the heartbeat interval"
    yield Finding(subject, "latency", WARNING, slow, do)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


# Clocks


def _clock_of_store(subject: str, facts: StoreFacts, limits: Limits) -> Iterator[Finding]:
    if facts.clock_ahead is not None:
        yield clock_finding(subject, "of the store", facts.clock_ahead, facts.clock_doubt, limits)


def clock_finding(subject: str, whose: str, ahead: float, doubt: float, limits: Limits) -> Finding:
    """A clock that is `ahead` of this machine's, in seconds, within `doubt` seconds."""
    if abs(ahead) - doubt <= limits.clock:
        near = "agrees" if abs(ahead) <= doubt else f"is {abs(ahead):.1f} s {_side(ahead)}"
        return Finding(subject, "clock", OKAY, f"the clock {whose} {near} (within {doubt:.1f} s)")
    found = f"the clock {whose} is {_span(abs(ahead))} {_side(ahead)} that of this machine"
    do = (
        f"let NTP set the clocks: beyond {limits.clock:g} s `status`, alerts and retention go wrong, and stores refuse "
        "requests that are 15 min off"
    )
    return Finding(subject, "clock", WARNING, found, do)


def _side(ahead: float) -> str:
    return "ahead of" if ahead > 0 else "behind"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# Disks

_FEW_PERCENT = 10
_FEWEST_INODES = 10_000


def disk_finding(subject: str, disk: Disk, limits: Limits) -> Finding:
    """Free space and inodes. Wrong: a fetch and a compaction do not fit, or 10,000 files. Warning: less than a tenth is
    free."""
    if not disk.bytes:
        return Finding(subject, "disk", OKAY, "the file system does not say how large it is")
    free = f"{size_text(disk.free_bytes)} of {size_text(disk.bytes)} are free"
    if disk.inodes:
        free += f", and {_percent(disk.free_inodes, disk.inodes):.0f} % of the inodes"
    is_full = disk.free_bytes < limits.free_bytes or (disk.inodes and disk.free_inodes < _FEWEST_INODES)
    if is_full:
        do = f"free at least {size_text(limits.free_bytes)} and {_FEWEST_INODES:,} inodes: a full disk ends commits"
        return Finding(subject, "disk", WRONG, free, do)
    shares = [(disk.free_bytes, disk.bytes), *([(disk.free_inodes, disk.inodes)] if disk.inodes else [])]
    if min(_percent(*share) for share in shares) < _FEW_PERCENT:
        return Finding(subject, "disk", WARNING, free, "free some space, or shorten the retention of topics")
    return Finding(subject, "disk", OKAY, free)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0


# Versions


def package_findings(
    subject: str, pins: Mapping[str, str], installed: Mapping[str, str | None], optional: frozenset[str]
) -> list[Finding]:
    """The packages of a Python against the versions that pyproject.toml pins; a package that is `optional` may be
    missing."""
    other = {name: version for name, version in installed.items() if version not in (pins[name], None)}
    missing = [name for name in pins if installed.get(name) is None]
    needed = [name for name in missing if name not in optional]
    if needed or other:
        parts = [f"{name} is {version} and not {pins[name]}" for name, version in other.items()]
        parts += [f"{name} is missing" for name in needed]
        wanted = " ".join(f"{name}=={pins[name]}" for name in (*other, *needed))
        return [Finding(subject, "packages", WRONG if needed else WARNING, "; ".join(parts), f"pip install {wanted}")]
    there = ", ".join(f"{name} {version}" for name, version in pins.items() if name not in missing)
    if missing:
        there += f"; {_and(missing)} {'is' if len(missing) == 1 else 'are'} missing, which only brokers need"
    return [Finding(subject, "packages", OKAY, there)]


def jar_finding(subject: str, wanted: str, found: Sequence[str]) -> Finding:
    """Delta's jar for Spark: `found` are the file names of jars of that artifact, `wanted` is the name of the right
    one."""
    others = [name for name in found if name != wanted]
    if others:
        do = f"leave one Delta on Spark's path, {wanted}"
        return Finding(subject, "Delta's jar", WARNING, f"Spark has {_and(others)}", do)
    if not found:
        return Finding(subject, "Delta's jar", OKAY, f"none is here: Spark fetches {wanted} when a broker starts")
    return Finding(subject, "Delta's jar", OKAY, wanted)


def java_finding(subject: str, error: str | None, home: str | None) -> Finding:
    """Whether Spark finds a Java that it runs with."""
    if error is None:
        where = f" in {home}" if home else ""
        return Finding(subject, "Java", OKAY, f"there is one that Spark runs with{where}")
    return Finding(subject, "Java", WARNING, error, "install it where brokers run; controllers and commands need none")


class Executor(NamedTuple):
    """A Python worker of Spark: its machine, its version of Python, and those of the packages."""

    host: str
    python: str
    packages: tuple[tuple[str, str | None], ...]


def executor_findings(
    subject: str, driver: Executor, executors: Sequence[Executor], pins: Mapping[str, str], optional: frozenset[str]
) -> list[Finding]:
    """The executors against the driver. A machine with several executors counts once for each set of versions."""
    found = []
    for each in sorted(set(executors)):
        where = f"{subject}, executor on {each.host}"
        if each.python.split(".")[:2] != driver.python.split(".")[:2]:
            differs = f"Python is {each.python}, and that of the driver {driver.python}"
            found.append(Finding(where, "Python", WRONG, differs, "set PYSPARK_PYTHON to the same version everywhere"))
        else:
            found.append(Finding(where, "Python", OKAY, f"Python {each.python} can import lakelog"))
        found += package_findings(where, pins, dict(each.packages), optional)
    return found


# Cost


class ClusterSize(NamedTuple):
    """The size of a cluster, as its requests while idle depend on it. `remote_brokers`: those whose roots are in object
    stores. `remote_cluster_roots`: the cluster roots that are. Partitions do not count."""

    brokers: int
    remote_brokers: int
    controllers: int
    remote_cluster_roots: int
    heartbeat_seconds: float
    poll_seconds: float


MONTH_SECONDS = 30 * 86_400
_LISTING_SECONDS, _CONFIRM_SECONDS = 15.0, 60.0
_CLUSTER_TABLES = 5  # topics, configs, admin, metadata, controller
_BROKER_TABLES = 2  # log, replicas


def idle_requests(size: ClusterSize, processes: int) -> dict[str, float]:
    """The requests a second of an idle cluster by kind. `processes`: in how many its brokers and controllers run,
    because threads of one process share their polls. docs/benchmarks.md, "What it costs to be idle", explains each
    term.

    A heartbeat and a renewal of the lease are a PUT, and a look-up of the commit before it; with several cluster roots
    a PUT at each of a majority. Each process polls each table, registrations four times in three heartbeat intervals,
    confirms the newest commit of each once a minute, and lists the folder of the registrations every 15 s. The
    controller polls two more tables for its copies.
    """
    roots = size.remote_cluster_roots
    cluster_tables = _CLUSTER_TABLES * roots
    tables = cluster_tables + _BROKER_TABLES * size.remote_brokers
    beats = (size.brokers + 1) * min(roots, majority(roots)) / size.heartbeat_seconds
    registrations = size.brokers * roots * 4 / (3 * size.heartbeat_seconds)
    polls = tables / max(freshness.LONGEST_SECONDS, size.poll_seconds)
    return {
        "HEAD": beats + processes * (tables + size.brokers * roots) / _CONFIRM_SECONDS,
        "GET": processes * (registrations + polls) + 2 * roots / cluster_copier.REMOTE_SECONDS,
        "LIST": processes * min(roots, 1) / _LISTING_SECONDS,
        "PUT": beats,
    }


def dollars_a_month(per_second: Mapping[str, float]) -> float:
    """The cost of these requests a second, by kind, for 30 days."""
    return sum(count * DOLLARS[kind] for kind, count in per_second.items()) * MONTH_SECONDS / 1e6


def cost_finding(subject: str, size: ClusterSize) -> Finding:
    """The cost of polls and heartbeats while nothing is sent, between all in one process and each in one of its own."""
    if not size.remote_cluster_roots and not size.remote_brokers:
        return Finding(subject, "idle cost", OKAY, "no root is in an object store, so polls cost no requests")
    least, most = (idle_requests(size, processes) for processes in (1, size.brokers + size.controllers))
    found = (
        f"about {sum(least.values()):.0f} requests a second and ${dollars_a_month(least):,.0f} a month while idle if "
        f"{size.brokers} brokers and {size.controllers} controllers share a process, at most "
        f"{sum(most.values()):.0f} and ${dollars_a_month(most):,.0f} if each has its own"
    )
    return Finding(subject, "idle cost", OKAY, found)


# The cluster


def format_finding(subject: str, found: int, newest: int, oldest: int) -> Finding:
    """The version of the format of a cluster's tables."""
    said = f"format {found}; this version of Lakelog knows {oldest} to {newest}"
    return Finding(subject, "format", OKAY, said)


def status_finding(subject: str, problems: Sequence[str], notes: int, command: str) -> Finding:
    """The finding of `lakelog status`: its problems, and the number of its notes."""
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return Finding(subject, "status", WRONG, f"{problems[0]}{more}", f"{command} says what to do")
    more = f", and has {notes} note{'s' if notes > 1 else ''}" if notes else ""
    return Finding(subject, "status", OKAY, f"`status` says that nothing is wrong{more}")


def _and(names: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
