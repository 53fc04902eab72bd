"""Changes the roots of a cluster while it runs: one is replaced, two are added or removed.

Each table changes by a commit of its own that names the roots that vote on its next version: first the table `cluster`,
by which all tables are made, then the others. A change that was interrupted is finished by the same call, or by the
next change. Of two changes at the same time one is refused, once it finds that the table `cluster` has other roots than
it began with.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from lakelog.replication.errors import InvalidRequestException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.quorum_slot import majority
from lakelog.replication.storage.cluster import Cluster, storage_root
from lakelog.replication.storage.delta.cluster_quorum import ATTEMPTS, ClusterQuorum
from lakelog.replication.storage.delta.commit import CHANGE_ROOTS, ROOTS
from lakelog.replication.storage.delta.commit_format import commit_content, last_version, read_commit
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.quorum_folder import bring_files
from lakelog.replication.storage.delta.quorum_member import FOLDER, QuorumMember, TableName
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.root_identity import CLUSTER_ROOT, check_apart, check_new, is_formatted, read_identity
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import CLUSTER, QUORUM_FORMAT

logger = logging.getLogger(__name__)

SIZES = (3, 5)  # the numbers of roots of which a majority decides
_CLUSTER = (CLUSTER.name,)
_AT_ONCE = 8  # tables that get votes at the same time, when the only root gets others
_LOST = "is not the root that has voted: it was lost, emptied, restored or copied, and must be replaced"
_HALF = "has no vote on some tables yet; if `lakelog cluster-roots --add` was interrupted, give the same command again"

Value = TypeVar("Value")


class RootStatus(NamedTuple):
    """The status of one root in the cluster. `identity`: None if it has none or does not answer. `has_vote`: whether
    the newest commit of the table `cluster` names it. `behind`: how many commits of all tables it lacks that another
    root has; None if it does not answer. `error`: why it does not answer, or must be replaced."""

    uri: str
    identity: str | None
    has_vote: bool
    behind: int | None
    error: str = ""

    @property
    def counts(self) -> bool:
        """Whether it counts among the roots of which a majority decides: it has a vote, or lies in the place of one
        that has, and was emptied, restored or copied."""
        return self.has_vote or (bool(self.error) and self.behind is not None)


class RootChanges:
    """The roots of an open cluster. `report(done, tables)` hears how many of the tables have changed. All methods raise
    InvalidRequestException for a change that cannot be made, and KafkaStorageException."""

    def __init__(self, cluster: Cluster, report: Callable[[int, int], object] = lambda *_: None) -> None:
        self._cluster = cluster
        self._report = report

    def describe(self) -> list[RootStatus]:
        """The state of each root, those that vote and do not answer included; a root that is alone has the only vote.
        Without a majority it goes by what is published at the home."""
        root = self._cluster.root
        return _describe(root.quorum) if isinstance(root, QuorumRoot) else [RootStatus(root.uri, "", True, 0)]

    def replace(self, old: str, new: str) -> bool:
        """Lets a new root vote in place of one that may be lost. `new` may be the place of the old one, emptied or
        restored. Returns whether anything was left to do."""
        quorum = self._quorum()
        old, new = StorageRoot.of(old).uri, StorageRoot.of(new).uri
        voting, uris = self._voting()
        fresh = quorum.known.root_at(new)
        if fresh.identity() in voting:
            if old == new or old not in uris.values():  # an earlier call has let it vote
                return self._finish(voting)
            raise InvalidRequestException(f"{new}: is a root of the cluster already; give a new one")
        replaced = next((identity for identity in voting if uris.get(identity) == old), None)
        if replaced is None:
            raise self._no_root(old, uris)
        self._finish(voting)
        # The old root may be back, and have a vote until the new one has it.
        made = self._make(fresh, voting, uris)
        target = [made if identity == replaced else identity for identity in voting]
        return self._change(voting, target, uris | {made: new})

    def add(self, added: Sequence[str]) -> bool:
        """Lets two more roots vote, also beside the only one. Returns whether anything was left to do."""
        added = _checked_places(added)
        if not isinstance(self._cluster.root, QuorumRoot):
            return self._add_to_one(added)
        quorum = self._quorum()
        voting, uris = self._voting()
        roots = [quorum.known.root_at(uri) for uri in added]
        missing = [root for root in roots if root.identity() not in voting]
        if not missing:
            return self._finish(voting)
        _check_size(len(voting) + len(missing), len(voting))
        self._finish(voting)
        made = {self._make(root, voting, uris): root.root.uri for root in missing}
        return self._change(voting, [*voting, *made], uris | made)

    def remove(self, removed: Sequence[str]) -> bool:
        """Lets roots vote no more. They keep what they have. Returns whether anything was left to do."""
        voting, uris = self._voting()
        gone = [StorageRoot.of(uri).uri for uri in removed]
        left = [identity for identity in voting if uris.get(identity) not in gone]
        if len(left) == len(voting):
            former = (self._quorum().known.root_at(uri) for uri in gone)
            if (has_changed := self._finish(voting)) or all(self._was_root(root, voting) for root in former):
                return has_changed
            raise self._no_root(gone[0], uris)
        _check_size(len(left), len(voting))
        self._finish(voting)
        return self._change(voting, left, uris)

    def _add_to_one(self, added: Sequence[str]) -> bool:
        """Lets two more roots vote beside the only one.

        So far that root decides alone. For each table it decides one last commit, which names the three roots. A writer
        of the next version has read that commit, so it asks a majority. The table `cluster` changes first: of two such
        changes one is made. The first vote on that table comes last: until then nobody makes a table or a file by
        votes, and from then on what a process has made at the first root alone does not count.
        """
        alone = self._cluster.root
        _check_size(1 + len(added), 1)
        if alone.uri in added:
            raise InvalidRequestException(f"{alone.uri}: is the root of the cluster already; give a new one")
        if alone.admits_writers:
            raise InvalidRequestException(
                f"{alone.uri}: was made by an older version of Lakelog, and stays the only root. Stop the cluster, and "
                "let `lakelog recover --force` make several roots of it"
            )
        root = storage_root(",".join([alone.uri, *added]), "cluster", self._cluster.config)
        assert isinstance(root, QuorumRoot)
        quorum = root.quorum
        first, *others = quorum.roots
        identity = first.identity()
        for fresh in others:
            self._check_place(fresh, () if identity is None else [identity], [alone.uri])
        own = first.format()
        uris = {own: alone.uri}
        for fresh in others:
            uris[self._prepared(fresh, own, uris)] = fresh.root.uri
        voting = tuple(uris)
        quorum.known.look_again()
        _note_addresses(quorum, first, uris)
        for table in first.tables():
            if table != _CLUSTER:  # else one of the others would look like the only root of the cluster
                quorum.admit(table, first, voting)
        bring_files(quorum, voting, lambda call: [call(first.root)])
        self._let_vote_on_cluster(alone, voting)
        _note_addresses(quorum, first, uris)  # another such change may have noted its roots
        self._finish_adding_to_one(voting)
        return True

    def _prepared(self, fresh: QuorumMember, first: str, uris: Mapping[str, str]) -> str:
        """The identity of a root that is to vote beside the first one, whose identity is given. One that another such
        command has prepared stays as it is: that command may be about to let it vote."""
        identity = fresh.identity()
        if identity == first:
            raise InvalidRequestException(f"{fresh.root.uri}: is the root of the cluster, by another name")
        if identity is not None and first in _noted_at(fresh):
            return identity
        return self._format(fresh, uris, clears=bool(fresh.root.list()))

    def _let_vote_on_cluster(self, alone: StorageRoot, voting: tuple[str, ...]) -> None:
        def change(rows: list[Row]) -> list[Row] | None:
            is_made = rows[0]["format_version"] == QUORUM_FORMAT
            return None if is_made else [{**rows[0], "format_version": QUORUM_FORMAT}]

        StateTable.open_at(alone.child(CLUSTER.name), CLUSTER).update({**CHANGE_ROOTS, ROOTS: list(voting)}, change)
        table = alone.child(CLUSTER.name)
        if read_commit(table, last_version(table)).info.get(ROOTS) != list(voting):
            raise self._other_change()
        self._cluster.guard.join(voting)

    def _finish_adding_to_one(self, voting: Sequence[str]) -> bool:
        """Does what is left to do once the table `cluster` names the roots that vote, until the first vote on it:
        brings them what was written at the first root meanwhile, and lets them vote on the tables that it still decides
        alone. Returns whether anything was left. Raises KafkaStorageException."""
        quorum = self._quorum()
        if quorum.commit_of(_CLUSTER, quorum.catch_up(_CLUSTER, quorum.newest_at_home(_CLUSTER))).session:
            return False
        uri = quorum.known.addresses().get(voting[0], voting[0])
        first = next((member for member in quorum.roots if member.root.uri == uri), None)
        if first is None or not _answers(voting[0], first):
            raise KafkaStorageException(
                f"{uri}: does not answer, and still decides alone on some tables; bring it back, and give the same "
                "command again"
            )
        quorum.admit(_CLUSTER, first, voting)
        bring_files(quorum, voting, lambda call: [call(first.root)])
        done = 0

        def change(table: TableName) -> None:
            nonlocal done
            quorum.admit(table, first, voting)
            DeltaLog.open(first.root.child(*table)).let_vote(voting)
            quorum.admit(table, first, voting)
            done += 1
            self._report(done, done + len(tables))

        for _ in range(ATTEMPTS):  # some tables may be made meanwhile
            tables = [each for each in first.tables() if each != _CLUSTER and first.decides_alone(each, if_torn=True)]
            if not tables:
                change_roots(quorum, _CLUSTER, voting)
                return True
            in_threads(change, sorted(tables, key=len), _AT_ONCE)  # those that all processes need come first
        raise KafkaStorageException(f"{first.root.uri}: the newest commits of {len(tables)} tables change all the time")

    def _quorum(self) -> ClusterQuorum:
        root = self._cluster.root
        if not isinstance(root, QuorumRoot):
            raise InvalidRequestException(
                f"{root.uri}: is the only root of its cluster; --add URI URI lets two more roots vote"
            )
        return root.quorum

    def _voting(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The identities of the roots that vote, and the URIs of those that are known."""
        quorum = self._quorum()
        voting = quorum.voting(_CLUSTER)
        return voting, {identity: uri for identity, uri in quorum.known.addresses().items() if identity in voting}

    def _make(self, fresh: QuorumMember, voting: Sequence[str], uris: Mapping[str, str]) -> str:
        """Makes a root that does not vote yet, and returns its identity. A former root is cleared before."""
        self._check_place(fresh, voting, uris.values(), uris)
        self._check_no_vote(fresh)
        made = self._format(fresh, uris)
        self._quorum().known.root_at(fresh.root.uri)
        return made

    def _check_place(
        self, fresh: QuorumMember, voting: Iterable[str], apart: Iterable[str], uris: Mapping[str, str] | None = None
    ) -> None:
        """Raises InconsistentClusterIdException if a root cannot be made here: something else is there, or it lies in
        another root, such as those of `apart`, or one of them in it."""
        root = fresh.root
        was_begun = root.list() == [FOLDER] and not root.child(FOLDER).list()  # by a command that was interrupted
        if not was_begun and not self._was_root(fresh, voting) and not self._was_emptied(fresh, uris or {}):
            check_new(root)
        for uri in apart:
            if uri != root.uri:
                check_apart(root, uri, "the cluster")
        for broker, registration in self._cluster.refresh_brokers().items():
            check_apart(root, registration.root, f"broker {broker}")

    def _format(self, fresh: QuorumMember, uris: Mapping[str, str], clears: bool = True) -> str:
        fresh.root.create_folder()
        check_conditional_put(fresh.root)
        fresh.note_addresses(uris)  # it shows whose root this is, should this be interrupted
        if clears:
            fresh.clear()
        return fresh.format()

    def _check_no_vote(self, fresh: QuorumMember) -> None:
        """Raises InvalidRequestException if a root has a vote on any table."""
        quorum, identity = self._quorum(), fresh.identity()
        for table in _tables(quorum) if identity is not None else ():
            if identity in quorum.voting(table):
                raise InvalidRequestException(
                    f"{fresh.root.uri}: has a vote on {'/'.join(table)}, so it stays as it is"
                )

    def _was_root(self, root: QuorumMember, voting: Iterable[str]) -> bool:
        """Whether a root of this cluster is there, or was."""
        if _noted_at(root).keys() & set(voting):
            return True
        with suppress(LakelogException):
            found = read_identity(root.root) if is_formatted(root.root) else {}
            return (found.get("cluster_id"), found.get("broker_id")) == (self._cluster.cluster_id, CLUSTER_ROOT)
        return False

    def _was_emptied(self, fresh: QuorumMember, uris: Mapping[str, str]) -> bool:
        """Whether a root that votes has at most what processes have written since it was emptied: in an object store
        they may not notice it for a while."""
        if fresh.root.uri not in uris.values() or fresh.identity() is not None:
            return False
        with suppress(LakelogException):
            read_identity(fresh.root)
            return False  # it is another root
        names = {name for found in self._quorum().at_majority(lambda root: root.list()) for name in found}
        return names >= set(fresh.root.list())

    def _finish(self, voting: tuple[str, ...]) -> bool:
        """Finishes a change that was interrupted; whether any table was left: its former roots may have votes."""
        is_left = self._finish_adding_to_one(voting)
        return self._change(voting, voting, self._voting()[1]) or is_left

    def _change(self, former: tuple[str, ...], target: Sequence[str], uris: Mapping[str, str]) -> bool:
        """Lets the roots of these identities vote on all tables, in place of the former ones of the table `cluster`;
        whether any table had others."""
        quorum = self._quorum()
        roots = {identity: quorum.known.root_at(uris[identity]) for identity in target if identity in uris}
        self._check_answers(target, roots)
        # Until all tables have changed, those that vote on the others must be found.
        noted = quorum.known.noted_addresses({*quorum.voting(_CLUSTER), *target})
        quorum.known.note_addresses({**noted, **uris})
        has_changed = former != tuple(target)
        if has_changed and not self._change_table(_CLUSTER, former, target, roots):
            raise self._other_change()
        tables = [table for table in _tables(quorum) if table != _CLUSTER]
        if not has_changed and any(quorum.voting(table) != tuple(target) for table in tables):
            self._bring_files(target, noted)
        for done, table in enumerate(tables, 1):
            self._report(done, len(tables) + 1)
            has_changed |= self._follow(table, target, roots)
        self._report(len(tables) + 1, len(tables) + 1)
        quorum.known.note_addresses({identity: uri for identity, uri in uris.items() if identity in target})
        return has_changed

    def _bring_files(self, target: Sequence[str], noted: Mapping[str, str]) -> None:
        """Brings what a change that was interrupted may have left at former roots, those of them that answer."""
        quorum = self._quorum()
        for uri in noted.values():
            quorum.known.root_at(uri)
        sources = {*target, *noted}
        members = [member for root, member in quorum.known.identified().items() if root in sources]

        def read(call: Callable[[StorageRoot], Value]) -> list[Value]:
            found = quorum.known.at_each(lambda member: call(member.root), members).values()
            return [each for each in found if not isinstance(each, LakelogException)]

        bring_files(quorum, target, read)

    def _follow(self, table: TableName, target: Sequence[str], roots: Mapping[str, QuorumMember]) -> bool:
        """Lets those roots vote on a table that vote on the table `cluster`; whether it had others.

        Another change may have begun since. It changes the table `cluster` first and this one later. So it either finds
        what this one writes, or this one finds other roots than the former ones, which it has read before it has looked
        at the table `cluster`. Raises InvalidRequestException in that case.
        """
        for _ in range(ATTEMPTS):
            former = self._quorum().voting(table)
            if self._quorum().voting(_CLUSTER) != tuple(target):
                raise self._other_change()
            if former == tuple(target):
                return False
            if self._change_table(table, former, target, roots):
                return True
        raise KafkaStorageException(f"{'/'.join(table)}: lost {ATTEMPTS} changes in a row to others")

    def _change_table(
        self, table: TableName, former: Sequence[str], target: Sequence[str], roots: Mapping[str, QuorumMember]
    ) -> bool:  # fmt: skip
        """As `change_roots`, once the roots of these identities have the table."""
        for identity, root in roots.items():
            if identity not in former:
                root.bring(table, self._quorum().home)
        return change_roots(self._quorum(), table, target, former)

    def _other_change(self) -> InvalidRequestException:
        return InvalidRequestException(
            f"{self._cluster.uri}: another command has changed the roots of the cluster at the same time: see "
            "`lakelog cluster-roots`, and give this command again if it is still needed"
        )

    def _check_answers(self, target: Sequence[str], roots: Mapping[str, QuorumMember]) -> None:
        """Without a majority of the roots that are to vote, the change would stop the cluster."""
        silent = [root.root.uri for identity, root in roots.items() if not _answers(identity, root)]
        if len(roots) - len(silent) < majority(len(target)):
            raise KafkaStorageException(
                f"no majority of the {len(target)} roots that are to vote answers: {' and '.join(silent)} must first"
            )

    def _no_root(self, uri: str, uris: Mapping[str, str]) -> InvalidRequestException:
        return InvalidRequestException(f"{uri}: is no root of the cluster; its roots are {', '.join(uris.values())}")


def change_roots(
    quorum: ClusterQuorum, table: TableName, roots: Sequence[str], former: Sequence[str] | None = None
) -> bool:  # fmt: skip
    """Lets these roots, by their identities, vote on the next versions of a table, in place of the `former` ones, by
    default those that do now. Returns whether they vote; False if others than the former ones do by now.

    They get the table first. The commit that names them is decided by the present ones, and the next version waits
    until a majority of the new ones has it. Raises KafkaStorageException.
    """
    quorum.known.look_again()  # they may just have been made
    for _ in range(ATTEMPTS):
        version = quorum.catch_up(table, quorum.newest_at_home(table))
        before, nonce = quorum.commit_of(table, version), uuid.uuid4().hex
        if tuple(before.roots) == tuple(roots) and before.session:
            return True
        if former is not None and tuple(before.roots) != tuple(former):
            return False
        quorum.publisher.bring_others(table, roots)
        read = partial(quorum.of_majority, before.roots)
        if table == _CLUSTER:
            bring_files(quorum, roots, read)
        content = commit_content(CHANGE_ROOTS, nonce, (), (), {}, follows=before.nonce)
        if quorum.commit(table, version + 1, nonce, content, {}, roots):
            if table == _CLUSTER:
                bring_files(quorum, roots, read)  # those that were written meanwhile
            return True
    raise KafkaStorageException(f"{'/'.join(table)}: lost {ATTEMPTS} commits in a row to others")


def _tables(quorum: ClusterQuorum) -> list[TableName]:
    """The tables that are published at any root that votes. The home has all that were decided. Raises
    KafkaStorageException if it does not answer, or no majority does: a table that is left out would be lost with the
    roots that vote on it."""
    voting = quorum.voting(_CLUSTER)
    found = quorum.known.at_each(lambda member: (member.identity(), member.tables()))
    answers = {uri: each for uri, each in found.items() if not isinstance(each, LakelogException)}
    answers = {uri: (root, tables) for uri, (root, tables) in answers.items() if root in voting}
    if len(answers) < majority(len(voting)) or quorum.home.root.uri not in answers:
        raise KafkaStorageException(quorum.known.no_majority(voting))
    return sorted({table for _, tables in answers.values() for table in tables})


def _describe(quorum: ClusterQuorum) -> list[RootStatus]:
    try:
        voting = quorum.voting(_CLUSTER)
    except KafkaStorageException as error:
        logger.debug("%s", error)
        voting = quorum.commit_of(_CLUSTER, quorum.newest_at_home(_CLUSTER)).roots
    uris = quorum.known.addresses()
    for root in voting:
        if root in uris:
            quorum.known.root_at(uris[root])

    def look(member: QuorumMember) -> tuple[str | None, dict[TableName, int]]:
        return member.identity(), {table: member.newest(table) for table in member.tables()}

    found = quorum.known.at_each(look)
    newest = {uri: seen[1] for uri, seen in found.items() if not isinstance(seen, LakelogException)}
    identities = {uri: seen[0] for uri, seen in found.items() if not isinstance(seen, LakelogException)}
    furthest: dict[TableName, int] = {}
    for uri, tables in newest.items():
        for table, version in tables.items() if identities[uri] in voting else ():
            furthest[table] = max(version, furthest.get(table, -1))
    lost = {uris[root] for root in voting if root in uris and root not in identities.values()}
    statuses = list[RootStatus]()
    for uri, seen in found.items():
        if isinstance(seen, LakelogException):
            statuses.append(RootStatus(uri, None, uri in lost, None, str(seen)))
        else:
            identity, versions = seen
            behind = sum(max(0, version - versions.get(table, -1)) for table, version in furthest.items())
            statuses.append(RootStatus(uri, identity, identity in voting, behind, _LOST if uri in lost else ""))
    if voting and not quorum.commit_of(_CLUSTER, quorum.newest_at_home(_CLUSTER)).session:
        statuses = [each._replace(error=each.error or _HALF) if each.has_vote else each for each in statuses]
    unknown = [root for root in voting if root not in uris]
    return statuses + [RootStatus(root, root, True, None, "no root says where it is") for root in unknown]


def _answers(identity: str, root: QuorumMember) -> bool:
    try:
        return root.identity() == identity
    except KafkaStorageException:
        return False


def _checked_places(uris: Sequence[str]) -> list[str]:
    """The places of new roots, each apart from the others. Raises InvalidRequestException, and
    InconsistentClusterIdException for one that lies in another."""
    there = list[str]()
    for uri in uris:
        if ",/" in uri or ":" in uri.partition(",")[2]:
            raise InvalidRequestException(f"{uri}: names several roots; give each by itself")
        root = StorageRoot.of(uri)
        if root.uri in there:
            raise InvalidRequestException(f"{root.uri}: is given twice; give each root a place of its own")
        for other in there:
            check_apart(root, other, "the cluster")
        there.append(root.uri)
    return there


def _noted_at(member: QuorumMember) -> Mapping[str, str]:
    with suppress(KafkaStorageException):
        return member.addresses()
    return {}


def _note_addresses(quorum: ClusterQuorum, first: QuorumMember, uris: Mapping[str, str]) -> None:
    """Notes the URIs of the roots, by their identities, beside those that the first one knows. Raises
    KafkaStorageException unless the first one has noted them."""
    quorum.known.note_addresses({**_noted_at(first), **uris})
    if not uris.items() <= first.addresses().items():
        raise KafkaStorageException(f"{first.root.uri}: does not note where the roots of the cluster are")


def _check_size(roots: int, now: int) -> None:
    if roots not in SIZES:
        raise InvalidRequestException(f"the cluster has {now} roots and would have {roots}: it may have three or five")
