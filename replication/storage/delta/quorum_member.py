"""One root of a quorum of cluster roots: its identity, its votes, and the commits that are published there.

The folder `_quorum` of the root has the file of its identity, and the events (the votes) of all tables. An emptied root
has no identity. A root that was copied, or restored from a backup, has another file, and so another identity. So a root
that may have forgotten a vote never votes again. See `quorum_slot`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.quorum_slot import Accept, Ballot, Promise, ProposedCommit, RootState, SlotEvent
from lakelog.replication.protocol.rounds.quorum_round import CreateEvent, ReadEvent, ReadRootState
from lakelog.replication.storage.delta.checkpoint import HINT, newest_checkpoint
from lakelog.replication.storage.delta.commit import ROOTS, Commit
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, parsed, read_commit, torn_commit
from lakelog.replication.storage.delta.freshness import RootReads
from lakelog.replication.storage.delta.log_recovery import is_half_deleted
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.delta.table_opening import open_version
from lakelog.replication.storage.in_threads import in_threads
from lakelog.schemas import CLUSTER, MEMBERS

FOLDER = "_quorum"
SIGNS = "signs"  # the folder in it of `LifeSigns`
CREATES = "lakelog.creates"  # in a commit's metadata: the table that it makes, and that one's first commit
SLOTS_A_SEAL = 1_000  # slots of a table that are sealed together, a segment
_IDENTITY = f"{FOLDER}/_root.json"  # before all votes in order of names, in which stores delete many objects
_DEEPEST = 2  # folders of a table below the root
_ADDRESSES = f"{FOLDER}/addresses.json"
_SURE_SECONDS = 10.0  # how long a process relies on what it has read at a root in an object store
_FAILED_SECONDS = 60.0  # how long a root at which a read has failed is asked after the others
_PATIENT_SECONDS = 60.0  # how long reads have a longer time-out, after reads at all roots have failed
_CLEAR_SECONDS = _SURE_SECONDS  # until no process relies on an identity in an object store that was deleted
_SEALED_SECONDS = 3600.0  # between the seal of votes and their deletion
_SLOW_SECONDS = 300.0  # a vote that has taken longer reads the root's state again

TableName: TypeAlias = tuple[str, ...]  # the names of its folders below a root
Value = TypeVar("Value")


class _Sure(NamedTuple):
    """The facts that were read at a root: its identity, a version of a table that is published there, and the segment
    of slots that is not sealed. `at`: when, on the monotonic clock, in seconds."""

    at: float
    identity: str
    version: int
    segment: int


class QuorumMember:
    """A root of a quorum. All its methods raise KafkaStorageException if the root does not answer. Threads may share
    it."""

    def __init__(self, root: StorageRoot) -> None:
        self.root = root.synced.one_of_several
        self.sure: dict[tuple[str, ...], _Sure] = {}  # by table
        cache = root.version_cache
        # What this process has last read, and when: identities by root, shared in an object store.
        self._identities: dict[str, tuple[str | None, float]] = {} if cache is None else cache.identities
        self._reads = RootReads() if cache is None else cache.reads.setdefault(root.uri, RootReads())  # likewise
        self._changed = threading.Condition()
        self._publishing: dict[tuple[str, ...], set[int]] = {}  # versions that this process publishes now, by table
        # When a segment of a table was first seen sealed.
        self._sealed_at: dict[tuple[tuple[str, ...], int], float] = {}

    def format(self) -> str:
        """Gives the root its identity, and returns it. A root that has one keeps it."""
        folder = self.root.child(FOLDER)
        folder.create_folder()
        folder.child(SIGNS).create_folder()
        self.root.put_if_absent(_IDENTITY, json.dumps({"root": uuid.uuid4().hex}).encode())
        folder.sync()
        found = self.identity()
        if found is None:
            raise KafkaStorageException(f"{self.root.path(_IDENTITY)}: cannot be read")
        return found

    def read(self, call: Callable[[StorageRoot], Value]) -> Value:
        """Calls `call` with this root, to read something that other roots have, too. At a root that hangs it fails
        soon, so that another root is asked: see `be_patient`."""
        return self._read(call, self.root if time.monotonic() < self._reads.patient_until else self.root.quick)

    def _read(self, call: Callable[[StorageRoot], Value], root: StorageRoot) -> Value:
        try:
            return call(root)
        except KafkaStorageException:
            self._reads.failed_at = time.monotonic()
            raise

    def be_patient(self, since: float) -> bool:
        """Gives reads of the next minute a longer time-out, because all roots have failed and may only be slow. Returns
        whether to repeat reads that began at `since` (monotonic): those had the shorter time-out."""
        reads, now = self._reads, time.monotonic()
        has_waited = reads.patient_from <= since < reads.patient_until
        if now >= reads.patient_until:
            reads.patient_from = now
        reads.patient_until = now + _PATIENT_SECONDS
        return not has_waited

    @property
    def failed_at(self) -> float:
        """The monotonic time at which a call of `read` has failed last; -inf if that was over a minute ago. In an
        object store all quorums of this process share it, as the process may open the cluster many times."""
        at = self._reads.failed_at
        return at if time.monotonic() - at < _FAILED_SECONDS else float("-inf")

    def answers_soon(self) -> bool:
        """Whether a read that does not wait for long succeeds."""
        with suppress(KafkaStorageException):
            self._read(self._identity, self.root.quick)
            return True
        return False

    def identity(self) -> str | None:
        """The root's identity, None if it has none: the UUID in its file, and the store's mark of the file."""
        return self._identity(self.root)

    def _identity(self, root: StorageRoot) -> str | None:
        began_at, identity = time.monotonic(), None
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            content, mark = self.all_of(lambda: root.read(_IDENTITY), lambda: root.mark(_IDENTITY))
            identity = None if mark is None else f"{json.loads(content)['root']}:{mark}"
        self._identities[self.root.uri] = identity, began_at
        return identity

    def doubt(self) -> None:
        """Forgets the identity, so that it is read again before this process relies on it. For a root that has
        failed."""
        self._identities.pop(self.root.uri, None)

    def is_still(self, root: str, quick: bool = False) -> bool:
        """Whether this is the root with that identity. In an object store an answer of this process that is up to 10 s
        old counts, because a read takes two requests. `quick`: reads it with the time-out of `read`."""
        return self.identity_lately(quick)[0] == root

    def identity_lately(self, quick: bool = False) -> tuple[str | None, float]:
        """The identity, as old as in `is_still`, and the monotonic time at which it was read."""
        identity, at = self._identities.get(self.root.uri, (None, float("-inf")))
        if identity is not None and not self.root.is_local and time.monotonic() - at < _SURE_SECONDS:
            return identity, at
        now = time.monotonic()
        return (self.read(self._identity) if quick else self.identity()), now

    def has_lately(self, table: Sequence[str], version: int) -> bool:
        """Whether this process has found, at most 10 s ago, that a version of a table is published here. Always False
        on a disk, where a look-up costs nothing."""
        sure = self.sure.get(tuple(table))
        if self.root.is_local or sure is None:
            return False
        return time.monotonic() - sure.at < _SURE_SECONDS and sure.version >= version

    def begin_publishing(self, table: Sequence[str], version: int) -> None:
        """Makes votes and reads of this process wait until `end_publishing`."""
        with self._changed:
            self._publishing.setdefault(tuple(table), set()).add(version)

    def end_publishing(self, table: Sequence[str], version: int) -> None:
        """Ends `begin_publishing`: the version is published here, or cannot be."""
        with self._changed:
            self._publishing.get(tuple(table), set()).discard(version)
            self._changed.notify_all()

    def is_publishing(self, table: Sequence[str]) -> bool:
        """Whether this process publishes a version of the table here."""
        return bool(self._publishing.get(tuple(table)))

    def await_published(self, table: Sequence[str], version: int | None = None, timeout: float | None = None) -> None:
        """Waits until this process is publishing no version of the table here, or none up to `version`."""
        under_way = self._publishing.get(tuple(table))
        if under_way:
            with self._changed:
                self._changed.wait_for(
                    lambda: not any(version is None or each <= version for each in under_way), timeout
                )

    def await_all(self, timeout: float) -> None:
        """Waits until this process is publishing nothing here, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._publishing.values()), timeout)

    def all_of(self, *calls: Callable[[], Any]) -> list[Any]:
        """The results of several calls that read the root. In an object store they run at the same time."""
        return in_threads(lambda call: call(), calls, 1 if self.root.is_local else len(calls))

    def clear(self) -> None:
        """Deletes all but the noted addresses: the identity, the tables and the votes.

        In an object store it waits after it has deleted the identity, until no process relies on that any more. It
        waits even if there is no identity, because another call may just have deleted it. After an interruption, call
        it again."""
        had_identity = self.root.exists(_IDENTITY)
        self.root.delete(_IDENTITY)
        self._identities.pop(self.root.uri, None)
        if had_identity:
            self.root.sync(FOLDER)  # else it may come back without its votes
        if not self.root.is_local:
            threading.Event().wait(_CLEAR_SECONDS)
        files = self.root.sizes_listed()
        for name in self.root.list():
            if name != FOLDER:
                self.root.delete(name) if name in files else self.root.child(name).delete_folder()
        folder = self.root.child(FOLDER)
        for name in folder.list():
            if name not in folder.sizes_listed():
                folder.child(name).delete_folder()
        self.sure.clear()

    def note_addresses(self, addresses: Mapping[str, str]) -> None:
        """Notes the URIs of all roots, by their identities, for processes that know this one alone."""
        self.root.child(FOLDER).create_folder()
        self.root.put(_ADDRESSES, json.dumps(dict(addresses), indent=1).encode())

    def addresses(self) -> dict[str, str]:
        """The URIs of all roots, by their identities, as they were last noted here."""
        try:
            return {str(identity): str(uri) for identity, uri in json.loads(self.root.read(_ADDRESSES)).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError) as error:
            raise KafkaStorageException(
                f"{self.root.path(_ADDRESSES)}: does not name the roots of the cluster ({error}); give all of them, "
                "separated by commas"
            ) from error

    def tables(self) -> list[tuple[str, ...]]:
        """The tables that are published here, by the names of their folders below the root. The rest of a table of
        members whose deletion was interrupted does not count: the next check of the controller deletes it."""

        def below(names: tuple[str, ...]) -> list[tuple[str, ...]]:
            found = self.root.child(*names).list() if names else self.root.list()
            if "_delta_log" in found:
                is_gone = names[:1] == (MEMBERS.name,) and is_half_deleted(self.root.child(*names))
                return [] if is_gone else [names]
            folders = [name for name in found if name != FOLDER and "." not in name] if len(names) < _DEEPEST else []
            return [table for name in folders for table in below((*names, name))]

        return below(())

    def newest(self, table: Sequence[str]) -> int:
        """The newest version of a table that is published here, -1 without the table."""
        return last_version(self.root.child(*table))

    def decides_alone(self, table: Sequence[str], if_torn: bool = False) -> bool:
        """Whether this root decides on the table alone: its newest commit names no roots that vote on the next version.
        `if_torn`: the answer if that commit cannot be read."""
        folder = self.root.child(*table)
        try:
            return (newest := last_version(folder)) >= 0 and ROOTS not in read_commit(folder, newest).info
        except (CorruptRecordException, FileNotFoundError):
            return if_torn

    def _may_drop(self, table: Sequence[str]) -> bool:
        """Whether a table here may be replaced by one of the same name on which several roots have voted. Then a
        process has made it here that did not know yet that others vote, too. A root without an identity, such as that
        of another cluster, keeps its tables."""
        return self.decides_alone(table) and self.identity_lately()[0] is not None

    def has(self, table: Sequence[str], version: int) -> bool:
        """Whether a version of a table is published here, with the time-out of `read`."""
        return self.read(lambda root: root.child(*table).exists(commit_name(version)))

    def create_table(self, table: Sequence[str], content: bytes) -> None:
        """Makes the folders of a table, and its first commit, which the quorum has decided."""
        self._events(table).create_folder()
        log = self.root.child(*table, "_delta_log")
        log.create_folder()
        self._put_commit(self.root.child(*table), 0, content)

    def has_vote(self, table: Sequence[str], version: int) -> bool:
        """Whether there is a vote on a version of a table, whether it counts or not."""
        return self._events(table).exists(_event_name(version, 0))

    def handlers(self, table: Sequence[str]) -> Mapping[type, Callable[[Any], Any]]:
        """The functions that carry out the steps of `quorum_round` at this root."""
        return _Voter(self, tuple(table), self._events(table)).handlers()

    def file_handlers(self, names: Sequence[str]) -> Mapping[type, Callable[[Any], Any]]:
        """As `handlers`, for a file of no table. It has slot 0 alone, which follows no other."""
        return _FileVoter(self, tuple(names), self._events(names)).handlers()

    def publish(self, table: Sequence[str], version: int, value: bytes) -> bool:
        """Publishes a decided commit. Returns whether it did: it does nothing at a root without the version before."""
        folder, key = self.root.child(*table), tuple(table)
        sure = self.sure.get(key)
        is_sure = sure is not None and time.monotonic() - sure.at < _SURE_SECONDS and sure.version == version - 1
        if not is_sure and not folder.exists(commit_name(version - 1)):
            return False
        content, files = unpacked(value)
        commit = parsed(version, content, None)
        if version == 1 and self._may_drop(table) and not commit.follows(read_commit(folder, 0).unique_id):
            folder.delete_folder()
            return False
        for name, written in files.items():
            folder.put(name, written)
        self._create_made(commit)
        self._put_commit(folder, version, content)
        if sure is not None and sure.version < version:
            self.sure[key] = sure._replace(version=version)
        return True

    def bring(self, table: Sequence[str], source: QuorumMember) -> None:
        """Publishes here what is published at another root: the commits that are missing here, in order, or its newest
        checkpoint if they are cleaned up there."""
        here, there = self.root.child(*table), source.root.child(*table)
        here.child("_delta_log").create_folder()
        self._events(table).create_folder()
        newest, last = last_version(here), last_version(there)
        if newest >= 0 and not here.exists(commit_name(0)) and newest_checkpoint(here) < 0:
            newest = -1  # a late commit has landed, and the root was emptied before
        is_alone = newest >= 0 and self._may_drop(table)
        if newest >= 0 and last >= 0 and (last > newest or is_alone) and not _is_same(here, there, min(newest, last)):
            if not is_alone or source.decides_alone(table):
                raise KafkaStorageException(f"{there.uri}: has another table than {here.uri}")
            here.delete_folder()
            here.child("_delta_log").create_folder()
            newest = -1
        if last > newest and (newest < 0 or not there.exists(commit_name(newest + 1))):
            if tuple(table) == (CLUSTER.name,):  # the commits that have made tables may be cleaned up
                for made in source.tables():
                    if made != (CLUSTER.name,) and self.newest(made) < 0:
                        self.bring(made, source)
            newest = self._bring_checkpoint(here, there, newest)
        for version in range(newest + 1, last + 1):
            content = there.read(commit_name(version))
            try:
                commit = parsed(version, content, None)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise KafkaStorageException(torn_commit(there, version, repr(error))) from error
            _copy(here, there, [file.name for file in commit.adds])
            self._create_made(commit)
            self._put_commit(here, version, content)

    def _create_made(self, commit: Commit) -> None:
        """Makes the table that a commit of the table `cluster` makes, if it is not there. If two commits make the same
        table, the first one counts, at all roots."""
        if made := commit.info.get(CREATES):
            table = made[0].split("/")
            if self._may_drop(table):
                self.root.child(*table).delete_folder()
            if self.newest(table) < 0:
                self.create_table(table, made[1].encode())

    def clean_up_as(self, table: Sequence[str], source: QuorumMember, version: int) -> None:
        """Copies a checkpoint from another root, and deletes the older commits and checkpoints that it has deleted."""
        here, there = self.root.child(*table, "_delta_log"), source.root.child(*table, "_delta_log")
        names = there.list()
        _copy(here, there, [name for name in names if name.startswith(f"{version:020d}.checkpoint")])
        with suppress(FileNotFoundError):
            here.put(HINT, there.read(HINT))
        oldest = min((name for name in names if name[:20].isdigit()), default="")
        for name in sorted(here.list()):
            if name[:20].isdigit() and name < oldest:
                here.delete(name)

    def clean_up_votes(self, table: Sequence[str], version: int) -> None:
        """Seals segments of slots that are far below a version which is in a checkpoint, and deletes the votes of those
        that it has seen sealed for an hour. A writer that was frozen meanwhile sees the seal after its vote."""
        events, key = self._events(table), tuple(table)
        names, last = events.list(), version // SLOTS_A_SEAL - 1
        segments = {int(name[:20]) // SLOTS_A_SEAL for name in names if name[:20].isdigit()}
        for segment in sorted(segment for segment in segments if segment < last):
            seal = _seal_name(segment * SLOTS_A_SEAL)
            if seal not in names:
                events.put_if_absent(seal, b"{}")
                events.sync()
                if not events.exists(seal):
                    continue
            sealed_at = self._sealed_at.setdefault((key, segment), time.monotonic())
            if time.monotonic() - sealed_at >= _SEALED_SECONDS:
                for name in names:
                    if name[:20].isdigit() and int(name[:20]) // SLOTS_A_SEAL == segment:
                        events.delete(name)

    def _bring_checkpoint(self, here: StorageRoot, there: StorageRoot, newest: int) -> int:
        version = newest_checkpoint(there)
        if version <= newest:
            return newest
        _copy(here, there, add_actions(open_version(there, version)).column("path").to_pylist())
        log, source = here.child("_delta_log"), there.child("_delta_log")
        names = [name for name in source.list() if name.startswith(f"{version:020d}.checkpoint")]
        _copy(log, source, names)
        with suppress(FileNotFoundError):
            self._put_commit(here, version, there.read(commit_name(version)))
        with suppress(FileNotFoundError):
            log.put(HINT, source.read(HINT))
        return version

    def _put_commit(self, folder: StorageRoot, version: int, content: bytes) -> None:
        if folder.put_if_absent(commit_name(version), content) is None:
            try:
                is_other = folder.read(commit_name(version)) != content
            except FileNotFoundError as error:  # refused although nothing is there
                raise KafkaStorageException(f"{folder.path(commit_name(version))}: was refused") from error
            if is_other:
                raise KafkaStorageException(f"{folder.path(commit_name(version))}: is not the commit that was decided")
        folder.sync("_delta_log")

    def _events(self, table: Sequence[str]) -> StorageRoot:
        return self.root.child(FOLDER, *table)


class _Voter:
    """One root's part of a step. A vote may rely on a state of the root that this process has read up to 10 s before,
    if the vote takes less than five minutes: events are deleted no sooner than an hour after their seal."""

    def __init__(self, member: QuorumMember, table: tuple[str, ...], events: StorageRoot) -> None:
        self._member, self._table, self._events = member, table, events
        self._folder, self._began_at = member.root.child(*table), time.monotonic()

    def handlers(self) -> Mapping[type, Callable[[Any], Any]]:
        return {CreateEvent: self._create, ReadEvent: self._read, ReadRootState: self._state}

    def _create(self, step: CreateEvent) -> bool:
        """In an object store this reads the state at the same time, if it is not known. It need not while this process
        is publishing the version before: after that it knows the state."""
        is_known = self._is_sure(step.slot, step.event.root) or self._member.is_publishing(self._table)
        if self._member.root.is_local or is_known:
            return self._put(step)
        return bool(self._member.all_of(lambda: self._put(step), lambda: self._read_state(step.slot))[0])

    def _put(self, step: CreateEvent) -> bool:
        with suppress(KafkaStorageException):  # it may have landed, and is read next
            is_created = self._events.put_if_absent(_event_name(step.slot, step.number), event_bytes(step.event))
            self._events.sync()
            return is_created is not None
        return False

    def _read(self, step: ReadEvent) -> SlotEvent | None:
        name = _event_name(step.slot, step.number)
        try:
            return event_of(self._events.read(name))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise KafkaStorageException(f"{self._events.path(name)}: is no vote of a quorum: {error!r}") from error

    def _state(self, step: ReadRootState) -> RootState:
        self._member.await_published(self._table, step.slot - 1, _SLOW_SECONDS)
        if self._is_sure(step.slot, step.root):
            return RootState(step.root, True, False)
        found = self._read_state(step.slot)
        if found is None:
            raise KafkaStorageException(f"{self._member.root.uri}: its state cannot be read")
        return found

    def _is_sure(self, slot: int, root: str) -> bool:
        """Whether the state of the root is known. On a disk it never is: a look-up costs little there, and a folder
        that was just unmounted, moved or emptied looks like one without votes."""
        if self._member.root.is_local:
            return False
        now, sure = time.monotonic(), self._member.sure.get(self._table)
        return (
            sure is not None and now - sure.at < _SURE_SECONDS and now - self._began_at < _SLOW_SECONDS
            and sure.version >= slot - 1 and sure.segment == slot // SLOTS_A_SEAL and sure.identity == root
        )  # fmt: skip

    def _read_state(self, slot: int) -> RootState | None:
        """The state as it is now; None if the root does not answer."""
        self._member.await_published(self._table, slot - 1, _SLOW_SECONDS)
        now = time.monotonic()
        with suppress(KafkaStorageException):
            (identity, at), has_previous, is_sealed = self._member.all_of(
                self._member.identity_lately,
                lambda: self._folder.exists(commit_name(slot - 1)),
                lambda: self._events.exists(_seal_name(slot)),
            )
            if identity is not None and has_previous and not is_sealed:
                self._member.sure[self._table] = _Sure(min(at, now), identity, slot - 1, slot // SLOTS_A_SEAL)
            return RootState(identity, has_previous, is_sealed)
        return None


class _FileVoter(_Voter):
    """A root's part of a vote on a file, which always reads the root's state."""

    _create = _Voter._put

    def _state(self, step: ReadRootState) -> RootState:
        return RootState(self._member.identity(), has_previous=True, is_sealed=False)


def _is_same(here: StorageRoot, there: StorageRoot, version: int) -> bool:
    """Whether two roots have the same table. The root of another cluster has another one."""
    try:
        return here.read(commit_name(version)) == there.read(commit_name(version))
    except FileNotFoundError:  # it is cleaned up
        tables = (open_version(root, last_version(root)) for root in (here, there))
        return len({table.metadata().id for table in tables}) == 1


def _copy(here: StorageRoot, there: StorageRoot, names: Sequence[str]) -> None:
    """Copies files. A file that is gone belongs to no version that is needed."""
    for name in names:
        with suppress(FileNotFoundError):
            if not here.exists(name):
                here.put(name, there.read_buffer(name))


def _event_name(slot: int, number: int) -> str:
    return f"{slot:020d}-{number:06d}.json"


def _seal_name(slot: int) -> str:
    return f"sealed-{slot // SLOTS_A_SEAL:020d}"


def event_bytes(event: SlotEvent) -> bytes:
    """The file of an event, JSON."""
    found: dict[str, Any] = {"root": event.root, "ballot": list(event.ballot)}
    if isinstance(event, Accept):
        commit = event.commit
        found["commit"] = {
            "nonce": commit.nonce, "session": commit.session, "previous": commit.previous,
            "roots": list(commit.roots), "content": base64.b64encode(commit.content).decode(),
        }  # fmt: skip
    return json.dumps(found).encode()


def event_of(content: bytes) -> SlotEvent:
    """The event in a file. Raises ValueError, KeyError, TypeError."""
    found = json.loads(content)
    number, session = found["ballot"]
    ballot, commit = Ballot(int(number), str(session)), found.get("commit")
    if commit is None:
        return Promise(str(found["root"]), ballot)
    value = ProposedCommit(
        commit["nonce"], commit["session"], commit["previous"], tuple(commit["roots"]),
        base64.b64decode(commit["content"], validate=True),
    )  # fmt: skip
    return Accept(str(found["root"]), ballot, value)


def packed(content: bytes, files: Mapping[str, bytes]) -> bytes:
    """A commit and the files that it adds, as one value. Small files that the commit itself has are not repeated."""
    inside = {file.name for file in parsed(0, content, None).adds if file.content is not None}
    named = {name: base64.b64encode(file).decode() for name, file in files.items() if name not in inside}
    return json.dumps({"commit": content.decode(), "files": named}).encode()


def unpacked(value: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The commit and the files of `packed`."""
    found = json.loads(value)
    content = found["commit"].encode()
    files = {file.name: file.content for file in parsed(0, content, None).adds if file.content is not None}
    return content, {**files, **{name: base64.b64decode(text) for name, text in found["files"].items()}}
