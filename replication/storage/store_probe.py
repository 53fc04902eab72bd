"""Probes the store of one root: what this process may do there, whether the store keeps the promises on which commits
depend, how fast it answers, how far its clock is from that of this machine, and which rules its bucket has.

All files of a probe are in a folder of its own in the root, which it removes at its end, also after an error. A process
that is killed leaves the folder; a later probe removes it once it is an hour old by the store's clock. `format` takes a
root with such a folder for an empty one.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.storage.delta.commit_format import is_commit, read_commit
from lakelog.replication.storage.delta.conditional_put import PROBE, takes_second_put
from lakelog.replication.storage.delta.object_headers import ObjectRules, SigningException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_requests import PART_BYTES
from lakelog.replication.storage.in_threads import in_threads
from lakelog.schemas import BROKERS, CLUSTER, LOG, MEMBERS, STATE_TABLES

LIST, READ, WRITE, DELETE = "list", "read", "write", "delete"  # what a process may do
OPERATIONS = (LIST, READ, WRITE, DELETE)

# The promises of a store.
CONDITIONAL_PUT = "conditional put"
READ_AFTER_WRITE, LIST_AFTER_WRITE = "read after write", "list after write"
READ_AFTER_DELETE, LIST_AFTER_DELETE = "read after delete", "list after delete"
CONTENT = "content"
SYNC = "fsync"
PROMISES = (CONDITIONAL_PUT, READ_AFTER_WRITE, LIST_AFTER_WRITE, READ_AFTER_DELETE, LIST_AFTER_DELETE, CONTENT, SYNC)

_TABLES = tuple(table.name for table in (*STATE_TABLES, LOG) if table not in (BROKERS, MEMBERS))  # those are folders
_COMMITS = 3  # one of the newest has added a segment
_ROUNDS = 3  # a store that keeps a promise by luck breaks it in one of them
_OLD_SECONDS = 3600.0
_STORE_TIME_SECONDS = 1.0  # some stores give whole seconds
_SMALL = 1000  # bytes: about those of a commit
_TWO_PARTS = PART_BYTES + 1  # bytes: an object root writes this in two parts
_ALL_BYTES = bytes(range(256))
_STATUS, _CODE = re.compile(r"status code: (\d{3} [A-Za-z ]*[A-Za-z])"), re.compile(r"<Code>(\w+)</Code>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?[^\s)]*")

T = TypeVar("T")


class Disk(NamedTuple):
    """The file system of a folder: bytes and inodes that this user may still use, and those that there are. A file
    system without a fixed number of inodes has 0."""

    free_bytes: int
    bytes: int
    free_inodes: int
    inodes: int

    @classmethod
    def of(cls, path: str) -> Disk:
        """The file system of an existing folder. Raises OSError."""
        found = os.statvfs(path)
        blocks, inodes = found.f_bavail, found.f_favail
        if not os.geteuid():
            blocks, inodes = found.f_bfree, found.f_ffree
        return cls(found.f_frsize * blocks, found.f_frsize * found.f_blocks, inodes, found.f_files)


@dataclass
class StoreFacts:
    """The findings of a probe so far. Another thread may read it while the probe goes on.

    `may`: the operations that have worked. `refused`: why others did not, by operation. `kept`: the promises that the
    store has kept. `broken`: how it has broken others. `milliseconds`: the median time of a request by its kind.
    `clock_ahead`: the seconds by which the store's clock is ahead of that of this machine, within `clock_doubt`
    seconds. `rules`: the rules that the store names for objects, by the objects' paths. `unsigned`: why this process
    cannot sign the URL that asks for rules. `unanswered`: why the store has not answered it. `removed`: the number of
    files and folders of killed probes that were removed. `left`: the path of a file or folder that this probe could not
    remove. `step`: the request that is under way; empty at the end.
    """

    uri: str
    is_local: bool
    may: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    clock_ahead: float | None = None
    clock_doubt: float = 0.0
    rules: dict[str, ObjectRules] = field(default_factory=dict)
    unsigned: str = ""
    unanswered: str = ""
    removed: int = 0
    left: str = ""
    disk: Disk | None = None
    step: str = "begin"


class _Stopped(Exception):
    """The caller does not wait for the probe any more."""


class StoreProbe:
    """A probe of one root, which a thread runs. `stopping`: another thread sets it to end the probe before its next
    request; it removes its folder."""

    def __init__(self, root: StorageRoot) -> None:
        self.facts = StoreFacts(root.uri, root.is_local)
        self._root = root
        self._folder = root.child(f"{PROBE}{uuid.uuid4().hex}")
        self.stopping = threading.Event()
        self._written = set[str]()  # names of files that may be there
        self._times = defaultdict[str, list[float]](list)

    def run(self) -> None:
        """Probes the root. Errors of the store become facts."""
        facts = self.facts
        with suppress(_Stopped):
            try:
                if self._may_read() and self._may_write():
                    self._try_promises()
            finally:
                self._remove()
        facts.milliseconds = {kind: median(times) * 1000 for kind, times in self._times.items()}
        if not self.stopping.is_set():
            facts.step = ""

    # What this process may do

    def _may_read(self) -> bool:
        """Lists the root, and reads a file of it if it is formatted. Returns whether to go on. If the store does not
        answer, the probe ends, because each request would wait for its time-out."""
        root, facts = self._root, self.facts
        if root.is_local:
            if not os.path.isdir(root.uri):
                is_there = os.path.exists(root.uri)
                facts.refused[LIST] = "it is no folder" if is_there else "there is no such folder"
                return False
            with suppress(OSError):
                facts.disk = Disk.of(root.uri)
        there: list[str] = []
        if not self._try(LIST, "LIST", lambda: there.extend(root.list())):
            return is_refusal(facts.refused[LIST])
        commits = root.child(CLUSTER.name, "_delta_log")
        names: list[str] = []
        with suppress(KafkaStorageException):
            names = [name for name in self._timed("LIST", commits.list) if name.endswith(".json")]
        if names:
            self._try(READ, "GET", lambda: commits.read(names[-1]))
        if not root.is_local and READ not in facts.refused:
            self._look_at_tables([name for name in _TABLES if name in there])
        return True

    def _may_write(self) -> bool:
        """Writes a file, reads it, and deletes it. Returns whether this process may do everything. If it may not delete
        the file, the file stays, and the probe writes no other."""
        folder, facts, content = self._folder, self.facts, b"lakelog doctor"
        before = time.time()
        self._written.add("first")
        if not self._try(WRITE, "PUT", lambda: folder.write("first", content)):
            if is_refusal(facts.refused[WRITE]):
                self._written.clear()
            if not self._root.is_local:  # a store that allows it takes the deletion of an object that is not there
                self._try(DELETE, "DELETE", lambda: folder.delete("first"))
            return False
        after = time.time()
        if self._try(READ, "GET", lambda: folder.read("first")):
            self._look_at(folder, "first")
        with suppress(KafkaStorageException):
            written = self._timed("LIST", folder.modified).get("first")
            if written is not None:
                middle, doubt = (before + after) / 2, (after - before) / 2
                facts.clock_ahead, facts.clock_doubt = written - middle, doubt + _STORE_TIME_SECONDS
                self._remove_left_over(written)
        if not self._try(DELETE, "DELETE", lambda: folder.delete("first")):
            return False
        self._written.clear()
        return facts.may == set(OPERATIONS)

    def _try(self, operation: str, kind: str, call: Callable[[], object]) -> bool:
        try:
            self._timed(kind, call)
        except (LakelogException, OSError) as error:
            self.facts.refused.setdefault(operation, _words(error))
            self.facts.may.discard(operation)
            return False
        if operation not in self.facts.refused:
            self.facts.may.add(operation)
        return True

    def _timed(self, kind: str, call: Callable[[], T]) -> T:
        if self.stopping.is_set():
            raise _Stopped
        self.facts.step = kind
        started = time.perf_counter()
        found = call()
        self._times[kind].append(time.perf_counter() - started)
        return found

    # The rules of the bucket

    def _look_at_tables(self, tables: Iterable[str]) -> None:
        """Looks for rules of the oldest commit of each table, which a rule on the age of objects meets first, and of a
        new segment: a rule may be for a part of the root. Ignores a file that is deleted meanwhile."""
        for table in tables:
            folder = self._root.child(table)
            with suppress(LakelogException, FileNotFoundError):
                commits = sorted(filter(is_commit, self._timed("LIST of a table", folder.child("_delta_log").list)))
                if commits:
                    self._look_at(folder.child("_delta_log"), commits[0])
                if table == LOG.name:
                    self._look_at_a_segment(folder, [int(name[:20]) for name in commits[-_COMMITS:]])

    def _look_at_a_segment(self, log: StorageRoot, versions: Iterable[int]) -> None:
        for version in versions:
            if added := self._timed("GET", partial(read_commit, log, version)).adds:
                self._look_at(log, added[0].name)
                return

    def _look_at(self, folder: StorageRoot, name: str) -> None:
        """Notes the rules that the store names for an object. If the store does not answer, it is not asked again."""
        facts = self.facts
        if folder.is_local or facts.unsigned or facts.unanswered:
            return
        try:
            headers = self._timed("HEAD by a signed URL", lambda: folder.headers(name))
            facts.rules[folder.path(name)] = ObjectRules.of(headers)
        except FileNotFoundError:
            return
        except SigningException as error:
            facts.unsigned = _words(error)
        except LakelogException as error:
            facts.unanswered = _words(error)

    # The promises

    def _try_promises(self) -> None:
        for number in range(_ROUNDS):
            self._promise(CONDITIONAL_PUT, partial(self._second_put, f"second-{number}"))
            self._promise(CONDITIONAL_PUT, partial(self._two_at_once, f"race-{number}"))
            self._after_writes_and_deletes(f"file-{number}")
        for size in (0, _SMALL, _TWO_PARTS):
            self._promise(CONTENT, partial(self._comes_back, size))
        if self._root.is_local:
            self._promise(SYNC, self._synced)

    def _promise(self, name: str, broken: Callable[[], str]) -> None:
        """Notes whether the store keeps a promise in this round. `broken` returns how it breaks it; empty if it does
        not."""
        facts = self.facts
        try:
            words = broken()
        except (LakelogException, OSError) as error:
            words = _words(error)
        if words:
            facts.broken.setdefault(name, words)
            facts.kept.discard(name)
        elif name not in facts.broken:
            facts.kept.add(name)

    def _second_put(self, name: str) -> str:
        self._written.add(name)
        try:
            takes_second = self._timed("conditional PUT", lambda: takes_second_put(self._folder, name))
        except KafkaStorageException as error:
            return f"a put on the condition that there is no such file fails: {_words(error)}"
        return "the store takes a second put of one name, which it must refuse" if takes_second else ""

    def _two_at_once(self, name: str) -> str:
        """Two threads put one name at the same time. One must win, and the file must be the winner's. None wins if an
        answer was lost and obstore has sent the put again: that is no fault."""
        self._written.add(name)
        barrier, contents = threading.Barrier(2), (b"one", b"two")

        def put(content: bytes) -> bool:
            with suppress(threading.BrokenBarrierError):  # no second thread can be started
                barrier.wait(timeout=1.0)
            return self._folder.put_if_absent(name, content) is not None

        won = self._timed("race", lambda: in_threads(put, contents, 2))
        if all(won):
            return "of two puts of one name at the same time the store takes both"
        found = self._folder.read(name)
        if found not in [content for content, is_first in zip(contents, won, strict=True) if is_first or not any(won)]:
            return "of two puts of one name at the same time the store keeps the one that it has refused"
        return ""

    def _after_writes_and_deletes(self, name: str) -> None:
        folder, content, newer = self._folder, os.urandom(_SMALL), os.urandom(_SMALL)

        def reads() -> str:
            self._written.add(name)
            self._timed("PUT", lambda: folder.put(name, content))
            if self._read(name) != content:
                return "a file that was just written is not read, or not as it was written"
            self._timed("HEAD", lambda: folder.stamps([name]))
            self._timed("PUT", lambda: folder.put(name, newer))
            return "" if self._read(name) == newer else "after a file is written again, its older content is read"

        def lists() -> str:
            sizes = self._timed("LIST", folder.sizes_listed)
            return "" if sizes.get(name) == _SMALL else "a file that was just written is not in the listing"

        def reads_no_more() -> str:
            self._timed("DELETE", lambda: folder.delete(name))
            return "" if self._read(name) is None else "a file that was just deleted is still read"

        def lists_no_more() -> str:
            return "a file that was just deleted is still listed" if name in self._timed("LIST", folder.list) else ""

        self._promise(READ_AFTER_WRITE, reads)
        self._promise(LIST_AFTER_WRITE, lists)
        self._promise(READ_AFTER_DELETE, reads_no_more)
        self._promise(LIST_AFTER_DELETE, lists_no_more)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._timed("GET", lambda: self._folder.read(name))
        except FileNotFoundError:
            return None

    def _comes_back(self, size: int) -> str:
        """Puts a file, and reads it as a whole and in part. All values of bytes are in it."""
        content, name = (_ALL_BYTES * (size // 256 + 1))[:size], f"content-{size}"
        self._written.add(name)
        self._timed("large PUT", lambda: self._folder.put(name, content))
        if self._timed("large GET", lambda: self._folder.read(name)) != content:
            return f"a file of {size} bytes does not come back byte for byte"
        if size == _TWO_PARTS:
            self._look_at(self._folder, name)  # a rule may be on large objects
        if self._folder.sizes([name]) != [size]:
            return f"a file of {size} bytes has another size in the store"
        start = size // 3
        with self._folder.open(name, size) as file:
            file.seek(start)
            is_equal = file.read(_SMALL) == content[start : start + _SMALL]
        return "" if is_equal else "a part of a file is not the part that was asked for"

    def _synced(self) -> str:
        folder = self._folder.synced
        self._written.add("synced")
        folder.put("synced", _ALL_BYTES)
        folder.sync()
        return ""

    # The end

    def _remove(self) -> None:
        """Removes the files of the probe without a listing, which may be refused, and says what is left."""
        folder, names = self._folder, sorted(self._written)
        try:
            for name in names:
                folder.delete(name)
            if self._root.is_local:
                folder.delete_folder()
        except (LakelogException, OSError):
            self.facts.left = folder.path(names[0]) if len(names) == 1 else folder.uri

    def _remove_left_over(self, now: float) -> None:
        """Removes old files and folders of probes that were killed. `now`: the time by the store's clock."""
        files = self._root.modified()
        for name in [name for name in self._root.list() if name.startswith(PROBE)]:
            folder = self._root.child(name)
            if name in files:
                if now - files[name] >= _OLD_SECONDS:
                    self._root.delete(name)
                    self.facts.removed += 1
            elif folder.uri != self._folder.uri:
                newest = max(folder.modified().values(), default=_changed_at(folder, now))
                if now - newest >= _OLD_SECONDS:
                    folder.delete_folder()
                    self.facts.removed += 1


def _changed_at(folder: StorageRoot, now: float) -> float:
    """When an empty folder has changed; stores have none."""
    try:
        return os.stat(folder.uri).st_mtime
    except OSError:
        return now


def is_refusal(words: str) -> bool:
    """Whether an error of a store is a refusal for lack of rights, so that the store has surely done nothing."""
    return "refuses access" in words


def _words(error: Exception) -> str:
    """The text of an error without the path before it; of a refusal the status and the code alone, because the rest
    differs from file to file. A query of a URL may be a signature, so it is left out."""
    words = str(error).partition("cannot be ")[2].partition(": ")[2] or str(error)
    if not is_refusal(words):
        return _QUERY.sub(r"\1", words)
    answer = [found[1] for found in (_STATUS.search(words), _CODE.search(words)) if found]
    return f"the store refuses access ({', '.join(answer)})" if answer else "the store refuses access"
