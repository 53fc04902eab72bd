"""The commits of one Delta table, written and replayed file by file.

delta-rs writes checkpoints, and opens most tables: see `replayed_table`. Commits it writes and reads a hundred times as
slowly as these files take, with listings in between, and it checks almost nothing. So this module has every rule of a
safe commit: it writes exactly the next version, if no other writer has, and retries nothing. It counts a refusal only
after it has read that version, and its own commit only if the one before it still exists: there may be a hole by now.
Each commit has the unique id of the one before it, so that no commit of another history of the table is ever replayed:
see `log_recovery`.
`CommitTracker` has the commits that a reader or writer has seen, and `DeltaLog` a table at a version.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from deltalake.exceptions import DeltaError

from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentBrokerRootException,
    InconsistentClusterIdException,
    KafkaStorageException,
)
from lakelog.replication.storage.delta.checkpoint import newest_checkpoint
from lakelog.replication.storage.delta.commit import CHANGE_ROOTS, ROOTS, AddedFile, Commit, Stamp
from lakelog.replication.storage.delta.commit_format import (
    commit_content,
    commit_name,
    last_version,
    parsed,
    read_commit,
    read_commits_after,
    tidy_log,
)
from lakelog.replication.storage.delta.commit_listeners import note_commit, notify_listeners
from lakelog.replication.storage.delta.log_recovery import recover_log
from lakelog.replication.storage.delta.storage_root import StorageRoot, TableState
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import Opened
from lakelog.replication.storage.delta.table_opening import (
    create_table,
    open_table,
    open_version,
    reopen_table,
    transaction_of,
)
from lakelog.schemas import Table

_KEPT = 16
_ATTEMPTS = 12  # of `let_vote`
_SURE_SECONDS = 60.0  # how long a reader's check that a commit exists counts, in an object store
SURE_FOR_COMMITS_SECONDS = 10.0  # the same for a writer, whose file would stay where a deleted table was

# The commits between two checkpoints. Opening a table reads every commit since the last checkpoint.
CHECKPOINT_COMMITS = 50


class CommitTracker:
    """The stamps of the commits of one table that one reader or writer has seen. It is not thread-safe.

    A writer that was frozen for long may put its commit into a gap that a clean-up has left. The file then has the name
    of a deleted commit, and looks like the newest one to a reader that has not read further. So a reader recognises a
    commit by its file's size and time of writing (or ETag), not only by its name.
    """

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self.stamps: dict[int, Stamp] = {}  # by version
        self._sure = -1, float("-inf")  # the last version that was there, and when

    def remember(self, version: int, stamp: Stamp | None, at: float | None = None) -> None:
        """Notes the stamp of a commit that was read or written `at` a time of the monotonic clock, by default just now;
        None if the store did not give one."""
        if stamp is not None:
            self._sure = version, time.monotonic() if at is None else at
            self.stamps[version] = stamp
            while len(self.stamps) > _KEPT:
                del self.stamps[min(self.stamps)]

    def in_hand(self, version: int) -> list[Commit]:
        """The commits after a version that this process has in its memory, in order. They were there when it has read
        or written them."""
        noted, found = self._root.version_cache, list[Commit]()
        while noted is not None:
            last = version + len(found)
            commit, noted_at = noted.commits.after(self._root.uri, last, self.stamps.get(last))
            if commit is None:
                break
            if self.stamps.get(commit.version) != commit.stamp:
                self.remember(commit.version, commit.stamp, noted_at)
            found.append(commit)
        return found

    def polled_at(self, version: int, since: float | None) -> float | None:
        """The monotonic time at which a poll of this process began that found no commit after a version; None if there
        was none since `since`."""
        noted = self._root.version_cache
        return None if noted is None or since is None else noted.polled_at(self._root.uri, version, since)

    @contextmanager
    def one_poll(self, version: int, since: float | None) -> Iterator[None]:
        """Coalesces concurrent reads of the commits after a version: one thread reads, the others wait for its result.
        A poll that began at or after `since` is such a result already."""
        noted = self._root.version_cache
        is_known = self.polled_at(version + len(self.in_hand(version)), since) is not None
        with nullcontext() if noted is None or since is None or is_known else noted.one_poll(self._root.uri):
            yield

    def is_there(self, version: int) -> bool:
        """Whether a commit still exists. If it was seen, its file must be the one that was seen."""
        (stamp,) = self._root.stamps([commit_name(version)])
        is_there = self._is_known(version, stamp)
        self.remember(version, stamp if is_there else None)
        return is_there

    def _is_known(self, version: int, stamp: Stamp | None) -> bool:
        return stamp is not None and self.stamps.get(version, stamp) == stamp

    def is_sure(self, version: int, seconds: float = _SURE_SECONDS) -> bool:
        """Whether the commit was there a moment ago, and its store keeps commits for at least an hour.

        A later commit need not follow this one: the table may have been made again meanwhile."""
        sure, at = self._sure
        return not self._root.is_local and version == sure and time.monotonic() - at < seconds

    def _poll(self, version: int) -> tuple[Stamp | None, bool]:
        """The stamp of the commit after a version, None without one, and whether the version is still there. One
        look-up is enough if it was there a moment ago and no commit follows."""
        if self.is_sure(version) and not self._root.exists(commit_name(version + 1)):
            return None, True
        following, current = self._root.stamps([commit_name(version + 1), commit_name(version)])
        is_there = self._is_known(version, current)
        self.remember(version, current if is_there else None)
        return following, is_there

    def newest(self, known: int) -> int:
        """The newest version of the table, searched from `known` on, for polls: one look-up or two if it has not moved.

        Lists the log only if `known` is -1 or deleted, because the next file may then be a late one in a clean-up's
        gap.
        """
        while known >= 0:
            following, is_there = self._poll(known)
            if not is_there:
                break
            if following is None:
                return known
            known += 1
            self.remember(known, following)
        newest = last_version(self._root)
        if newest >= 0:
            self.remember(newest, self._root.stamps([commit_name(newest)])[0])
        return newest


class CommitConflict(Exception):
    """Another writer committed the expected version: replay and decide again."""


class CommitUnknown(Exception):
    """The outcome of the commit is unknown: look for the rows that it would have written."""


class DeltaLog:
    """One table at the version up to which it was replayed. It is not thread-safe: its owner locks."""

    def __init__(self, root: StorageRoot, opened: Opened) -> None:
        self.root = root
        self._is_owner, self._is_held = False, False
        self._own: tuple[Commit, float] | None = None  # the commit that was written last, and when that began
        self.polled_at = time.monotonic()  # when the poll began that found `version` to be the newest
        self._checkpointed = opened.version
        self._use(opened)

    def _use(self, opened: Opened) -> None:
        """Starts from the version that was opened, and replays the commits of its `tail` after it. Raises
        KafkaStorageException if the commit of the version is torn, or if a commit after it is missing in the tail: one
        of several roots may have answered for the version, and another one for the tail."""
        tail = opened.tail
        if tail is None:
            try:
                tail = [read_commit(self.root, opened.version)]
            except FileNotFoundError:  # a checkpoint has its content
                tail = []
            except CorruptRecordException as error:
                raise KafkaStorageException(str(error)) from error
        later = [commit for commit in tail if commit.version > opened.version]
        for version, commit in enumerate(later, opened.version + 1):
            if commit.version != version:
                raise KafkaStorageException(
                    f"{self.root.uri}: version {version} is missing, though {commit.version} is there"
                )
        newest = next((commit for commit in tail if commit.version == opened.version), None)
        self._handle, self._handle_uri = opened.handle, self.root.home_uri  # no handle: `_txns` are all
        self._version, self._table_id = opened.version, opened.table_id
        self._note_voting(newest)
        self._unique_id = newest.unique_id if newest else None  # of the commit of that version
        self._commits, self._checkpointed = CommitTracker(self.root), min(self._checkpointed, self._version)
        self._synced = -1  # up to this version the names of commits are durable, as far as this process has seen to it
        # Those after the version of the handle, and those that were asked for.
        self._txns: dict[str, int | None] = {**opened.txns}
        self._inlined: list[str] = []  # files whose content is in the last commit
        self._files = {file.name: file for file in opened.files()}
        self._is_before_torn = bool(tail) and tail[-1].version > self._version  # a checkpoint that cannot be read
        self._commits.remember(self._version, newest.stamp if newest else None)
        self._note_state()
        for commit in later:
            self._apply(commit)

    def _read_if_there(self, version: int) -> Commit | None:
        try:
            return read_commit(self.root, version)
        except FileNotFoundError:
            return None

    def _that_follow(self, commits: Sequence[Commit]) -> list[Commit]:
        """The next commits, up to the first that does not follow the one before it."""
        found, before = list[Commit](), self._unique_id
        for commit in commits:
            if not commit.follows(before):
                break
            found.append(commit)
            before = commit.unique_id
        return found

    def _note_voting(self, newest: Commit | None) -> None:
        """Notes which roots vote on the next version, by their identities: none if this root is alone."""
        self._voting: Sequence[str] = () if newest is None else newest.info.get(ROOTS, ())
        if newest is None and self.root.guard is not None:  # its file is gone
            self._voting = self.root.guard.voting()

    def _join(self, is_lost: bool = False) -> bool:
        """Goes on at all roots of the cluster if several vote, and the root was alone before. Returns whether it did.
        `is_lost`: the root does not answer, so it is enough that another table has shown the others. Raises
        KafkaStorageException."""
        guard = self.root.guard
        if self.root.is_sequential or guard is None:
            return False
        if self._voting:
            guard.join(self._voting)
        elif not is_lost and not guard.has_settled():  # then a table without roots that vote does not count
            return False
        if (current := self.root.current) is self.root:
            return False
        self.root, self._commits = current, CommitTracker(current)
        return True

    def _note_state(self) -> None:
        """Lets the guard of the cluster root know the state that this process has seen."""
        if self.root.guard is not None:
            state = TableState(self.table_id, self._version, self._unique_id or "")
            self.root.guard.saw(self.root, state, self.stamp)

    @classmethod
    def create(cls, root: StorageRoot, table: Table) -> DeltaLog:
        """Creates an empty table. Raises InconsistentClusterIdException if one exists, KafkaStorageException."""
        if root.guard is not None:
            root.guard.check()
        made = create_table(root, table)
        if root.is_alone():
            return cls(root, made)
        with suppress(InconsistentClusterIdException):  # others have made it
            return cls(root.current, create_table(root.current, table))
        return cls.open(root.current)

    @classmethod
    def open(cls, root: StorageRoot) -> DeltaLog:
        """Opens an existing table at its newest version. Raises as `open_table`."""
        log = cls(root, open_table(root) if root.guard is None else root.guard.open(root))
        return cls.open(log.root) if log._join() else log

    @property
    def version(self) -> int:
        """The version up to which the table was replayed."""
        return self._version

    @property
    def unique_id(self) -> str | None:
        """The unique id of the commit of that version; None if it is not known."""
        return self._unique_id

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the commit of the version; None if it was not seen."""
        return self._commits.stamps.get(self._version)

    @property
    def table_id(self) -> str:
        """Delta's id of the table. A table that was created again has another id."""
        return self._table_id

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, None if it never did. It survives checkpoints and clean-ups.

        Raises KafkaStorageException, because a call for an `app_id` may read the table.
        """
        if app_id not in self._txns:
            self._txns[app_id] = self._search(app_id)
        return self._txns[app_id]

    def _search(self, app_id: str) -> int | None:
        if self._handle is None:
            return None
        if self._handle_uri == self.root.home_uri:  # else that root may hang
            # A clean-up may have deleted commits of the handle; a newer checkpoint has their content.
            with suppress(DeltaError, OSError):
                return self._handle.transaction_version(app_id)  # it reads the log anew for each call
        if self.root.guard is not None:
            self.root.guard.check()
        self._handle_uri, self._handle = self.root.home_uri, open_version(self.root, self.version)
        return transaction_of(self.root, self._handle, app_id)

    def move(
        self, max_staleness: float | None = None, *, is_read: bool = False, for_commit: bool = False
    ) -> list[Commit] | None:
        """Replays the following commits, to the newest version, and returns them in order.

        Without a `max_staleness` it always reads the store. With one, in seconds, it may use what another poll of this
        process has found, if the table is in an object store. `is_read`: nothing is decided on what it finds, so it
        may go on as `StorageRoot.catch_up` says. `for_commit`: a commit waits for it, so in several cluster roots
        it asks for one commit more than it may need, at the same time. That costs little beside votes.

        Returns None if the table was opened anew, because a clean-up has deleted commits that were not replayed, or
        another tool has changed more than files: the state must be built from `active_files`. A clean-up deletes the
        oldest commits first, so there is no gap after a version that still exists. A commit that a slow writer puts
        into a gap does not count, nor does one that was written after another commit than the one before it: the owner
        puts that aside. Raises KafkaStorageException if a commit is torn, InconsistentClusterRootException if this is
        not the cluster root that was seen, or InconsistentBrokerRootException if a table that is held lacks what was
        replayed; then the version stays.
        """
        found: list[Commit] | None = []
        try:
            found = self._read_on(max_staleness, is_read, for_commit)
        except KafkaStorageException:
            if not self._join(is_lost=True):
                raise
        else:
            if not self._join():
                return found
        more = self._read_on(max_staleness, is_read, for_commit)  # other roots may have decided it
        return None if found is None or more is None else found + more

    def _read_on(self, max_staleness: float | None, is_read: bool, for_commit: bool) -> list[Commit] | None:
        if self.root.guard is not None and self.root.guard.is_wrong:
            self.root.guard.check()
        started = time.monotonic()
        since = None if max_staleness is None else started - max_staleness
        decided = -1
        if since is not None and not self.root.behind:
            self.root.catch_up_now_and_then(self.version)
        else:
            decided = self.root.catch_up(self.version, is_read=is_read or since is not None)
        if decided == self.version:
            self.polled_at = started
            if self.root.version_cache is not None:
                self.root.version_cache.polled(self.root.uri, decided, started)
            return []
        with self._commits.one_poll(self.version, since):
            found = self._move(started, since, for_commit)
        if self.version < decided:
            raise KafkaStorageException(f"{self.root.uri}: version {decided} cannot be read here")
        return found

    def _move(self, started: float, since: float | None, for_commit: bool) -> list[Commit] | None:
        found, noted = self._commits.in_hand(self.version), self.root.version_cache
        base = self.version + len(found)
        is_plain = all(commit.is_plain for commit in found)  # a follower shares commits that it does not replay
        seen = self._commits.polled_at(base, since) if is_plain else None
        if seen is None:
            guard = self.root.guard
            expected = None if guard is None else guard.seen(self.root)  # before the poll: others may commit meanwhile
            try:
                is_eager = for_commit and self.root.is_sequential and not self.root.is_local
                read = read_commits_after(self.root, base, at_once=2 if is_eager else 1)
            except CorruptRecordException as error:
                raise KafkaStorageException(str(error)) from error
            found += read
            # Commits that follow may be those of a table that was made again.
            is_recent = since is not None and not read and self._commits.is_sure(base)
            is_sequel = self.root.is_sequential and bool(read) and self._that_follow(found) == found
            is_there = is_recent or is_sequel or self._commits.is_there(base)
            lacks_it = expected is not None and self._lacks(expected, base, self._that_follow(found))
            if not is_there or lacks_it or not all(commit.is_plain for commit in found):
                if noted is not None:
                    noted.forget(self.root.uri)
                opened = reopen_table(self.root) if guard is None else guard.reopen(self.root)
                if self._is_held:
                    self._check_continues(opened)
                self._use(opened)
                return None
            if read and guard is not None:
                guard.check(SURE_FOR_COMMITS_SECONDS)  # an older copy of the root may go on with this table
        follow = self._that_follow(found)
        if len(follow) < len(found) and self._is_owner:
            self.check_root()
            recover_log(self.root)
        found = follow
        for commit in found:
            self._apply(commit)
        self.polled_at = started if seen is None else seen
        if noted is not None and seen is None:
            noted.polled(self.root.uri, self.version, started)
        return found

    def hold(self) -> None:
        """For the owner of a log: from now on the table is accepted only as long as it has every commit that was
        replayed."""
        self._is_held = True

    def _check_continues(self, opened: Opened) -> None:
        """Raises InconsistentBrokerRootException unless a table that was opened anew has all that was replayed of it.
        An older copy of the root, or another root, may lie in its place. If the commit was cleaned up, a
        checkpoint has its content."""
        if opened.table_id == self.table_id and opened.last_version >= self.version:
            try:
                found = self._read_if_there(self.version)
            except CorruptRecordException as error:
                raise KafkaStorageException(str(error)) from error
            has_content = found is None and newest_checkpoint(self.root) >= self.version
            if has_content or (found is not None and self._unique_id in (None, found.unique_id)):
                return
        raise InconsistentBrokerRootException(
            f"{self.root.uri}: it is not what this process has seen: version {self.version} is gone or is another one; "
            "perhaps an older copy of the root is there now, or another root"
        )

    def recover(self) -> None:
        """For the table's owner, before its first commit and from time to time: puts aside commits that were written
        after lost ones. From now on it does so with each such commit that it finds. Raises KafkaStorageException.
        """
        self._is_owner = True
        self.check_root()
        later = [name for name in self.root.child("_delta_log").list() if name[:20].isdigit()]
        later = [name for name in later if int(name[:20]) > self.version]
        following = self._read_if_there(self.version + 1) if later else None
        is_ghost = bool(later) and (following is None or not following.follows(self._unique_id))
        if is_ghost or self._is_before_torn:
            recover_log(self.root)
            self._is_before_torn = False

    def _lacks(self, seen: TableState, version: int, following: Sequence[Commit]) -> bool:
        """Whether a version and the commits that follow it, one after another, lack what another reader of this process
        has seen of the cluster root's table. Then this is an older copy, another history, or another table."""
        if seen.table_id != self.table_id:
            return True
        read = {commit.version: commit.unique_id for commit in following}
        return seen.version > version and read.get(seen.version) != seen.commit

    def move_own(self) -> Commit:
        """Replays the commit that was written last, without reading it, and none after it."""
        assert self._own is not None, "a commit is replayed once"
        (commit, began_at), self._own = self._own, None
        self._apply(commit, began_at)
        self.polled_at = max(self.polled_at, began_at)
        notify_listeners(self.root.uri, commit.info.get("why"))
        return commit

    def _apply(self, commit: Commit, began_at: float = float("-inf")) -> None:
        before = self._commits.stamps.get(self.version)
        for file in commit.removes:
            self._files.pop(file.name, None)
        self._files.update({name: self._files[name].light for name in self._inlined if name in self._files})
        self._inlined = [file.name for file in commit.adds if file.content is not None]
        self._files.update({file.name: file for file in commit.adds})
        self._txns.update(commit.txns)
        self._version, self._unique_id, self._voting = commit.version, commit.unique_id, commit.info.get(ROOTS, ())
        if self._commits.stamps.get(commit.version) != commit.stamp:
            self._commits.remember(commit.version, commit.stamp)
        note_commit(commit.info.get("why"))
        if self.root.version_cache is not None:
            self.root.version_cache.moved(self.root.uri, commit.version, commit.info.get("why"), began_at)
            self.root.version_cache.commits.add(self.root.uri, before, commit)
        self._note_state()

    def checkpoint_if_due(self, commits_kept: int | None = None, *, keeps_all: bool = False) -> None:
        """Writes a checkpoint after CHECKPOINT_COMMITS commits, and drops commits beyond the log retention.

        Only the table's owner calls this, outside the commit path: who opens a table reads all commits since the
        checkpoint. On a local disk at most `commits_kept` commits stay. `keeps_all`: drops none. Raises
        KafkaStorageException.
        """
        if self.version - self._checkpointed < CHECKPOINT_COMMITS:
            return
        try:
            self.recover()
            # Only files older than the last checkpoint go: if the new one is torn, the table can be read from that one.
            if self._handle is not None and not keeps_all:  # without a handle there was no checkpoint
                self._handle.cleanup_metadata()
            if self.root.is_local and not keeps_all:
                tidy_log(self.root, self.version, commits_kept)
            handle = self.root.checkpoint_table(self.version)
        except (DeltaError, OSError) as error:
            raise KafkaStorageException(f"{self.root.uri}: a checkpoint cannot be written: {reason(error)}") from error
        self._handle, self._handle_uri = handle, self.root.home_uri
        self._txns, self._checkpointed = {}, self.version

    def active_files(self) -> list[AddedFile]:
        """All data files of the version, in no order. Small files of its last commit may have their content."""
        return list(self._files.values())

    def commit(
        self,
        cause: Mapping[str, Any],
        adds: Sequence[AddedFile] = (),
        removes: Sequence[AddedFile] = (),
        txns: Mapping[str, int] | None = None,
        *,
        overwrite: bool = False,
        data_change: bool = True,
        expire: Collection[str] = (),
    ) -> int:
        """Commits version + 1 or nothing, and returns that version; `version` stays until `move_own` or `move`.

        `cause` goes into the commit's metadata: the writer and its reason. `overwrite` drops every file that is not in
        `adds`. `expire`: the `txns` that may be forgotten after the table's retention of them. Raises CommitConflict if
        another commit won, CommitUnknown if the outcome cannot be read.
        """
        expected, nonce, began_at = self.version + 1, uuid.uuid4().hex, time.monotonic()
        self.check_root()
        self._join()
        if self._voting and not self.root.is_sequential:
            raise KafkaStorageException(f"{self.root.uri}: is one of {len(self._voting)} roots, which decide together")
        if overwrite:
            kept = {file.name for file in adds}
            removes = [file for name, file in self._files.items() if name not in kept]
        facts, stamp = (cause, nonce, adds, removes, txns or {}), None
        content = commit_content(
            *facts, follows=self._unique_id, overwrite=overwrite, data_change=data_change, expire=expire
        )
        try:
            is_sure = self.root.is_sequential or self._commits.is_sure(self.version, SURE_FOR_COMMITS_SECONDS)
            if not is_sure and not self._commits.is_there(self.version):
                raise FileNotFoundError(f"version {self.version} is gone")
            stamp = self.root.put_if_absent(commit_name(expected), content)
            if stamp is None:
                raise FileExistsError(f"version {expected} exists")
        except (OSError, KafkaStorageException) as error:
            self._settle(expected, nonce, error)
        if not self.root.is_sequential and not self._commits.is_there(expected - 1):
            self._settle(expected, nonce, TimeoutError("the commit before it may have been cleaned up"))
        if self.root.guard is not None:  # the commit before may be the same in an older copy that is there by now
            self.root.guard.confirm(self.root)
            self.check_root()
        self.root.sync("_delta_log")
        self._own, self._synced = (parsed(expected, content, stamp), began_at), expected
        return expected

    def let_vote(self, voting: Sequence[str]) -> None:
        """Lets the cluster roots with these identities vote on the next version of a table that this root has decided
        alone. Does nothing if roots vote on it. Raises KafkaStorageException."""
        self.recover()  # a late commit after a hole would look like the newest one
        for _ in range(_ATTEMPTS):
            self.move()
            if self._voting:
                return
            with suppress(CommitConflict, CommitUnknown):
                self.commit({**CHANGE_ROOTS, ROOTS: list(voting)})
                self.move_own()
                return
        raise KafkaStorageException(f"{self.root.uri}: lost {_ATTEMPTS} commits in a row to others")

    def sync(self) -> None:
        """With `fsync`, makes the names of the commits up to the version durable, for a writer that finds its work done
        in them. Their own writer may have died before it could, or its sync has failed. It does nothing if no commit of
        another has come since the last time. Raises KafkaStorageException."""
        if self._synced < self.version:
            self.root.sync("_delta_log")
            self._synced = self.version

    def check_root(self) -> None:
        """Raises InconsistentClusterRootException, before anything is written, if this is a table of a cluster root
        that is not the one that this process has seen."""
        if self.root.guard is not None:
            self.root.guard.check(SURE_FOR_COMMITS_SECONDS)

    def _settle(self, expected: int, nonce: str, error: Exception) -> None:
        """Finds the outcome of a commit that failed or may be behind a hole. Returns if it landed, otherwise raises.

        The commit landed if the version has its nonce and the version before still exists. Without that one, it may be
        in a gap of a clean-up, or a ghost, which the table's owner puts aside. A lost reply of an object store looks
        like a refusal, so every refusal comes here.
        """
        try:
            landed = read_commit(self.root, expected)
            follows = self._commits.is_there(expected - 1)
        except (FileNotFoundError, KafkaStorageException, CorruptRecordException):  # the outcome is unreadable now
            raise CommitUnknown(f"{self.root.uri}: version {expected}: {reason(error)}") from error
        if not landed.follows(self._unique_id):
            raise CommitUnknown(
                f"{self.root.path(commit_name(expected))} was written after another version {self.version} than the "
                f"table has, so it does not count; the table's owner puts it aside"
            ) from error
        if landed.unique_id != nonce:
            raise CommitConflict(f"{self.root.uri}: version {expected} is another writer's") from error
        if not follows:
            raise CommitUnknown(f"{self.root.uri}: version {expected - 1} is gone") from error
