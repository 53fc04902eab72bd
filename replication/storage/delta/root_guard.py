"""Distinguishes the cluster root from another one, and from an older copy, that lies at the same address.

An address proves nothing: the root may have been unmounted, deleted, formatted again, restored from a backup, or
another cluster's root may be mounted there. So a process notes the last commit that it has seen of each table of the
cluster root. Later the root at the address must have these commits, or later ones. Otherwise the process reads nothing
from the root, writes nothing to it, and keeps the state that it has read before, until the right root is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentClusterIdException,
    InconsistentClusterRootException,
    KafkaStorageException,
)
from lakelog.replication.storage.delta.commit import ROOTS, SESSION, Commit, Stamp
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot, TableState
from lakelog.replication.storage.delta.table_handle import Opened
from lakelog.replication.storage.delta.table_opening import open_table, reopen_table
from lakelog.schemas import BROKERS, CLUSTER, MEMBERS, METADATA

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0  # how long a check counts in an object store when a table is opened, or while the root is wrong


class _Seen(NamedTuple):
    state: TableState
    stamp: Stamp | None


class _Difference(NamedTuple):
    kind: str  # a process logs each kind once, whichever table shows it
    text: str


class ClusterRootGuard:
    """The states of one cluster root that one process has seen. Threads may share it.

    `describe` returns what lies at the root now, as in "is the root of cluster x". `several`: makes one root of the
    cluster roots with these identities, see `join`; it returns None if the process will not use them.

    Two kinds of tables may change. A table in `brokers` may be made again, because an operator may move a broken one
    away: the guard accepts it as long as the other tables are the right ones. It does not accept another table of the
    process's own broker, see `hold`. A table in `members` may be deleted: the controller does so once nobody uses the
    group.
    """

    def __init__(
        self, root: StorageRoot, describe: Callable[[], str], several: Callable[[Sequence[str]], StorageRoot | None]
    ) -> None:
        self.root = replace(root, guard=self)
        self._plain = root
        self._describe = describe
        self._several = several
        self._is_settled = False
        self._lock, self._joining = threading.Lock(), threading.Lock()
        self._seen: dict[str, _Seen] = {}  # by the name of the table below the root
        self._held: set[str] = set()
        self._newest: str | None = None  # the table whose commit was seen last: a copy from before does not have it
        self._newest_to_stay: str | None = None  # the same, of those that the controller does not delete
        self._checked_at = float("-inf")
        self._doubtful: set[str] = set()  # tables that were found wrong
        self._error: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether the last check found another root or an older one."""
        return self._error is not None

    def hold(self, table: StorageRoot) -> None:
        """From now on refuses another table in the place of this one, which is that of the process's own broker."""
        self._held.add(self._name(table))

    def expect(self, states: Mapping[str, TableState]) -> None:
        """Notes the states of tables, by name, that an earlier process has seen: from now on the root must have them.
        Later states that this process knows count instead.

        Raises InconsistentClusterRootException if the root does not have them; from then on these states count.
        KafkaStorageException if the root cannot be read."""
        with self._lock:
            before = {name: self._seen.get(name) for name in states}
            self._seen.update({name: _Seen(state, None) for name, state in states.items()})
            self._doubtful |= states.keys()
        try:
            self._check()
        except InconsistentClusterRootException:
            raise  # the later states are those of a wrong root
        except KafkaStorageException:
            self._know_again(before)
            raise
        self._know_again(before)

    def _know_again(self, before: Mapping[str, _Seen | None]) -> None:
        with self._lock:
            for name, known in before.items():
                if known is not None and known.state.version > self._seen[name].state.version:
                    self._seen[name] = known

    def difference_from(self, states: Mapping[str, TableState]) -> str | None:
        """How the root differs from one with these states of its tables, as the end of a sentence about the root; None
        if the root has these states. Raises KafkaStorageException."""
        found = self._find_difference({name: _Seen(state, None) for name, state in states.items()})
        return found and found.text

    def states(self, *names: str) -> dict[str, TableState]:
        """Returns the newest states that were seen of these tables."""
        with self._lock:
            return {name: self._seen[name].state for name in names}

    def saw(self, table: StorageRoot, state: TableState, stamp: Stamp | None) -> None:
        """Notes a state that was read or written."""
        name = self._name(table)
        if name.startswith(f"{BROKERS.name}/") and name not in self._held:
            return
        with self._lock:
            known = self._seen.get(name)
            if known is None or (known.state.table_id == state.table_id and known.state.version <= state.version):
                self._seen[name] = _Seen(state, stamp)
                if known is None or known.state.version < state.version:
                    self._newest = name
                    self._newest_to_stay = self._newest_to_stay if _may_go(name) else name

    def seen(self, table: StorageRoot) -> TableState | None:
        """Returns the newest state of a table that was noted."""
        known = self._seen.get(self._name(table))
        return None if known is None else known.state

    def confirm(self, table: StorageRoot) -> None:
        """Notes that the last commit of a table was just found to be there."""
        if self._name(table) == self._newest and self._error is None:
            self._checked_at = time.monotonic()

    # A root that gets others

    def voting(self) -> Sequence[str]:
        """As `RootGuard.voting`. Two look-ups are enough while the root is alone, as nobody writes the table then."""
        known, table = self.seen(self.root.child(CLUSTER.name)), self._table(CLUSTER.name)
        if self.root.is_sequential:
            return ()
        if known is not None:
            following, current = table.stamps([commit_name(known.version + 1), commit_name(known.version)])
            if following is None and current is not None:
                return ()
            if current is None:  # it is cleaned up, or this is not the root that was seen
                self._check()
        return tuple(self._newest_of_cluster().info.get(ROOTS, ()))

    def _newest_of_cluster(self) -> Commit:
        table = self._table(CLUSTER.name)
        try:
            return read_commit(table, last_version(table))
        except (CorruptRecordException, FileNotFoundError) as error:
            raise KafkaStorageException(f"{table.uri}: cannot be read: {error}") from error

    def has_settled(self) -> bool:
        """As `RootGuard.has_settled`: a vote has followed the commit of the table `cluster` that names the roots."""
        if not self._is_settled and self.root.is_sequential:
            self._is_settled = bool(self._newest_of_cluster().info.get(SESSION))
        return self._is_settled

    def join(self, voting: Sequence[str]) -> None:
        """As `RootGuard.join`. The tables keep their URIs, by which others know them."""
        with self._joining:
            if not self.root.is_sequential and (found := self._several(voting)) is not None:
                _say_once(f"{self._plain.uri} is one of {len(voting)} roots of the cluster from now on")
                self._plain = replace(found, uri=self._plain.uri, admits_writers=self.root.admits_writers)
                self.root = replace(self._plain, guard=self)

    def current(self, folder: StorageRoot, of_table: bool = True) -> StorageRoot:
        """As `RootGuard.current`."""
        if len(folder.parts) > 1 or not self.root.is_sequential:
            return folder
        names = self._name(folder).split("/") if folder.uri != self._plain.uri else []
        return self.root.child(*names) if of_table else self.root.folder_of_files(*names)

    def open(self, table: StorageRoot) -> Opened:
        """Opens a table of the root. Raises as `open_table`, and InconsistentClusterRootException."""
        known = self._seen.get(self._name(table))  # before it is opened: meanwhile others may write it
        try:
            opened = open_table(table)
        except (InconsistentClusterIdException, KafkaStorageException):
            self._check()  # a wrong root explains it
            raise
        self._accept(table, opened, known)
        self.check(_AGAIN_SECONDS)
        return opened

    def reopen(self, table: StorageRoot) -> Opened:
        """Opens a table that was there before. Raises KafkaStorageException, and InconsistentClusterRootException."""
        known = self._seen.get(self._name(table))
        try:
            opened = reopen_table(table)
        except KafkaStorageException:
            self._doubt(table)
            raise
        self._accept(table, opened, known)
        self._check()
        return opened

    def _accept(self, table: StorageRoot, opened: Opened, known: _Seen | None) -> None:
        name = self._name(table)
        found = known and self._difference_of(name, known.state, opened)
        if found and self._is_gone(name, found):
            self._forget(name)
        elif found:
            self._doubt(table)
            raise KafkaStorageException(f"{table.uri}: has changed while it was opened: {found.text}")

    def _doubt(self, table: StorageRoot) -> None:
        with self._lock:
            self._doubtful |= {self._name(table)} & self._seen.keys()
        self._check()

    def check(self, max_staleness: float = 0.0) -> None:
        """Raises InconsistentClusterRootException unless the root is the one that was seen, in that state or a later
        one. In an object store an earlier check counts if it is at most `max_staleness` seconds old. Raises
        KafkaStorageException if the root cannot be read."""
        since = time.monotonic() - self._checked_at
        if not self._plain.is_local:
            if self._error is None and since < max_staleness:
                return
            if self._error is not None and since < _AGAIN_SECONDS:
                raise InconsistentClusterRootException(self._error)
        self._check()

    def _check(self) -> None:
        began_at = time.monotonic()
        seen = dict[str, _Seen]()
        found = None
        while found is None and (more := self._to_check(seen)):  # if the newest is forgotten, the one before it counts
            found = self._find_difference(more)
            seen.update(more)
        with self._lock:
            self._checked_at = began_at
            was, self._error = self._error, found and self._sentence(found)
            if found is None:
                self._doubtful -= seen.keys()
        if found is not None:
            _REPORTED.report(self._plain.uri, found.kind, sentence := self._sentence(found))
            raise InconsistentClusterRootException(sentence)
        if was is not None:
            _REPORTED.withdraw(self._plain.uri)

    def _to_check(self, checked: Collection[str]) -> dict[str, _Seen]:
        with self._lock:
            first = [CLUSTER.name, METADATA.name, self._newest, *sorted(self._doubtful)]
            names = [name for name in first if name is not None and name not in checked]
            return {name: self._seen[name] for name in names if name in self._seen}

    def _find_difference(self, seen: Mapping[str, _Seen]) -> _Difference | None:
        found = (self._still_there(name, known) for name, known in seen.items())
        return next((difference for difference in found if difference), None)

    def _still_there(self, name: str, known: _Seen) -> _Difference | None:
        """Finds how a table differs from the state that was seen. It forgets a table of a group that is deleted."""
        try:
            found = self._difference(name, known)
        except KafkaStorageException:
            if not _may_go(name):
                raise
            found = _Difference("table", "has a table of which a part is gone")  # the other tables tell whether all is
        if found is None or not self._is_gone(name, found):
            return found
        self._forget(name)
        return None

    def _is_gone(self, name: str, found: _Difference) -> bool:
        """Whether the controller has deleted this table, and the root is the right one. A member that slept may have
        made the table again. If one of several roots brings the table back, a majority may decide once more on its
        later versions."""
        return _may_go(name) and (found.kind == "table" or len(self._plain.parts) > 1)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._seen.pop(name, None)
            self._newest = self._newest_to_stay if self._newest == name else self._newest

    def _difference(self, name: str, known: _Seen) -> _Difference | None:
        """Finds how a table differs from the state that was seen. One look-up is enough if the commit of that state is
        still there."""
        table, state = self._table(name), known.state
        (stamp,) = table.stamps([commit_name(state.version)])
        if stamp is not None and stamp == known.stamp:
            return None
        if stamp is not None and state.commit and self._commit_id(name, state.version) == state.commit:
            with self._lock:  # a copy has other times of writing
                if self._seen.get(name) == known:
                    self._seen[name] = known._replace(stamp=stamp)
            return None
        try:
            opened = open_table(table)
        except InconsistentClusterIdException:
            return self._other_table(name, is_gone=True)
        return self._difference_of(name, state, opened)

    def _difference_of(self, name: str, seen: TableState, opened: Opened) -> _Difference | None:
        version = opened.last_version
        if opened.table_id != seen.table_id:
            return self._other_table(name, is_gone=False)
        if version < seen.version and len(self._plain.parts) > 1:  # another of the roots may be read by now
            version = self._table(name).catch_up(version)
        if version < seen.version:
            text = f"is an older copy: {name} has version {version}, and version {seen.version} was seen"
            return _Difference("older", text)
        if seen.commit and self._commit_id(name, seen.version) not in ("", None, seen.commit):
            text = f"has another history: version {seen.version} of {name} is not the commit that was seen"
            return _Difference("changed", text)
        return None

    def _other_table(self, name: str, is_gone: bool) -> _Difference:
        """Explains a table that is missing, or is another one: by the identity of the root, if that differs, too."""
        if name == CLUSTER.name:
            return _Difference("gone" if is_gone else "another", self._describe())
        known = self._seen.get(CLUSTER.name)
        of_root = known and self._still_there(CLUSTER.name, known)
        return of_root or _Difference("table", f"lacks its table {name}" if is_gone else f"has another table {name}")

    def _commit_id(self, name: str, version: int) -> str | None:
        """Reads the unique id of a commit, "" if it has none, None if it does not exist. Raises
        KafkaStorageException."""
        try:
            return read_commit(self._table(name), version).unique_id or ""
        except FileNotFoundError:
            return None
        except CorruptRecordException as error:
            raise KafkaStorageException(str(error)) from error

    def _table(self, name: str) -> StorageRoot:
        return self._plain.child(*name.split("/"))

    def _name(self, table: StorageRoot) -> str:
        return table.uri.removeprefix(f"{self._plain.uri}/")

    def _sentence(self, found: _Difference) -> str:
        return (
            f"the cluster root {self._plain.uri} {found.text}. This process reads and writes nothing there until the "
            "right root is back. Check that it is mounted there, and whether somebody has moved or restored it"
        )


def _may_go(name: str) -> bool:
    """Whether the controller may delete a table: that of the members of a group."""
    return name.startswith(f"{MEMBERS.name}/")


@lru_cache(maxsize=100)
def _say_once(sentence: str) -> None:
    logger.warning("%s", sentence)


class _ReportedRoots:
    """The wrong roots that this process has logged: its brokers and clients log each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: dict[str, tuple[str, float]] = {}

    def report(self, uri: str, kind: str, sentence: str) -> None:
        with self._lock:
            known, since = self._reported.get(uri, ("", time.monotonic()))
            self._reported[uri] = kind, since
        if known != kind:
            logger.error("%s", sentence)

    def withdraw(self, uri: str) -> None:
        with self._lock:
            _, since = self._reported.pop(uri, ("", None))
        if since is not None:
            logger.warning("the cluster root %s is back after %.0f s: work goes on", uri, time.monotonic() - since)


_REPORTED = _ReportedRoots()
