"""The roots of a cluster that a process knows: which identities they have, which of them answer, and which is the home.

A root is known by its identity, since another root may lie at its place by now, or an older copy of it. The roots that
answer name the others, so a process that knows one of them finds all. It reads at its home, the first root that it
reaches of those that vote.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.quorum_slot import majority
from lakelog.replication.storage.delta.commit import ROOTS
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.root_requests import SOON_SECONDS, Answers, RootRequests
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import CLUSTER

logger = logging.getLogger(__name__)

_AWAY_SECONDS = 5.0  # between two tries to find roots that are away
_NEARER_SECONDS = 60.0  # until a process looks whether the root that it has left answers again
NO_MAJORITY_SECONDS = 0.5  # likewise while a majority is missing: nothing else can be done

Value = TypeVar("Value")


class KnownRoots:
    """The roots, the nearest first. Threads may share it. `member_at`: makes the root of a URI, for roots that were
    added since."""

    def __init__(
        self, roots: Sequence[QuorumMember], requests: RootRequests, member_at: Callable[[str], QuorumMember] | None
    ) -> None:
        self.all = list(roots)  # whether they vote or not
        self.home = self.all[0]  # the root at which this process reads
        self._chosen_at = time.monotonic()
        self._looked_for_nearer_at = float("-inf")
        self._requests = requests
        self._member_at = member_at
        self._needed = majority(len(self.all))  # how many must have shown their identity before this process works
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._found: dict[str, QuorumMember] = {}  # by identity
        self._asked = set[str]()  # URIs of roots that have not yet answered who they are
        self._sound = set[str]()  # identities of roots that have named themselves
        self._looked_at = self._searched_at = float("-inf")
        self._silent = set[str]()  # the roots that did not answer when a majority was missing last
        self._named_by: float | None = None  # until then the process waits for roots that have not named themselves

    # Who they are

    @property
    def members(self) -> Mapping[str, QuorumMember]:
        """The roots that have answered with an identity since this process began, by it."""
        with self._lock:
            missing = [member for member in self.all if member not in self._found.values()]
            is_due = bool(missing) and time.monotonic() - self._looked_at >= _AWAY_SECONDS
            if is_due:
                self._looked_at = time.monotonic()
        if is_due:
            self._identify(missing)
        if len(self._found) < self._needed:
            with self._answered:
                self._answered.wait_for(lambda: not self._asked, self._seconds_to_name())
        return self._found

    def _seconds_to_name(self) -> float:
        """How long to wait for roots that have not named themselves: the timeout once, as they may hang for ever."""
        now = time.monotonic()
        if self._named_by is None:
            self._named_by = now + self._requests.timeout
        return max(0.0, self._named_by - now)

    def members_of(self, roots: Sequence[str]) -> Mapping[str, QuorumMember]:
        """The members, after a search if some of these roots are not among them."""
        return self.members if self.members.keys() >= set(roots) else self.search(roots)

    def search(self, roots: Sequence[str]) -> Mapping[str, QuorumMember]:
        """The members as they are now, at most every few seconds, or more often without a majority of these roots: some
        may have been added since, or lie where others were that are lost."""
        members, now = self.members, time.monotonic()
        has_majority = len(members.keys() & set(roots)) >= majority(len(roots))
        if now - self._searched_at < (_AWAY_SECONDS if has_majority else NO_MAJORITY_SECONDS):
            return members
        self._searched_at = now
        known = {member.root.uri for member in self.all}
        found = self.at_each(lambda member: member.addresses(), list(members.values()), SOON_SECONDS)
        for addresses in found.values():
            for uri in () if isinstance(addresses, LakelogException) else addresses.values():
                if uri not in known and self._member_at is not None:
                    known.add(uri)
                    self.root_at(uri)
        self._identify(self.all)
        return self._found

    def _identify(self, members: Sequence[QuorumMember]) -> None:
        """Reads the identities of roots. One that hangs is waited for once, for a second, and is found when it
        answers."""

        def identify(member: QuorumMember) -> None:
            if (identity := member.identity()) is not None:
                with self._lock:
                    found = {each: root for root, each in self._found.items()} | {member: identity}
                    self._found = {found[each]: each for each in self.all if each in found}  # the nearest first

        def end(member: QuorumMember) -> None:
            with self._answered:
                self._asked.discard(member.root.uri)
                self._answered.notify_all()

        with self._lock:
            members = [member for member in members if member.root.uri not in self._asked]
            self._asked |= {member.root.uri for member in members}
        answers = Answers()
        for member in members:
            self._requests.begin(member.root.uri, member, answers, partial(identify, member), partial(end, member))
        answers.wait_for(lambda _: False, len(members), SOON_SECONDS)

    def identified(self) -> Mapping[str, QuorumMember]:
        """The members by the identities that they have now."""
        found = dict[str, QuorumMember]()
        answers = self.at_each(lambda member: member.identity(), timeout=SOON_SECONDS)
        for uri, identity in answers.items():
            if isinstance(identity, str):
                found[identity] = next(member for member in self.all if member.root.uri == uri)
        with self._lock:
            self._found = {**self._found, **found}
        return found

    def look_again(self) -> None:
        """Lets the next step look for all roots: some may just have been made."""
        self._looked_at = self._searched_at = float("-inf")

    def root_at(self, uri: str) -> QuorumMember:
        """The root of this URI, from now on one of those that may vote. Its identity is read again."""
        with self._lock:
            member = next((each for each in self.all if each.root.uri == uri), None)
            if member is None:
                if self._member_at is None:
                    raise KafkaStorageException(f"{uri}: is none of the roots that this process knows")
                member = self._member_at(uri)
                self.all = [*self.all, member]
            self._found = {identity: each for identity, each in self._found.items() if each is not member}
            self.look_again()
            return member

    def format(self) -> None:
        """Gives each root an identity. Raises KafkaStorageException."""
        self._found = {member.format(): member for member in self.all}
        self.note_addresses({identity: member.root.uri for identity, member in self._found.items()})

    # Where they are

    def addresses(self) -> dict[str, str]:
        """The URIs of roots by their identities, as the roots that answer have noted them, and as they are."""
        found: dict[str, str] = {}
        for addresses in self.at_each(lambda member: member.addresses()).values():
            if not isinstance(addresses, LakelogException):
                found |= addresses
        return found | {identity: member.root.uri for identity, member in self.members.items()}

    def noted_addresses(self, roots: Iterable[str]) -> dict[str, str]:
        """The URIs of roots by their identities, as these of them have noted them that answer."""
        members = [member for root, member in self.members.items() if root in roots]
        found = self.at_each(lambda member: member.addresses(), members).values()
        return {root: uri for each in found if not isinstance(each, LakelogException) for root, uri in each.items()}

    def note_addresses(self, addresses: Mapping[str, str]) -> None:
        """Notes the URIs of roots, by their identities, at those of them that answer, and at roots that know one of
        them: not at the root of another cluster."""

        def note(member: QuorumMember) -> None:
            identity, known = member.identity(), set[str]()
            with suppress(LakelogException):
                known = {*member.addresses()}
            if identity is not None and not addresses.keys().isdisjoint({identity, *known}):
                member.note_addresses(addresses)

        for uri, error in self.at_each(note).items():
            if error is not None:
                logger.warning("%s does not learn where the roots of the cluster are: %s", uri, error)

    # To ask them

    def at_each(
        self, call: Callable[[QuorumMember], Value], members: Sequence[QuorumMember] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Value | LakelogException]:  # fmt: skip
        """As `RootRequests.at_each`, by default with all roots."""
        return self._requests.at_each(call, list(self.all) if members is None else members, timeout)

    def ask(
        self, roots: Sequence[str], call_of: Callable[[str, QuorumMember], Callable[[], Any]],
        is_enough: Callable[[Mapping[str, Any]], bool], timeout: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Runs a call for each of these roots, by their identities: the one that `call_of` makes. Returns the answers
        once they are enough, or after `timeout` seconds, the home's first, without those of None."""
        members = self.members_of(roots)
        there = {root: members[root] for root in roots if root in members}
        calls = {root: (member, call_of(root, member)) for root, member in there.items()}
        found = self._requests.ask(calls, is_enough, timeout, majority(len(roots)))
        # To say why, if a majority is missing.
        self._silent = set(roots) - found.keys() if len(found) < majority(len(roots)) else set()
        return dict(sorted(found.items(), key=lambda item: there[item[0]] is not self.home))

    def answering(self, members: Mapping[str, QuorumMember]) -> Sequence[QuorumMember]:
        """The roots of `members`, without the home, that answer soon and still have these identities."""
        others = {root: member for root, member in members.items() if member is not self.home}
        found = self.at_each(lambda member: member.identity(), list(others.values()), SOON_SECONDS)
        return [member for root, member in others.items() if found[member.root.uri] == root]

    def no_majority(self, roots: Sequence[str]) -> str:
        """Why nothing could be decided by these roots, for an operator."""
        silent = [root for root in roots if root in self._silent or root not in self.members]
        if len(roots) - len(silent) >= majority(len(roots)):
            return (
                f"no majority of the {len(roots)} cluster roots has agreed, as other processes write too, or as some "
                "must be replaced: `lakelog cluster-roots` shows them"
            )
        return _no_answer(len(roots), self._named(silent))

    def who_is_silent(self) -> str:
        """As `no_majority`, by the roots that do not answer soon, while nobody knows who votes."""
        found = self._requests.soon(lambda member: member.identity(), self.all)
        silent = [uri for uri, identity in found.items() if not isinstance(identity, str)]
        return _no_answer(len(found), silent or list(found))

    def _named(self, roots: Sequence[str]) -> list[str]:
        uris = {identity: member.root.uri for identity, member in self._found.items()}
        if any(root not in uris for root in roots):
            with suppress(LakelogException):
                uris = self.home.addresses() | uris
        return [uris.get(root, f"root {root}") for root in roots]

    # The home

    @property
    def home_has_failed(self) -> bool:
        """Whether a read at the home has failed since it was chosen, maybe one of another cluster that this process has
        opened: it finds out once that a store does not answer."""
        return self.home.failed_at > self._chosen_at

    def due_nearer_roots(self) -> Mapping[str, QuorumMember]:
        """The roots that are nearer than the home, those left out at which requests hang; none if they were asked for
        in the last minute."""
        home, now = self.home, time.monotonic()
        if home is self.all[0] or now - self._looked_for_nearer_at < _NEARER_SECONDS:
            return {}
        self._looked_for_nearer_at = now
        nearer = [each for each in self.all[: self.all.index(home)] if not self._requests.hanging(each.root.uri)]
        return {root: each for root, each in self._found.items() if each in nearer}

    def go_nearer(self, home: QuorumMember, was: QuorumMember) -> None:
        """Lets a root be the home again that has what this process has read at the present one, unless another one has
        become it meanwhile."""
        with self._lock:
            if self.home is not was:
                return
            self.home, self._chosen_at = home, time.monotonic()
        logger.info("%s is read again, and %s no more", home.root.uri, was.root.uri)

    def at_home(self, call: Callable[[StorageRoot], Value]) -> Value:
        """Calls `call` with the home. If that does not answer, the next root becomes the home. Raises the error of the
        last one, KafkaStorageException."""
        return self._at_home(lambda home: call(home.root))

    def read_at_home(self, call: Callable[[StorageRoot], Value]) -> Value:
        """As `at_home`, for a call that only reads: it leaves a home that hangs soon, see `QuorumMember.read`."""
        return self.repeat_if_slow(lambda: self._at_home(lambda home: home.read(call)))

    def repeat_if_slow(self, call: Callable[[], Value]) -> Value:
        """Calls `call`, which reads at one root after the other, and once more with more patience if reads at all of
        them have failed: their stores may be slow. Raises KafkaStorageException."""
        began_at = time.monotonic()
        try:
            return call()
        except KafkaStorageException:
            if not self._become_patient(self.all, began_at):
                raise
        return call()

    def _become_patient(self, members: Sequence[QuorumMember], since: float) -> bool:
        """Whether reads at all of these roots have failed since then, and the next ones wait longer."""
        if any(member.failed_at < since for member in members):
            return False
        return True in {member.be_patient(since) for member in members}

    def _at_home(self, call: Callable[[QuorumMember], Value]) -> Value:
        tried = set[str]()
        while True:
            home = self.home
            try:
                return call(home)
            except KafkaStorageException as error:
                tried.add(home.root.uri)
                left = sorted(
                    (member for member in self.all if member.root.uri not in tried),
                    key=lambda member: (
                        member not in self._found.values(),
                        self._requests.hanging(member.root.uri) > 0,
                        member.failed_at,
                    ),
                )
                if not left:
                    raise
                logger.debug("%s", error)
                if self.home is home:
                    self._move_home(left[0])

    def check_home(self, voting: Sequence[str]) -> QuorumMember:
        """The home if it is one of those that vote on a table, or else the next root that is, which becomes the home.
        An emptied root has no commits, though no error says so, and one that was removed gets none. If no such root is
        there, others may vote by now, so any root will do. `voting`: empty if this process does not know. Raises
        KafkaStorageException if there is none."""
        members = self.members
        if not members:
            return self.home  # they are not formatted
        if voting:
            members = self.members_of(voting)
        began_at = time.monotonic()
        found = self._find_home(members, voting)
        failed = [member for member in members.values() if member.failed_at >= began_at]
        if found is None and failed and self._become_patient(failed, began_at):
            found = self._find_home(members, voting)
        if found is None:  # all that voted may have been replaced since this process has looked
            found = self._find_home(self.identified(), voting)
        if found is None:
            raise KafkaStorageException(self.no_majority(tuple(voting or self.members)))
        return found

    def leave_home(
        self, table: Sequence[str], version: int, roots: Sequence[str], error: str
    ) -> tuple[QuorumMember, int]:  # fmt: skip
        """Moves the home, which lacks a version and does not get it, as its disk may be full, to the first of these
        roots that has it. Returns the home and its newest version. Raises KafkaStorageException with this error if
        there is none."""
        members = [(root, member) for root, member in self.members.items() if root in roots]
        found = self.at_each(
            lambda member: (member.identity(), member.newest(table)), [each for _, each in members], SOON_SECONDS
        )
        for root, member in members:
            answer = found[member.root.uri]
            if not isinstance(answer, LakelogException) and answer[0] == root and answer[1] >= version:
                self._move_home(member)
                return member, answer[1]
        raise KafkaStorageException(error)

    def find_newest(self, table: Sequence[str], voting: Sequence[str]) -> int:
        """The newest version of a table at the first root that answers soon and has the table, the home first. That
        root becomes the home. -1 without any. `voting`: as in `check_home`."""
        of = {member: root for root, member in self.members.items()}

        def look(member: QuorumMember) -> int:
            root = of[member]
            may_be_read = member.identity() == root and (root in voting or self._is_sound(root, member))
            return member.newest(table) if may_be_read else -1

        found = self._requests.soon(look, list(of))
        for member in sorted(of, key=lambda m: (bool(voting) and of[m] not in voting, m is not self.home)):
            newest = found[member.root.uri]
            if not isinstance(newest, LakelogException) and newest >= 0:
                self._move_home(member)
                return newest
        return -1

    def _find_home(self, members: Mapping[str, QuorumMember], voting: Sequence[str]) -> QuorumMember | None:
        """The first of these roots that may be the home: those that vote before others, those at which a request hangs
        or a read has failed last, and the present home first."""

        def order(item: tuple[str, QuorumMember]) -> tuple[bool, bool, float, bool]:
            root, member = item
            hangs = self._requests.hanging(member.root.uri) > 0
            return bool(voting) and root not in voting, hangs, member.failed_at, member is not home

        home = self.home
        in_order = sorted(members.items(), key=order)
        bare, silent = list[QuorumMember](), set[str]()
        for root, member in in_order:
            try:
                if member.is_still(root, quick=True):
                    if root in voting or self._is_sound(root, member):
                        self._move_home(member)
                        return member
                    if member.newest((CLUSTER.name,)) < 0:
                        bare.append(member)
            except KafkaStorageException:
                silent.add(root)
            except (CorruptRecordException, FileNotFoundError) as error:
                logger.debug("%s: %s", member.root.uri, error)
        if bare:  # the cluster is being formatted, or the root is about to get its tables
            self._move_home(bare[0])
            return bare[0]
        self._silent = silent
        return None

    def _is_sound(self, root: str, member: QuorumMember) -> bool:
        """Whether a root's own table `cluster` names it. An older copy of a root has another identity than the one that
        it names."""
        if root not in self._sound:
            folder = member.root.child(CLUSTER.name)
            version = last_version(folder)
            if version < 0 or root not in read_commit(folder, version).info.get(ROOTS, ()):
                return False
            self._sound.add(root)
        return True

    def _move_home(self, home: QuorumMember) -> None:
        with self._lock:
            was, self.home, self._chosen_at = self.home, home, time.monotonic()
        if was is not home:
            self._looked_for_nearer_at = time.monotonic()
            logger.warning("%s is read from now on, as %s cannot be", home.root.uri, was.root.uri)


def _no_answer(roots: int, silent: Sequence[str]) -> str:
    """Why nothing can be decided: the `silent` ones of all `roots` do not answer."""
    return (
        f"no majority of the {roots} cluster roots has answered, as {' and '.join(silent)} "
        f"{'does' if len(silent) == 1 else 'do'} not; if they are lost for good, `lakelog recover` makes the cluster "
        "root again from the roots of the brokers"
    )
