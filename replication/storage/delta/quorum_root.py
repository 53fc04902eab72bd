"""A storage root that stands for several cluster roots: a majority of them decides each commit.

All other operations go to the *home*, the root at which this process reads: see `known_roots`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import NONCE, Stamp
from lakelog.replication.storage.delta.commit_format import parsed
from lakelog.replication.storage.delta.freshness import VersionCache
from lakelog.replication.storage.delta.quorum_folder import QuorumFolder
from lakelog.replication.storage.delta.quorum_member import FOLDER
from lakelog.replication.storage.delta.replayed_table import newest_table
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import Opened, TableHandle, opened

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")
_LOG = "_delta_log/"  # names of commits begin with it
_DECIDED = 0  # in the stamps of files, in place of the time of writing
_FILES_KEPT = 16  # data files that wait for their commit


@dataclass(frozen=True)
class QuorumRoot(StorageRoot):
    """A folder that all roots of the cluster have. `names`: its path below each root."""

    quorum: ClusterQuorum = field(kw_only=True, repr=False, compare=False)
    names: tuple[str, ...] = ()
    _waiting: OrderedDict[str, bytes] = field(default_factory=OrderedDict, repr=False, compare=False)

    @classmethod
    def over(cls, quorum: ClusterQuorum) -> QuorumRoot:
        """The root of a quorum."""
        home = quorum.home.root
        uri = ",".join(sorted(member.root.uri for member in quorum.roots))  # one name, whichever the home is
        return cls(uri, home.options, home.fsync, home.timeout_ms, home.admits_writers, quorum=quorum)

    def child(self, *names: str) -> QuorumRoot:
        """A folder below this one."""
        return replace(self, uri="/".join((self.uri, *names)), names=(*self.names, *names), _waiting=OrderedDict())

    def folder_of_files(self, *names: str) -> QuorumFolder:
        """A folder below this one for files that belong to no table."""
        below = QuorumFolder(
            self.uri, self.options, self.fsync, self.timeout_ms, self.admits_writers, self.guard,
            quorum=self.quorum, names=self.names,
        )  # fmt: skip
        return below.child(*names) if names else below

    def _at_home(self, call: Callable[[StorageRoot], Any]) -> Any:
        return self.quorum.known.at_home(self._at_folder(call))

    def _read(self, call: Callable[[StorageRoot], Any]) -> Any:
        """As `_at_home`, for a call that only reads: it does not wait long for a home that hangs."""
        return self.quorum.known.read_at_home(self._at_folder(call))

    def _at_folder(self, call: Callable[[StorageRoot], Any]) -> Callable[[StorageRoot], Any]:
        self.quorum.settled_home(self.names)
        return lambda home: call(home.child(*self.names) if self.names else home)

    @property
    def parts(self) -> Sequence[StorageRoot]:
        """The folder at each root, also at roots that do not answer."""
        return [member.root.child(*self.names) if self.names else member.root for member in self.quorum.roots]

    @property
    def home_uri(self) -> str:
        """As `StorageRoot.home_uri`."""
        return self.quorum.home.root.child(*self.names).uri

    @property
    def has_signs(self) -> bool:
        """As `StorageRoot.has_signs`."""
        return True

    def show_life(self, epoch: int) -> int:
        """As `LifeSigns.show`."""
        self.quorum.publisher.bring_missing()  # commits may be rare
        return self.quorum.signs.show(self.names, epoch)

    def life_sign(self, epoch: int, max_staleness: float | None = None) -> int:
        """As `LifeSigns.number`. It is always 0 in a process that lets reads go on without a majority: a read of
        records does not ask who lives, and without a majority nobody knows."""
        if self.quorum.reads_go_on:
            return 0
        return self.quorum.signs.number(self.names, epoch, max_staleness)

    def sign_written_at(self) -> float:
        """As `LifeSigns.written_at`."""
        return self.quorum.signs.written_at(self.names)

    def catch_up(self, version: int, is_read: bool = False) -> int:
        """As `StorageRoot.catch_up`."""
        bring = self.quorum.newest_to_read if is_read else self.quorum.catch_up
        return bring(self.names, version)

    def has_table(self) -> bool:
        """As `StorageRoot.has_table`."""
        return super().has_table() and not self.quorum.home.decides_alone(self.names)

    def let_reads_go_on(self) -> None:
        """Lets the reads of this process go on without a majority: see `ClusterQuorum.newest_to_read`."""
        self.quorum.reads_go_on = True

    @property
    def behind(self) -> str:
        """As `ClusterQuorum.behind`."""
        return self.quorum.behind(self.names)

    def catch_up_now_and_then(self, version: int | None = None) -> None:
        """As `StorageRoot.catch_up_now_and_then`. A poll reads only the home, which lacks decided commits that nobody
        has published there."""
        self.quorum.catch_up_now_and_then(self.names, version)

    def put(self, name: str, content: bytes | pa.Buffer) -> None:
        """Keeps a data file in memory until it is proposed together with the commit that adds it."""
        self._waiting[name] = bytes(content)
        while len(self._waiting) > _FILES_KEPT:
            self._waiting.popitem(last=False)

    def put_if_absent(self, name: str, content: bytes) -> Stamp | None:
        """Writes a file if there is none of the name. A commit is proposed to the quorum."""
        found = _COMMIT.fullmatch(name)
        if found is None:
            return self._at_home(lambda home: home.put_if_absent(name, content))
        commit = parsed(int(found[1]), content, None)
        files = {file.name: self._waiting.pop(file.name) for file in commit.adds if file.name in self._waiting}
        size = self.quorum.commit(self.names, commit.version, str(commit.info[NONCE]), content, files)
        return (size, _DECIDED) if size else None

    def create_table(self, commit: bytes) -> None:
        """Makes a table. Raises CommitFailedError if one exists, or KafkaStorageException.

        A commit of the table `cluster`, which all processes see, makes it, so that two processes never make it twice.
        While a cluster is formatted, its tables are made at all roots at once.
        """
        if self.quorum.is_made():
            is_made = self.quorum.create_table(self.names, commit)
        else:
            content = self.quorum.first_commit(self.names, commit)
            for member in self.quorum.roots:
                member.create_table(self.names, content)
            is_made = True
        if not is_made:
            raise CommitFailedError(f"{self.uri}: a table exists already")

    @property
    def is_local(self) -> bool:
        """Whether the home is a folder of this machine."""
        return self.quorum.home.root.is_local

    @property
    def version_cache(self) -> VersionCache | None:
        """The cache of the home's store."""
        return self.quorum.home.root.version_cache

    @property
    def spark_uri(self) -> str:
        """The folder's URI at the home for Spark."""
        return str(self._at_home(lambda home: home.spark_uri))

    @property
    def delta_options(self) -> dict[str, str]:
        """The options of the home for delta-rs."""
        return self.quorum.home.root.delta_options

    def open_newest(self) -> Opened:
        """The table at the home. If a majority answers, the home first gets all commits that were decided before."""
        newest = self.quorum.bring_newest(self.names)
        with suppress(TableNotFoundError):
            found: Opened = self._at_home(newest_table)
            if found.version >= newest:
                return found._replace(tail=None)  # the files of the home have other stamps
        self.quorum.home.doubt()  # it may have been emptied just now, or another root is the home
        newest = self.quorum.bring_newest(self.names)
        found = opened(self.open_table())
        if found.version < newest:
            raise KafkaStorageException(f"{self.uri}: version {newest} cannot be read here")
        return found

    def open_table(self, version: int | None = None) -> TableHandle:
        """A handle on the table at the home."""
        return self._at_home(lambda home: home.open_table(version))

    def checkpoint_table(self, version: int) -> TableHandle:
        """Writes a checkpoint at the home, and copies it to the other roots. Deletes there the commits that the home
        has deleted, and old votes at all roots. Returns a handle at the home. Raises DeltaError, LakelogException,
        OSError."""
        home = self.quorum.settled_home(self.names)
        handle = home.root.child(*self.names).checkpoint_table(version)
        self.quorum.clean_up(self.names, version, home)
        return handle

    def sizes_listed(self) -> dict[str, int]:
        """The files in the folder at all roots that answer soon, and their sizes in bytes."""
        found = self._read(lambda home: home.sizes_listed())
        for sizes in self.quorum.at_others(self.names, lambda root: root.child(*self.names).sizes_listed()):
            found = {**sizes, **found}
        return found

    @property
    def is_sequential(self) -> bool:
        """Votes count only at roots that have the commit before."""
        return True

    def stamps(self, names: Sequence[str]) -> list[Stamp | None]:
        """The sizes of files, without their times of writing, which differ from root to root."""
        return [stamp and (stamp[0], _DECIDED) for stamp in self._read(lambda home: home.stamps(names))]

    def mark(self, name: str) -> str | None:
        return self._read(lambda home: home.mark(name))

    def names_at_roots(self) -> list[str]:
        """As `list`, at all roots that answer soon."""
        found = self.quorum.at_others(self.names, lambda root: root.child(*self.names).list())
        return sorted({name for names in (self.list(), *found) for name in names})

    def list(self) -> list[str]:
        return self._read(lambda home: home.list())

    def _files(self) -> dict[str, tuple[int, float]]:
        return self._read(lambda home: home._files())

    def _file(self, name: str, call: Callable[[StorageRoot], Any], is_read: bool = True) -> Any:
        """The result of `call` at the home. If the home lacks a data file, because somebody has deleted a part of it,
        the result at another root. A missing commit is not looked for elsewhere, because it may only not be published
        yet. `is_read`: `call` reads the whole file."""
        try:
            return self._read(call) if is_read else self._at_home(call)
        except FileNotFoundError:
            if not name.startswith(_LOG):
                for part in self.parts:
                    with suppress(KafkaStorageException, OSError):
                        return call(part)
            raise

    def read(self, name: str) -> bytes:
        return self._file(name, lambda home: home.read(name))

    def read_stamped(self, name: str) -> tuple[bytes, Stamp]:
        content, stamp = self._read(lambda home: home.read_stamped(name))
        if found := _COMMIT.fullmatch(name):
            self.quorum.note_read(self.names, int(found[1]), content)
        return content, (stamp[0], _DECIDED)

    def read_buffer(self, name: str) -> pa.Buffer:
        return self._file(name, lambda home: home.read_buffer(name))

    def open(self, name: str, size: int | None = None) -> pa.NativeFile:
        return self._file(name, lambda home: home.open(name, size), is_read=False)

    def copy_from(self, source: StorageRoot, name: str, new_name: str) -> bool:
        return False

    def create_folder(self) -> None:
        """Creates the folders of the roots. The quorum makes the folders below them. If this call made those, it would
        make a lost root again."""
        if not self.names:
            for part in self.parts:
                part.create_folder()

    def delete(self, name: str) -> None:
        """Deletes a file at all roots that answer. The next clean-up of files finds it in the listings of the
        others."""
        self._at_home(lambda home: home.delete(name))
        self.quorum.at_others(self.names, lambda root: root.child(*self.names).delete(name))

    def delete_folder(self) -> None:
        """Deletes the folder at all roots that answer."""
        self._at_home(lambda home: home.delete_folder())
        self.quorum.at_others(self.names, lambda root: root.child(*self.names).delete_folder())

    def delete_table(self) -> None:
        """As `StorageRoot.delete_table`. At each root the votes are deleted last. Once the commits are gone, old and
        new votes do not count."""

        def delete(root: StorageRoot) -> None:
            root.child(*self.names).delete_table()
            root.child(FOLDER, *self.names).delete_folder()

        self.quorum.at_majority(delete)

    def sync(self, name: str = "") -> None:
        """As `StorageRoot.sync`. It does nothing for commits: the votes of a majority make them durable, and each root
        syncs those that are published there."""
        if name != "_delta_log":
            self._at_home(lambda home: home.sync(name))
