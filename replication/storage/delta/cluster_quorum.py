"""The quorum of a cluster's roots as one process sees it: a majority decides each commit, and the process reads at home.

Its home is one of the roots, the first one that it reaches. What is published there is decided, but others may have
decided more. So a read of the newest version asks a majority first, and publishes at the home what it has decided. A
commit is decided by a round of `quorum_round`, and then published at all roots.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

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
from lakelog.replication.storage.delta.commit import AddedFile, Stamp
from lakelog.replication.storage.delta.commit_format import commit_name, read_commit
from lakelog.replication.storage.delta.quorum_member import QuorumMember, packed
from lakelog.replication.storage.delta.storage_root import StorageRoot

logger = logging.getLogger(__name__)

SESSION, ROOTS = "lakelog.session", "lakelog.roots"  # in a commit's metadata: who proposed it, who votes on the next one
_ATTEMPTS = 12  # ballots that a commit or a read tries
_LONGEST_PAUSE_SECONDS = 0.2
_AWAY_SECONDS = 5.0  # so long a root that has not answered is asked last
_PENDING = 8  # requests of this process that may hang at one root

TableName: TypeAlias = tuple[str, ...]
Value = TypeVar("Value")


class ClusterQuorum:
    """The roots that vote, by their identities, the nearest first. Threads may share it. `timeout` in seconds: how long
    a step waits for a majority."""

    def __init__(self, members: Mapping[str, QuorumMember], timeout: float = 10.0) -> None:
        self._members = dict(members)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._home = next(iter(self._members))
        self._pending = dict.fromkeys(self._members, 0)
        self._sessions: dict[TableName, str] = {}
        self._newest: dict[TableName, tuple[int, ProposedCommit]] = {}  # the newest version that is known, and its commit
        self._publishing: dict[tuple[str, TableName], threading.Thread] = {}

    @property
    def home(self) -> QuorumMember:
        """The root at which this process reads."""
        return self._members[self._home]

    def at_home(self, call: Callable[[StorageRoot], Value]) -> Value:
        """Calls `call` with the home. If that does not answer, the next root becomes the home. Raises the error of the
        last one, KafkaStorageException."""
        tried = set[str]()
        while True:
            home = self._home
            try:
                return call(self._members[home].root)
            except KafkaStorageException as error:
                tried.add(home)
                left = [root for root in self._members if root not in tried]
                if not left:
                    raise
                logger.debug("%s", error)
                if self._home == home:
                    self._move_home(left[0])

    def facts(self, table: TableName) -> dict[str, Any]:
        """What a commit's metadata says of the quorum: its proposer's session, and who votes on the next version."""
        _, newest = self._newest.get(table, (-1, None))
        return {SESSION: self._session(table), ROOTS: list(newest.roots if newest else self._members)}

    def commit(
        self, table: TableName, version: int, nonce: str, content: bytes, files: Sequence[AddedFile]
    ) -> bool:
        """Proposes a commit for a version, and returns whether it is decided; False: another one is.

        Raises KafkaStorageException if no majority has answered: then the commit may be decided later.
        """
        before = self._commit_of(table, version - 1)
        session = self._session(table)
        own = ProposedCommit(nonce, session, before.nonce, before.roots, packed(content, files))
        has_ballot_0 = before.session == session
        outcome = self._run(table, before.roots, propose(
            version, own, session, len(before.roots), _ATTEMPTS, has_ballot_0
        ))  # fmt: skip
        if not isinstance(outcome, SlotSettled):
            self._renew(table)
            raise KafkaStorageException(f"{'/'.join(table)}: version {version}: {self._no_majority(before.roots)}")
        if outcome.commit.nonce != nonce:
            self._renew(table)
        self._settle(table, version, outcome.commit)
        return outcome.commit.nonce == nonce

    def catch_up(self, table: TableName, version: int) -> None:
        """Publishes at the home all commits after a version that were decided before this call began. Raises
        KafkaStorageException if no majority answers."""
        folder = self._sound_home().root.child(*table)
        if version >= 0 and not folder.exists(commit_name(version)):
            self._bring_home(table)
        while folder.exists(commit_name(version + 1)):
            version += 1
        has_brought = False
        while True:
            before = self._commit_of(table, version)
            outcome = self._run(table, before.roots, read_newest(
                version + 1, uuid.uuid4().hex, len(before.roots), _ATTEMPTS
            ))  # fmt: skip
            if isinstance(outcome, NotDecided):
                return
            if isinstance(outcome, OutcomeUnknown):
                # Others may have cleaned up what they have decided after this version.
                if has_brought or not self._bring_home(table):
                    raise KafkaStorageException(f"{'/'.join(table)}: {self._no_majority(before.roots)}")
                has_brought = True
                while folder.exists(commit_name(version + 1)):
                    version += 1
                continue
            version += 1
            self._settle(table, version, outcome.commit)

    def _sound_home(self) -> QuorumMember:
        """The home, or the next root that is the one that votes: an emptied root has no commits, and no error says
        so. Raises KafkaStorageException if there is none."""
        for root in [self._home, *self._members]:
            with suppress(KafkaStorageException):
                if self._members[root].identity() == root:
                    self._move_home(root)
                    return self._members[root]
        raise KafkaStorageException(self._no_majority(tuple(self._members)))

    def _move_home(self, root: str) -> None:
        with self._lock:
            was, self._home = self._home, root
        if was != root:
            logger.warning("%s is read from now on, as %s cannot be", self._members[root].root.uri,
                           self._members[was].root.uri)  # fmt: skip

    def _bring_home(self, table: TableName) -> bool:
        """Publishes at the home what other roots have. Returns whether one of them has answered."""
        has_answered = False
        for root, member in self._members.items():
            if root != self._home:
                with suppress(LakelogException, OSError):
                    self.home.bring(table, member)
                    has_answered = True
        return has_answered

    def _session(self, table: TableName) -> str:
        with self._lock:
            return self._sessions.setdefault(table, uuid.uuid4().hex)

    def _renew(self, table: TableName) -> None:
        with self._lock:
            self._sessions[table] = uuid.uuid4().hex

    def _commit_of(self, table: TableName, version: int) -> ProposedCommit:
        """A commit that is decided, without its content. Raises KafkaStorageException."""
        known, commit = self._newest.get(table, (-1, None))
        if commit is not None and known == version:
            return commit
        folder = self.home.root.child(*table)
        try:
            found = read_commit(folder, version)
        except (FileNotFoundError, CorruptRecordException) as error:
            raise KafkaStorageException(f"{folder.path(commit_name(version))}: cannot be read: {error}") from error
        roots = tuple(found.info.get(ROOTS, ())) or tuple(self._members)
        commit = ProposedCommit(found.unique_id or "", str(found.info.get(SESSION, "")), roots=roots)
        self._note(table, version, commit)
        return commit

    def _note(self, table: TableName, version: int, commit: ProposedCommit) -> None:
        with self._lock:
            if version > self._newest.get(table, (-1, None))[0]:
                self._newest[table] = version, commit._replace(content=b"")

    def _no_majority(self, roots: Sequence[str]) -> str:
        unknown = [root for root in roots if root not in self._members]
        more = f"; no address is known of {', '.join(unknown)}" if unknown else ""
        there = ", ".join(member.root.uri for member in self._members.values())
        return f"no majority of the {len(roots)} cluster roots has answered ({there}){more}"

    # Publishing

    def _settle(self, table: TableName, version: int, commit: ProposedCommit) -> None:
        """Publishes a decided commit at all roots, and waits for the home and a majority: only then the next version
        can be decided."""
        self._note(table, version, commit)
        done = _Answers()
        for root in self._members:
            self._begin(root, done, partial(self._publish, root, table, version, commit.content))
        needed = majority(len(commit.roots))
        done.wait_for(
            lambda found: bool(found.get(self._home)) and sum(map(bool, found.values())) >= needed,
            len(self._members), time.monotonic() + self._timeout,
        )  # fmt: skip

    def _publish(self, root: str, table: TableName, version: int, value: bytes) -> bool:
        member = self._members[root]
        if member.identity() != root:
            return False  # nothing is published at a root that must be replaced
        if not member.publish(table, version, value):
            if root == self._home:
                self._bring_home(table)
            else:
                member.bring(table, self.home)
            member.publish(table, version, value)
        return True

    # Asking

    def _run(self, table: TableName, roots: Sequence[str], work: Any) -> Any:
        ask = partial(self._ask, table, roots)
        pause = threading.Event()

        def back_off(step: BackOff) -> None:
            pause.wait(random.uniform(0, min(0.002 * 2**step.rejections, _LONGEST_PAUSE_SECONDS)))

        return carry_out(work, {AskForPromises: ask, AskToAccept: ask, ReadSlot: ask, BackOff: back_off})

    def _ask(self, table: TableName, roots: Sequence[str], step: SlotStep) -> Mapping[str, Any]:
        """Runs the part of each root of a step in a thread, and returns the answers once they are enough."""
        answers = _Answers()
        there = [root for root in roots if root in self._members]
        for root in there:
            member = self._members[root]
            self._begin(root, answers, lambda root=root, member=member: carry_out(  # type: ignore[misc]
                part_of(step, root), member.handlers(table)
            ))  # fmt: skip
        needed = majority(len(roots))
        found = answers.wait_for(
            lambda found: is_enough(step, _given(found), needed), len(there), time.monotonic() + self._timeout
        )
        return _given(found)

    def _begin(self, root: str, answers: _Answers, call: Callable[[], Any]) -> None:
        """Runs a call in a thread. A root at which several requests hang is taken for away."""
        with self._lock:
            if self._pending[root] >= _PENDING:
                answers.put(root, None)
                return
            self._pending[root] += 1

        def run() -> None:
            answer = None
            try:
                answer = call()
            except (LakelogException, OSError) as error:
                logger.debug("%s: %s", self._members[root].root.uri, error)
            finally:
                with self._lock:
                    self._pending[root] -= 1
                answers.put(root, answer)

        threading.Thread(target=run, name=f"quorum {self._members[root].root.uri}", daemon=True).start()


class _Answers:
    """The answers of roots, as they come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: dict[str, Any] = {}

    def put(self, root: str, answer: Any) -> None:
        with self._changed:
            self._found[root] = answer
            self._changed.notify_all()

    def wait_for(self, is_enough: Callable[[Mapping[str, Any]], bool], most: int, deadline: float) -> Mapping[str, Any]:
        """The answers that have come once they are enough, or all have come, or at the deadline."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: len(self._found) == most or is_enough(self._found), left)
            return dict(self._found)


def _given(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {root: answer for root, answer in answers.items() if answer is not None}
