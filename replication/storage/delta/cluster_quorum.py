"""The quorum of a cluster's roots as one process sees it: a majority decides commits, and the process reads at home.

Its home is one of the roots, the first one that it reaches. What is published there is decided, but others may have
decided more. So a read of the newest version asks a majority first, and publishes at the home what it has decided.
Reads of records go on without a majority, see `ClusterQuorum.newest_to_read`. A commit is decided by a round of
`quorum_round`, and then published at all roots.
"""

from __future__ import annotations

import atexit
import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from deltalake.exceptions import DeltaError

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.quorum_slot import ProposedCommit, majority
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.quorum_round import (
    AskForPromises,
    AskToAccept,
    BackOff,
    NotDecided,
    OutcomeUnknown,
    ReadSlot,
    SlotSettled,
    SlotStep,
    is_enough,
    part_of,
    propose,
    read_newest,
)
from lakelog.replication.storage.delta.commit import ROOTS, SESSION, Commit
from lakelog.replication.storage.delta.commit_format import (
    commit_content,
    commit_name,
    last_version,
    parsed,
    read_commit,
)
from lakelog.replication.storage.delta.commit_publisher import CommitPublisher
from lakelog.replication.storage.delta.known_roots import NO_MAJORITY_SECONDS, KnownRoots
from lakelog.replication.storage.delta.life_signs import LifeSigns
from lakelog.replication.storage.delta.quorum_member import CREATES, QuorumMember, TableName, packed
from lakelog.replication.storage.delta.root_requests import SOON_SECONDS, Answers, RootRequests, run_in_thread
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import CLUSTER

logger = logging.getLogger(__name__)

ATTEMPTS = 12  # ballots that a commit or a read tries
_LONGEST_PAUSE_SECONDS = 0.2
_VOTERS_SECONDS = 30.0  # how long a process relies on what it knows of who votes on the table `cluster`
_SIGNS_VOTERS_SECONDS = 300.0  # likewise for signs of life, unless a commit names other roots: signs decide nothing
_CATCH_UP_SECONDS = 30.0  # between questions to a majority about a table that a process only polls
_LOOK_SECONDS = 0.3  # how long a step waits for the home before it checks whether the home answers
_CLUSTER = (CLUSTER.name,)  # the table whose voters have the files of no table
_EXIT_SECONDS = 3.0  # how long a process that ends goes on to publish what it has decided

_BEING_ADDED = (
    "the cluster is getting more roots, and no majority decides here yet. If `lakelog cluster-roots --add` was "
    "interrupted, give the same command again"
)

_Handlers: TypeAlias = Callable[[QuorumMember, TableName], Mapping[type, Callable[[Any], Any]]]
_QUORUMS: WeakSet[ClusterQuorum] = WeakSet()  # those of this process
Value = TypeVar("Value")


class ClusterQuorum:
    """The quorum of a process. `roots`: those that may vote, the nearest first. `timeout`: how many seconds a step
    waits for a majority. `member_at`: makes the root at a URI, for roots that are added later. Threads may share it."""

    def __init__(
        self, roots: Sequence[QuorumMember], timeout: float = 10.0,
        member_at: Callable[[str], QuorumMember] | None = None,
    ) -> None:  # fmt: skip
        self._timeout = timeout
        self._requests = RootRequests(timeout)
        self.known = KnownRoots(roots, self._requests, member_at)
        self.publisher = CommitPublisher(self.known, self._requests, self._voting)
        self._lock = threading.Lock()
        self.reads_go_on = False  # see `newest_to_read`
        self._silence = ""  # why no majority has answered the last read; empty if one has
        self._behind: dict[TableName, str] = {}  # the tables whose last read no majority has answered, and why
        self._question: _Question | None = None  # of the last read that asked a majority
        self._sessions: dict[TableName, str] = {}
        self._newest: dict[TableName, tuple[int, ProposedCommit]] = {}  # the newest version that is known, its commit
        self._proposed: dict[TableName, int] = {}  # the last slot in which the session has proposed
        self._last_read: dict[TableName, Commit] = {}
        self._caught_up_at: dict[TableName, float] = {}
        self._voters_at = float("-inf")  # when a majority was last asked who votes on the table `cluster`
        self._doubts = set[tuple[str, ...]]()  # the voters of other tables, for which it was asked again
        self._under_clean_up = set[tuple[str, TableName]]()  # tables that are being cleaned up at roots
        self.signs = LifeSigns(self)
        _QUORUMS.add(self)

    @property
    def roots(self) -> Sequence[QuorumMember]:
        """The roots, whether they vote or not."""
        return self.known.all

    @property
    def home(self) -> QuorumMember:
        """The root at which this process reads."""
        return self.known.home

    # Commits and reads

    def first_commit(self, table: TableName, content: bytes, roots: Sequence[str] = ()) -> bytes:
        """The commit that makes a table, with the facts of the quorum. `roots`: the identities of those that vote on
        the next version, by default those that are formatted now."""
        return _with_facts(content, self._session(table), roots or tuple(self.known.members))

    def commit(
        self, table: TableName, version: int, nonce: str, content: bytes, files: Mapping[str, bytes],
        roots: Sequence[str] | None = None,
    ) -> int:  # fmt: skip
        """Proposes a commit for a version. Returns its size in bytes if it is decided, 0 if another one is.

        `roots`: the identities of those that vote on the next version, by default the present ones. The commit's
        metadata name them.

        Raises KafkaStorageException if no majority has answered: then the commit may be decided later.
        """
        before = self.commit_of(table, version - 1)
        session = self._session_for(table, version)
        voting = tuple(roots or before.roots)
        content = _with_facts(content, session, voting)
        own = ProposedCommit(nonce, session, before.nonce, voting, packed(content, files))
        has_ballot_0 = before.session == session
        outcome = self._run(table, before.roots, propose(
            version, own, session, len(before.roots), ATTEMPTS, has_ballot_0
        ))  # fmt: skip
        if not isinstance(outcome, SlotSettled):
            self._renew(table)
            raise KafkaStorageException(f"{'/'.join(table)}: version {version}: {self.known.no_majority(before.roots)}")
        is_own = outcome.commit.nonce == nonce
        if not is_own:
            self._renew(table)
        self._settle(table, version, outcome.commit, waits=not is_own or roots is not None)
        if is_own and roots is not None:
            self.publisher.publish_to_former(table, version, outcome.commit, set(before.roots) - set(voting))
        return len(content) if is_own else 0

    def create_table(self, table: TableName, content: bytes) -> bool:
        """Makes a table by a commit of the table `cluster`, and returns whether it did; False if there is one."""
        for _ in range(ATTEMPTS):
            version = self.catch_up(_CLUSTER, self.newest_at_home(_CLUSTER))
            home = self.home  # one root for all questions: with the commits of `cluster` it has their tables
            if home.newest(table) >= 0 and not home.decides_alone(table):
                return False
            if not home.root.child(*_CLUSTER).exists(commit_name(version)):
                continue
            before, nonce = self.commit_of(_CLUSTER, version), uuid.uuid4().hex
            if not before.session:
                self.voters(is_sure=True)
                continue
            first = self.first_commit(table, content, before.roots)
            cause = {"who": "cluster", "why": "create table", CREATES: ["/".join(table), first.decode()]}
            commit = commit_content(cause, nonce, (), (), {}, follows=before.nonce)
            if self.commit(_CLUSTER, version + 1, nonce, commit, {}):
                self.home.await_published(_CLUSTER, timeout=self._timeout)  # the table is made by that
                if not self.home.root.child(*table).exists(commit_name(0)):
                    self.catch_up(_CLUSTER, version + 1)
                return True
        raise KafkaStorageException(f"{'/'.join(table)}: lost {ATTEMPTS} commits in a row to others")

    def admit(self, table: TableName, source: QuorumMember, roots: Sequence[str]) -> None:
        """Copies a table from a root that has decided alone on it to these roots, by their identities, and makes the
        folders for their votes. Raises KafkaStorageException unless a majority has it then, and the source is one."""

        def bring(member: QuorumMember) -> None:
            if not member.is_still(identities[member]):  # else it would write where a disk is not mounted
                raise KafkaStorageException(f"{member.root.uri}: is not the root that is to vote")
            member.bring(table, source)

        identities = {member: root for root, member in self.known.members_of(roots).items() if root in roots}
        found = self.known.at_each(bring, list(identities))
        failed = {uri: error for uri, error in found.items() if error is not None}
        if len(identities) - len(failed) < majority(len(roots)) or source.root.uri in failed:
            reason = next(iter(failed.values()), self.known.no_majority(roots))
            raise KafkaStorageException(f"{'/'.join(table)}: a majority of the roots has no copy of it: {reason}")

    def is_made(self) -> bool:
        """Whether any root has the table `cluster`, which the home may have lost. Raises KafkaStorageException if none
        of those that answer has it and one does not answer."""
        silent: KafkaStorageException | None = None
        for member in sorted(self.known.all, key=lambda member: member is not self.home):
            try:
                if member.newest(_CLUSTER) >= 0:
                    return True
            except KafkaStorageException as error:
                silent = error
        if silent is not None:
            raise silent
        return False

    def newest_at_home(self, table: TableName) -> int:
        """The newest version of a table that is published at the home, -1 without the table."""
        return self.known.read_at_home(lambda home: last_version(home.child(*table)))

    def bring_newest(self, table: TableName) -> int:
        """Publishes at the home all commits of a table that were decided before this call began, and returns the
        version of the last one. If no majority answers, it returns -1, and reads go on with what the home has. Raises
        KafkaStorageException if no root answers."""
        has_home = False

        def bring() -> int:
            nonlocal has_home
            self.check_home(table)
            newest = self.newest_at_home(table)
            if newest < 0:
                self.publisher.bring_home(table)
                newest = self.newest_at_home(table)
            has_home = True
            return newest if newest < 0 else self.catch_up(table, newest)

        try:
            newest = self._answer_in_time(bring)
        except KafkaStorageException as error:
            if self.reads_go_on:
                self._newest_at_any(table)
            elif not has_home:
                raise
            self._note_silence(table, error)
            return -1
        self._note_answer(table)
        return newest

    def newest_to_read(self, table: TableName, version: int) -> int:
        """As `catch_up`, for a read. With `reads_go_on`, a read that reaches no majority goes on with what is published
        at the home, or at another root that answers. It warns once. It raises KafkaStorageException if no root answers,
        or if the root that answers lacks a version that this process knows to be decided.

        This is safe for readers of records. All that is published is decided, so no leader epoch has two leaders. But
        it may be old, so a reader may take a deposed leader for the leader. It reads up to the high watermark in that
        leader's row. First it checks that the log led under the row's epoch and has the row's records
        (`check_log_leads`). That high watermark never passes what the whole ISR of that epoch has, whoever leads later:
        a follower that has taken up a later epoch no longer counts for it. A clean election keeps these records. So the
        reader sees committed records, maybe not the newest ones. It must not conclude that others are gone: see
        `behind`.
        """
        if not self.reads_go_on:
            return self.catch_up(table, version)
        try:
            found = self._answer_in_time(partial(self.catch_up, table, version))
        except KafkaStorageException as error:
            found = max(version, self._newest_at_any(table))
            if found < self._newest.get(table, (-1, None))[0]:
                raise
            self._note_silence(table, error)
        else:
            self._note_answer(table)
        return found

    def behind(self, table: TableName) -> str:
        """Why the last read of a table has gone on without a majority; empty if a majority has answered. Without one, a
        topic, a leader or records that the read has not found may exist by now."""
        return self._behind.get(table, "") if self.reads_go_on else ""

    def _answer_in_time(self, call: Callable[[], int]) -> int:
        """The result of a call that asks a majority. With `reads_go_on` it waits `timeout` for that once. As long as no
        majority answers, it then waits half a second for each later question, so that roots that hang hold up a reader
        once. Raises KafkaStorageException."""
        if not self.reads_go_on:
            return call()
        last = self._question
        if self._silence and last is not None:
            answer = last.answer(NO_MAJORITY_SECONDS)
            if answer is None and time.monotonic() < last.began_at + 2 * self._timeout:  # else it may hang for ever
                raise KafkaStorageException(self._silence)
            self._silence = "" if isinstance(answer, int) else self._silence
        self._question = question = _Question(call)
        answer = question.answer(NO_MAJORITY_SECONDS if self._silence else self._timeout)
        if answer is None:
            raise KafkaStorageException(self._silence or self.known.who_is_silent())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _note_silence(self, table: TableName, error: KafkaStorageException) -> None:
        """Notes that a read of a table goes on without a majority. A process warns once until one answers."""
        uris = {member.root.uri for member in self.roots}
        same = [each for each in list(_QUORUMS) if {member.root.uri for member in each.roots} == uris]
        level = logging.DEBUG if any(each._silence for each in same) else logging.WARNING
        self._silence = self._behind[table] = str(error)
        logger.log(level, "%s is read as it was: %s", self.home.root.uri, error)

    def _note_answer(self, table: TableName) -> None:
        self._silence = ""
        self._behind.pop(table, None)

    def _newest_at_any(self, table: TableName) -> int:
        """The newest version of a table at the home or, if that lacks it or does not answer soon, at another root,
        which becomes the home; -1 without any. Raises KafkaStorageException if no root answers."""
        newest = self.known.find_newest(table, self._voting(table))
        if newest < 0:
            self.check_home(table)  # roots may be slow
            newest = self.newest_at_home(table)
        return newest

    def catch_up(self, table: TableName, version: int) -> int:
        """Publishes at the home all commits after a version that were decided before this call began, and returns the
        last one. Raises KafkaStorageException if no majority answers."""
        return self.known.repeat_if_slow(lambda: self._catch_up_anywhere(table, version))

    def _catch_up_anywhere(self, table: TableName, version: int) -> int:
        for _ in self.known.all[1:]:
            home = self.home
            try:
                return self._catch_up(table, version)
            except KafkaStorageException:
                home.doubt()
                if self.home is home and self.check_home(table) is home:
                    raise
        return self._catch_up(table, version)

    def _catch_up(self, table: TableName, version: int, moves: int = ATTEMPTS) -> int:
        home, version = self._home_with(table, version)
        version = self._first_with_voters(home, table, version)
        place, has_brought = home, False
        while True:
            before = self.commit_of(table, version)
            if not any(self.known.members.get(root) is self.home for root in before.roots):  # it was removed
                place = self.check_home(table)
            outcome = self._run(table, before.roots, read_newest(
                version + 1, uuid.uuid4().hex, len(before.roots), ATTEMPTS
            ))  # fmt: skip
            if isinstance(outcome, NotDecided):
                # Another thread, or the check above, may have moved the home to a root that is behind.
                return version if self.home is home else self._catch_up_again(table, version, moves)
            if place.has(table, version + 1):
                while place.has(table, version + 1):
                    version += 1
                continue
            if isinstance(outcome, OutcomeUnknown):
                # The other roots may have cleaned up the votes on the next version. Or they lack this version, because
                # the process that has decided it has published it at too few roots.
                if has_brought:
                    error = f"{'/'.join(table)}: {self.known.no_majority(before.roots)}"
                    home, version = self.known.leave_home(table, version + 1, before.roots, error)
                    place, has_brought = home, False
                    continue
                self.publisher.bring_home(table)
                self.publisher.bring_others(table, before.roots)
                has_brought = True
                continue
            version += 1
            published = self._settle(table, version, outcome.commit)
            if not any(self.known.members.get(root) is self.home for root in published):
                error = f"{'/'.join(table)}: version {version} is decided, and published at no root that answers"
                home, version = self.known.leave_home(table, version, published, error)
                place = home

    def _catch_up_again(self, table: TableName, version: int, moves: int) -> int:
        if not moves:
            raise KafkaStorageException(f"{'/'.join(table)}: is read at one root after the other, as none answers soon")
        return self._catch_up(table, version, moves - 1)

    def _home_with(self, table: TableName, version: int) -> tuple[QuorumMember, int]:
        """The home, and this version or, if it is cleaned up or cannot be published there, the newest one there."""
        self.check_home(table)
        home = self.settled_home(table)
        if not home.has_lately(table, version) and not home.has(table, version):
            self.publisher.bring_home(table)
            if not home.has(table, version):
                version = home.newest(table)
            if version < 0:
                return self.known.leave_home(table, 0, tuple(self.known.members), f"{'/'.join(table)}: is at no root")
        return home, version

    def _first_with_voters(self, home: QuorumMember, table: TableName, version: int) -> int:
        """This version, or the first later one whose commit names roots that vote. Raises KafkaStorageException without
        one."""
        while not self._commit_of(table, version).roots:
            if not home.has(table, version + 1):
                self.publisher.bring_home(table)  # it may be behind
            if not home.has(table, version + 1):
                self.commit_of(table, version)
            version += 1
        return version

    def settled_home(self, table: TableName) -> QuorumMember:
        """The home, once this process is publishing no version of the table there. Another root that votes becomes the
        home if publishing or any other request takes more than a second there, or if the home does not answer."""
        home = self.fit_home(table)
        home.await_published(table, timeout=_LOOK_SECONDS)
        if home.is_publishing(table) and (home.root.is_local or home.answers_soon()):
            home.await_published(table, timeout=SOON_SECONDS)
        if home.is_publishing(table) or self._requests.hanging(home.root.uri):
            home = self.check_home(table)
            home.await_published(table, timeout=self._timeout)
        return home

    def fit_home(self, table: TableName) -> QuorumMember:
        """The home. After a read has failed there, the next root that votes on the table becomes the home."""
        return self.check_home(table) if self.known.home_has_failed else self.home

    def check_home(self, table: TableName) -> QuorumMember:
        """As `KnownRoots.check_home`, among those that vote on a table."""
        return self.known.check_home(self._voting(table))

    def catch_up_now_and_then(self, table: TableName, version: int | None = None) -> None:
        """Starts a thread that looks at the other roots for a vote on the next version, and catches up if it finds one:
        any majority that has decided that version includes another root than the home. It does so at most once in 30 s
        for each table and process. `version`: the newest one that is known, by default that at the home."""
        self._go_nearer()
        now, cache = time.monotonic(), self.home.root.version_cache
        if now - self._caught_up_at.get(table, float("-inf")) < _CATCH_UP_SECONDS:
            return
        self._caught_up_at[table] = now
        if cache is not None and not cache.is_due(self.home.root.child(*table).uri, _CATCH_UP_SECONDS):
            return

        def run() -> None:
            newest = self.newest_at_home(table) if version is None else version
            if self._has_vote_elsewhere(table, newest + 1):
                self.catch_up(table, newest)

        self._start_catching_up(table, run)

    def _go_nearer(self) -> None:
        """Starts threads that look, once a minute, whether roots nearer than the home answer again. Such a root becomes
        the home if it votes, once it has the home's commits of the tables that this process knows."""
        home = self.home

        def look(root: str, member: QuorumMember) -> None:
            if root in self.voters() and member.is_still(root, quick=True):
                for table in list(self._newest):
                    if not member.has(table, home.newest(table)) and member.is_still(root):
                        member.bring(table, home)
                self.known.go_nearer(member, home)

        for root, member in self.known.due_nearer_roots().items():
            self._requests.begin(root, member, Answers(), partial(look, root, member))

    def catch_up_soon(self, table: TableName) -> None:
        """Starts a thread that catches up, because there is a newer version than the home has."""
        self._start_catching_up(table, lambda: self.catch_up(table, self.newest_at_home(table)))

    def _start_catching_up(self, table: TableName, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                call()
            except (LakelogException, OSError) as error:
                logger.debug("%s: %s", "/".join(table), error)

        run_in_thread(run, "catch up")

    def _has_vote_elsewhere(self, table: TableName, version: int) -> bool:
        others = [member for member in self.known.members.values() if member is not self.home]
        found = self.known.at_each(lambda member: member.has_vote(table, version), others, SOON_SECONDS)
        return any(has_vote is True for has_vote in found.values())

    # Who votes

    def voting(self, table: TableName) -> tuple[str, ...]:
        """The identities of the roots that vote on the next version of a table. Raises KafkaStorageException if no
        majority of them answers."""
        return self.commit_of(table, self.catch_up(table, self.newest_at_home(table))).roots

    def voters(self, is_sure: bool = False, longest: float = _VOTERS_SECONDS) -> tuple[str, ...]:
        """The roots that vote on the table `cluster`: as a majority has said in the last `longest` seconds, or with
        `is_sure` as one says now. While a cluster is being formatted these are all its roots.

        With `is_sure` it waits while a cluster of one root gets others: until a vote has followed the commit of the
        table `cluster` that names them, some files may be at the first root alone. Raises KafkaStorageException."""
        now = time.monotonic()
        _, known = self._newest.get(_CLUSTER, (-1, None))
        if not is_sure and known is not None and now - self._voters_at < longest:
            return known.roots
        pause = threading.Event()
        for _ in range(1 + int(self._timeout / _LONGEST_PAUSE_SECONDS)):
            self.check_home(_CLUSTER)
            newest = self.newest_at_home(_CLUSTER)
            if newest < 0:
                return tuple(self.known.members)
            found = self.commit_of(_CLUSTER, self.catch_up(_CLUSTER, newest))
            if found.session or not is_sure:
                self._voters_at = now
                return found.roots
            pause.wait(_LONGEST_PAUSE_SECONDS)
        raise KafkaStorageException(f"{self.home.root.uri}: {_BEING_ADDED}")

    def _doubt(self, roots: tuple[str, ...]) -> None:
        """Notes who votes on another table. If these are not the known voters of the table `cluster`, the next `voters`
        asks a majority again, once for each such set."""
        _, cluster = self._newest.get(_CLUSTER, (-1, None))
        if cluster is not None and cluster.roots != roots and roots not in self._doubts:
            self._doubts.add(roots)
            self._voters_at = float("-inf")

    def without_vote(self, table: TableName, call: Callable[[QuorumMember], Value]) -> dict[str, Value]:
        """The results of `call` with each root that does not vote on a table, by URI. Roots that do not answer soon are
        left out."""
        voting, known = self._voting(table), self.known.members
        members = [each for each in self.known.all if not any(known.get(root) is each for root in voting)]
        found = self.known.at_each(call, members, SOON_SECONDS)
        return {uri: given for uri, given in found.items() if not isinstance(given, LakelogException)}

    # What a majority has

    def at_majority(self, call: Callable[[StorageRoot], Value], is_sure: bool = False) -> Sequence[Value]:
        """Calls `call` with each root that votes on the table `cluster`, and returns the results of a majority, the
        home's first. The calls at the other roots go on. `is_sure`: as `voters`. Raises KafkaStorageException."""
        voters = self.voters(is_sure)
        if not voters:  # they are not formatted yet
            return [call(member.root) for member in self.known.all]
        found = self._of_majority(voters, call)
        if found is None:  # others may vote by now
            return self.of_majority(self.voters(is_sure=True), call)
        return found

    def at_first_majority(self, call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        """As `at_majority`, for files that are written often and decide nothing. It calls `call` only with a majority
        of the roots. If one of them fails, or does not answer within a second, it calls it with all roots."""
        first = self._first_majority()
        found = self._answers(first, call, len(first), SOON_SECONDS) if first else None
        return self.at_majority(call) if found is None else found

    def near_member(self, table: TableName) -> QuorumMember:
        """The root at which this process reads files of `at_first_majority`: the home, if these are written there."""
        home, members = self.fit_home(table), self.known.members
        first = [members[root] for root in self._first_majority() if root in members]
        return home if home in first or not first else first[0]

    def _first_majority(self) -> Sequence[str]:
        """A majority of the roots that vote on the table `cluster`, in the order of its commit, which all processes
        know. Roots at which a request of this process hangs, or a read has failed, come last."""
        voters, members = self.voters(longest=_SIGNS_VOTERS_SECONDS), self.known.members

        def order(root: str) -> tuple[bool, float]:
            member = members.get(root)
            return member is None or self._requests.hanging(member.root.uri) > 0, member.failed_at if member else 0.0

        return sorted(voters, key=order)[: majority(len(voters))]

    def of_majority(self, roots: Sequence[str], call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        """As `at_majority`, with a majority of these roots. Raises KafkaStorageException."""
        found = self._of_majority(roots, call)
        if found is None:
            raise KafkaStorageException(self.known.no_majority(roots))
        return found

    def _of_majority(self, roots: Sequence[str], call: Callable[[StorageRoot], Value]) -> Sequence[Value] | None:
        return self._answers(roots, call, majority(len(roots)))

    def _answers(
        self, roots: Sequence[str], call: Callable[[StorageRoot], Value], needed: int, timeout: float | None = None
    ) -> Sequence[Value] | None:  # fmt: skip
        """The results of `needed` of these roots; None if fewer answer."""
        found = self.known.ask(
            roots, lambda root, member: partial(_of_voter, root, member, call), lambda found: len(found) >= needed,
            timeout,
        )  # fmt: skip
        return None if len(found) < needed else [answer[0] for answer in found.values()]

    def decide_file(self, names: TableName, own: ProposedCommit, roots: Sequence[str]) -> ProposedCommit:
        """Lets these roots vote on the content of a file of no table. Returns the content that is decided: the own one,
        or that of another process. Raises KafkaStorageException."""
        own = own._replace(session=uuid.uuid4().hex, roots=tuple(roots))
        work = propose(0, own, own.session, len(roots), ATTEMPTS)
        outcome = self._run(names, roots, work, QuorumMember.file_handlers)
        if not isinstance(outcome, SlotSettled):
            raise KafkaStorageException(f"{'/'.join(names)}: {self.known.no_majority(roots)}")
        return outcome.commit

    # Maintenance

    def clean_up(self, table: TableName, version: int, home: QuorumMember) -> None:
        """Copies a checkpoint of a version from `home`, which has written it, to the other roots. Deletes there the
        commits that `home` has deleted, and old votes at all roots. It waits for `home`, and a second for the others,
        where the work goes on. A root that does not answer is cleaned up the next time."""
        voting = self._voting(table)
        identities = {member: root for root, member in self.known.members.items() if root in voting}

        def clean(member: QuorumMember) -> None:
            self._clean_up_at(identities[member], member, home, table, version)

        found: dict[str, Any] = {}
        try:
            if home in identities:
                clean(home)
        except (LakelogException, OSError) as error:
            found[home.root.uri] = error
        found |= self._requests.soon(clean, [member for member in identities if member is not home])
        for uri, failed in found.items():
            if failed is not None:
                logger.warning("%s: %s is not cleaned up now: %s", uri, "/".join(table), failed)

    def _clean_up_at(
        self, root: str, member: QuorumMember, home: QuorumMember, table: TableName, version: int
    ) -> None:  # fmt: skip
        key = root, table
        with self._lock:
            if key in self._under_clean_up:
                raise KafkaStorageException("is still being cleaned up")
            self._under_clean_up.add(key)
        try:
            if member.identity() != root:
                return
            if member is not home:
                member.bring(table, home)
                member.clean_up_as(table, home, version)
            member.clean_up_votes(table, version)
        except DeltaError as error:
            raise KafkaStorageException(str(error)) from error
        finally:
            with self._lock:
                self._under_clean_up.discard(key)

    def at_others(self, table: TableName, call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        """Calls `call` with each root but the home that votes on a table, as far as this process knows, and returns the
        results that come within a second. The other calls go on."""
        voting = self._voting(table)
        members = self.known.members_of(voting) if voting else {}
        identities = {member: root for root, member in members.items() if root in voting}

        def ask(member: QuorumMember) -> tuple[Value] | None:
            return _of_voter(identities[member], member, call) if voting else (call(member.root),)

        others = [member for member in (identities if voting else self.known.all) if member is not self.home]
        found = self._requests.soon(ask, others).values()
        return [result[0] for result in found if result is not None and not isinstance(result, LakelogException)]

    # What this process knows of a table

    def _voting(self, table: TableName) -> Sequence[str]:
        """The roots that vote on the next version of a table; empty if this process does not know them."""
        _, newest = self._newest.get(table, (-1, None))
        return newest.roots if newest else ()

    def _session(self, table: TableName) -> str:
        with self._lock:
            return self._sessions.setdefault(table, uuid.uuid4().hex)

    def _session_for(self, table: TableName, version: int) -> str:
        """The session for a proposal. It proposes once in a slot: a ballot that is used twice breaks the consensus."""
        with self._lock:
            if self._proposed.get(table, -1) >= version:
                self._sessions[table] = uuid.uuid4().hex
            self._proposed[table] = version
            return self._sessions.setdefault(table, uuid.uuid4().hex)

    def _renew(self, table: TableName) -> None:
        with self._lock:
            self._sessions[table] = uuid.uuid4().hex

    def commit_of(self, table: TableName, version: int) -> ProposedCommit:
        """A commit that is decided, without its content. Raises KafkaStorageException, also for a commit that names no
        roots, because the first root may still decide alone on the version after it."""
        if not (found := self._commit_of(table, version)).roots:
            raise KafkaStorageException(f"{self.home.root.child(*table).uri}: {_BEING_ADDED}")
        return found

    def _commit_of(self, table: TableName, version: int) -> ProposedCommit:
        """As `commit_of`, but a commit that names no roots is no error."""
        known, commit = self._newest.get(table, (-1, None))
        if commit is not None and known == version:
            return commit
        found, home = self._last_read.get(table), self.home
        if found is None or found.version != version:
            try:
                found = home.read(lambda root: read_commit(root.child(*table), version))
            except (FileNotFoundError, CorruptRecordException) as error:
                path = home.root.child(*table).path(commit_name(version))
                raise KafkaStorageException(f"{path}: cannot be read: {error}") from error
        roots = tuple(found.info.get(ROOTS, ()))
        commit = ProposedCommit(found.unique_id or "", str(found.info.get(SESSION, "")), roots=roots)
        self._note(table, version, commit)
        return commit

    def note_read(self, table: TableName, version: int, content: bytes) -> None:
        """Notes a commit that was just read at the home: a proposal for the next version need not read it again."""
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):  # it is torn
            found = parsed(version, content, None)
            with self._lock:  # several may be read at the same time
                if version >= (known.version if (known := self._last_read.get(table)) else -1):
                    self._last_read[table] = found
            if table != _CLUSTER and ROOTS in found.info:
                self._doubt(tuple(found.info[ROOTS]))

    def _note(self, table: TableName, version: int, commit: ProposedCommit) -> None:
        with self._lock:
            if version > self._newest.get(table, (-1, None))[0]:
                self._newest[table] = version, commit._replace(content=b"")
        if table != _CLUSTER:
            self._doubt(commit.roots)

    def _settle(
        self, table: TableName, version: int, commit: ProposedCommit, waits: bool = True
    ) -> Sequence[str]:  # fmt: skip
        """Publishes what is decided, as `CommitPublisher.publish`."""
        self._note(table, version, commit)
        return self.publisher.publish(table, version, commit, waits)

    def flush(self, timeout: float = _EXIT_SECONDS) -> None:
        """Waits until this process has nothing left to publish, at most `timeout` seconds. Until a commit is published,
        only processes that ask a majority see it."""
        deadline = time.monotonic() + timeout
        for member in self.known.all:
            member.await_all(max(0.0, deadline - time.monotonic()))

    # Asking

    def _run(
        self, table: TableName, roots: Sequence[str], work: Any, handlers: _Handlers = QuorumMember.handlers
    ) -> Any:  # fmt: skip
        ask = partial(self._ask, table, roots, handlers)
        pause = threading.Event()

        def back_off(step: BackOff) -> None:
            pause.wait(random.uniform(0, min(0.002 * 2**step.rejections, _LONGEST_PAUSE_SECONDS)))

        return carry_out(work, {AskForPromises: ask, AskToAccept: ask, ReadSlot: ask, BackOff: back_off})

    def _ask(
        self, table: TableName, roots: Sequence[str], handlers: _Handlers, step: SlotStep
    ) -> Mapping[str, Any]:  # fmt: skip
        """Runs the part of each root of a step, and returns the answers once they are enough."""
        needed = majority(len(roots))
        return self.known.ask(
            roots, lambda root, member: partial(_part, step, root, handlers(member, table)),
            lambda found: is_enough(step, found, needed, len(roots)),
        )  # fmt: skip


class _Question:
    """A call that asks a majority, in a thread of its own."""

    def __init__(self, call: Callable[[], int]) -> None:
        self.began_at = time.monotonic()
        self._answers = Answers()
        run_in_thread(partial(self._run, call), "read")

    def _run(self, call: Callable[[], int]) -> None:
        answer: int | Exception = KafkaStorageException("a read was interrupted")
        try:
            answer = call()
        except Exception as error:
            answer = error
        finally:
            self._answers.put("", answer)

    def answer(self, seconds: float) -> int | Exception | None:
        """The result or the error of the call. Waits until `seconds` after it began; None if there is neither then."""
        left = max(0.0, self.began_at + seconds - time.monotonic())
        return self._answers.wait_for(lambda _: False, 1, left).get("")


def _with_facts(content: bytes, session: str, roots: Sequence[str]) -> bytes:
    """A commit whose metadata names the session that proposes it, and the roots that vote on the next version."""
    first, _, rest = content.partition(b"\n")
    head = json.loads(first)
    head["commitInfo"] |= {SESSION: session, ROOTS: list(roots)}
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + rest


def _part(step: Any, root: str, handlers: Mapping[type, Callable[[Any], Any]]) -> Any:
    return carry_out(part_of(step, root), handlers)


def _of_voter(root: str, member: QuorumMember, call: Callable[[StorageRoot], Value]) -> tuple[Value] | None:
    return (call(member.root),) if member.is_still(root) else None


@atexit.register
def _flush_all() -> None:
    for quorum in list(_QUORUMS):
        quorum.flush()
