"""One root of a quorum of cluster roots: its identity, its votes, and the commits that are published there.

The folder `_quorum` of the root has the file of its identity, and the events of all tables. Whoever empties the root,
restores it from a backup or copies it elsewhere makes another file of the identity, and a root without its votes has no
identity. So a root that may have forgotten a vote never votes again. See `quorum_slot`.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.quorum_slot import Accept, Ballot, Promise, ProposedCommit, RootState, SlotEvent
from lakelog.replication.protocol.rounds.quorum_round import CreateEvent, ReadEvent, ReadRootState
from lakelog.replication.storage.delta.checkpoint import HINT, newest_checkpoint
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, parsed
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.delta.table_opening import open_version

FOLDER = "_quorum"
SLOTS_A_SEAL = 1_000
_IDENTITY = f"{FOLDER}/root.json"
_DEEPEST = 2  # folders of a table below the root
_ADDRESSES = f"{FOLDER}/addresses.json"
_SURE_SECONDS = 10.0  # so long a process relies on what it has read at a root
_SEALED_SECONDS = 3600.0  # between the seal of votes and their deletion
_SLOW_SECONDS = 300.0  # a vote that has taken longer reads it again
CREATES = "lakelog.creates"  # in a commit's metadata: the table that it makes, and that one's first commit


class _Sure(NamedTuple):
    """What was read at a root at a monotonic time: its identity, a version of a table that is published there, and the
    segment of slots that is not sealed."""

    at: float
    identity: str
    version: int
    segment: int


class QuorumMember:
    """A root of a quorum. All its methods raise KafkaStorageException if the root does not answer. Threads may share
    it."""

    def __init__(self, root: StorageRoot) -> None:
        self.root = root.synced
        self._sure: dict[tuple[str, ...], _Sure] = {}  # by table
        self._sealed_at: dict[
            tuple[tuple[str, ...], int], float
        ] = {}  # when a segment of a table was first seen sealed

    def format(self) -> str:
        """Gives the root its identity, and returns it. A root that has one keeps it."""
        folder = self.root.child(FOLDER)
        folder.create_folder()
        self.root.put_if_absent(_IDENTITY, json.dumps({"root": uuid.uuid4().hex}).encode())
        folder.sync_folder()
        found = self.identity()
        if found is None:
            raise KafkaStorageException(f"{self.root.path(_IDENTITY)}: cannot be read")
        return found

    def identity(self) -> str | None:
        """The root's identity, None if it has none: the UUID in its file, and the store's mark of the file."""
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            found, mark = json.loads(self.root.read(_IDENTITY)), self.root.mark(_IDENTITY)
            return None if mark is None else f"{found['root']}:{mark}"
        return None

    def note_addresses(self, uris: Sequence[str]) -> None:
        """Notes the URIs of all roots, for processes that know this one alone."""
        self.root.put(_ADDRESSES, json.dumps(list(uris)).encode())

    def addresses(self) -> list[str]:
        """The URIs of all roots, as they were last noted here."""
        try:
            return [str(uri) for uri in json.loads(self.root.read(_ADDRESSES))]
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise KafkaStorageException(
                f"{self.root.path(_ADDRESSES)}: does not name the roots of the cluster ({error}); give all of them, "
                "separated by commas"
            ) from error

    def tables(self) -> list[tuple[str, ...]]:
        """The tables that are published here, by the names of their folders below the root."""

        def below(names: tuple[str, ...]) -> list[tuple[str, ...]]:
            found = self.root.child(*names).list() if names else self.root.list()
            if "_delta_log" in found:
                return [names]
            folders = [name for name in found if name != FOLDER and "." not in name] if len(names) < _DEEPEST else []
            return [table for name in folders for table in below((*names, name))]

        return below(())

    def newest(self, table: Sequence[str]) -> int:
        """The newest version of a table that is published here, -1 without the table."""
        return last_version(self.root.child(*table))

    def create_table(self, table: Sequence[str], content: bytes) -> None:
        """Makes the folders of a table, and its first commit, which the quorum has decided."""
        self._events(table).create_folder()
        log = self.root.child(*table, "_delta_log")
        log.create_folder()
        self._put_commit(self.root.child(*table), 0, content)

    def handlers(self, table: Sequence[str]) -> Mapping[type, Callable[[Any], Any]]:
        """The functions that carry out the steps of `quorum_round` at this root."""
        events, folder, began_at = self._events(table), self.root.child(*table), time.monotonic()

        def create(step: CreateEvent) -> bool:
            with suppress(KafkaStorageException):  # it may have landed, and is read next
                is_created = events.put_if_absent(_event_name(step.slot, step.number), event_bytes(step.event))
                events.sync_folder()
                return is_created is not None
            return False

        def read(step: ReadEvent) -> SlotEvent | None:
            name = _event_name(step.slot, step.number)
            try:
                return event_of(events.read(name))
            except FileNotFoundError:
                return None
            except (ValueError, TypeError, KeyError) as error:
                raise KafkaStorageException(f"{events.path(name)}: is no vote of a quorum: {error!r}") from error

        def state(step: ReadRootState) -> RootState:
            """Events are deleted an hour after they are sealed, so a recent state counts for a vote that took less."""
            now, segment, key = time.monotonic(), step.slot // SLOTS_A_SEAL, tuple(table)
            sure = self._sure.get(key)
            if (
                sure is not None and now - sure.at < _SURE_SECONDS and now - began_at < _SLOW_SECONDS
                and sure.version >= step.slot - 1 and sure.segment == segment and sure.identity == step.root
            ):  # fmt: skip
                return RootState(sure.identity, True, False)
            identity, has_previous = self.identity(), folder.exists(commit_name(step.slot - 1))
            is_sealed = events.exists(_seal_name(step.slot))
            if identity is not None and has_previous and not is_sealed:
                self._sure[key] = _Sure(now, identity, step.slot - 1, segment)
            return RootState(identity, has_previous, is_sealed)

        return {CreateEvent: create, ReadEvent: read, ReadRootState: state}

    def publish(self, table: Sequence[str], version: int, value: bytes) -> bool:
        """Publishes a decided commit, and returns whether it did: not at a root without the version before."""
        folder, key = self.root.child(*table), tuple(table)
        sure = self._sure.get(key)
        is_sure = sure is not None and time.monotonic() - sure.at < _SURE_SECONDS and sure.version == version - 1
        if not is_sure and not folder.exists(commit_name(version - 1)):
            return False
        content, files = unpacked(value)
        for name, written in files.items():
            folder.put(name, written)
        if made := parsed(version, content, None).info.get(CREATES):
            self.create_table(made[0].split("/"), made[1].encode())
        self._put_commit(folder, version, content)
        if sure is not None and sure.version < version:
            self._sure[key] = sure._replace(version=version)
        return True

    def bring(self, table: Sequence[str], source: QuorumMember) -> None:
        """Publishes here what is published at another root: the commits that are missing here, in order, or its newest
        checkpoint if they are cleaned up there."""
        here, there = self.root.child(*table), source.root.child(*table)
        here.child("_delta_log").create_folder()
        self._events(table).create_folder()
        newest, last = last_version(here), last_version(there)
        if last > newest and (newest < 0 or not there.exists(commit_name(newest + 1))):
            newest = self._bring_checkpoint(here, there, newest)
        for version in range(newest + 1, last + 1):
            content = there.read(commit_name(version))
            _copy(here, there, [file.name for file in parsed(version, content, None).adds])
            self._put_commit(here, version, content)

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
                events.sync_folder()
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
        folder.sync_folder("_delta_log")

    def _events(self, table: Sequence[str]) -> StorageRoot:
        return self.root.child(FOLDER, *table)


def _copy(here: StorageRoot, there: StorageRoot, names: Sequence[str]) -> None:
    """Copies files. Those that are gone belong to no version that is needed."""
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
    """A commit and the files that it adds, as one value. It has each file once: a commit may have small ones itself."""
    inside = {file.name for file in parsed(0, content, None).adds if file.content is not None}
    named = {name: base64.b64encode(file).decode() for name, file in files.items() if name not in inside}
    return json.dumps({"commit": content.decode(), "files": named}).encode()


def unpacked(value: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The commit and the files of `packed`."""
    found = json.loads(value)
    content = found["commit"].encode()
    files = {file.name: file.content for file in parsed(0, content, None).adds if file.content is not None}
    return content, {**files, **{name: base64.b64decode(text) for name, text in found["files"].items()}}
