"""Recovers a table whose log has lost files: in a power cut, or because its root was emptied while others wrote to it.

A commit counts only while the one before it exists, and only if it was written after that very one. Otherwise nobody is
told that it has landed, and nobody builds on it: it is a ghost. Ghosts stay where commits were lost below those that
other processes have written since. Readers open such a table below its first hole. Its owner puts ghosts aside, because
the next commits need their names. Kafka: `LogLoader.recoverLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import AddedFile, Commit, Stamp
from lakelog.replication.storage.delta.commit_reader import commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads

logger = logging.getLogger(__name__)

ASIDE = "_ghost_commits"  # a folder of the table, in which no reader of Delta looks

_LAST_CHECKPOINT = "_last_checkpoint"
_REMOTE_COMMITS = 16  # of an object store, that recovery looks at
_READERS = 8


class LogReach(NamedTuple):
    """How far the files of a log reach: the checkpoint from which it is read (-1: none), the last commit before a hole
    (-1: there is no table), newer checkpoints that are torn, and the files after the hole, by name."""

    checkpoint: int
    last: int
    torn: Sequence[str]
    ghosts: Sequence[str]

    @property
    def readable(self) -> int:
        """The newest version at which delta-rs can open the table. Commits lead on from there to `last`."""
        return min([self.last, *(_version(name) - 1 for name in self.torn)])


def find_end(root: StorageRoot) -> LogReach:
    """Finds the end of a log, from a listing. Raises KafkaStorageException."""
    names = [name for name in root.child("_delta_log").list() if name[:20].isdigit()]
    commits = {_version(name) for name in names if is_commit(name)}
    # Nothing can follow a checkpoint if its commit is lost and no other one follows it: older checkpoints come first.
    checkpoints = sorted((name for name in names if ".checkpoint" in name), reverse=True)
    checkpoints.sort(key=lambda name: commits.isdisjoint({_version(name), _version(name) + 1}))
    torn, checkpoint = list[str](), -1
    for name in checkpoints:
        if root.is_whole_checkpoint(f"_delta_log/{name}"):
            checkpoint = _version(name)
            break
        torn.append(name)
    last = checkpoint
    while last + 1 in commits:
        last += 1
    ghosts = [name for name in names if _version(name) > last and name not in torn]
    return LogReach(checkpoint, last, torn, ghosts)


def recover_log(root: StorageRoot, is_after_crash: bool = False, has_rows: bool = False) -> None:
    """For a table's owner: puts the ghosts of its log aside, and torn checkpoints, and says so in one line.

    After a crash an empty or torn commit is a hole, too: its writer had not synced it. So is a commit of a state table,
    which `has_rows`, if their file is torn. Raises KafkaStorageException, and CorruptRecordException for a torn commit
    otherwise.
    """
    while True:
        end, torn = find_end(root), list[str]()
        if end.last < 0:
            return
        # Another process of the owner may recover the log, too, and commits may land under the same names.
        stamps = _stamps(root, end)
        tail = read_tail(root, end.last, end.checkpoint, torn if is_after_crash else None, _REMOTE_COMMITS)
        last = end.last if not tail else _last_with_rows(root, tail, torn) if has_rows else tail[-1].version
        if last < end.last or not end.ghosts or not root.exists(commit_name(last + 1)):
            break  # otherwise the first of them has landed since the listing, and what follows it is no ghost
    refused = [commit_name(version).rpartition("/")[2] for version in range(last + 1, end.last + 1)]
    found = [*refused, *end.ghosts, *end.torn]
    if found:
        _put_aside(root, {name: stamps[name] for name in found})
        why = "the next one, or its file, is empty or torn" if torn else "the next one was written after another one"
        why = why if refused else "the next one is missing" if end.ghosts else "a checkpoint is torn"
        logger.error(
            "%s: its last version is %d: %s, as after a power cut. These files of its log were put aside, to %s: %s",
            root.uri, last, why, root.path(ASIDE), ", ".join(sorted(found)),
        )  # fmt: skip


def read_tail(
    root: StorageRoot, last: int, checkpoint: int | None = None, torn: list[str] | None = None, remote: int = 2
) -> list[Commit]:
    """The commits from the `checkpoint` up to `last`, in order, as far as each follows the one before it; by default
    from the newest checkpoint. A commit of which only the checkpoint is left is left out. In an object store, which
    loses no commit, so many `remote` ones are enough: two tell a commit that was late.

    With a list `torn` it ends before the first torn commit, and adds to the list why. Raises CorruptRecordException
    without one, and KafkaStorageException.
    """
    if checkpoint is None:
        names = root.child("_delta_log").list() if root.is_local else ()
        checkpoints = (_version(name) for name in names if name[:20].isdigit() and ".checkpoint" in name)
        checkpoint = max((version for version in checkpoints if version <= last), default=0)
    first = max(0, checkpoint if root.is_local else last - remote + 1)

    def read(version: int) -> Commit | CorruptRecordException | None:
        try:
            return read_commit(root, version)
        except FileNotFoundError:
            return None
        except CorruptRecordException as error:
            if torn is None:
                raise
            return error

    found: list[Commit] = []
    for commit in in_threads(read, range(first, last + 1), 1 if root.is_local else _READERS):
        if isinstance(commit, CorruptRecordException):
            if torn is not None:
                torn.append(str(commit))
            break
        if commit is not None and found and not commit.follows(found[-1].unique_id):
            break
        found += [commit] if commit is not None else []
    return found


def _last_with_rows(root: StorageRoot, tail: Sequence[Commit], torn: list[str]) -> int:
    """The last version of which the file with the rows is whole. A commit that changes no row has no file."""
    last = tail[-1].version
    for commit in reversed(tail):
        fault = next((fault for file in commit.adds if (fault := _fault(root, file))), None)
        if fault is not None:
            torn.append(fault)
            last = commit.version - 1
        elif commit.adds:
            break
    return last


def _fault(root: StorageRoot, file: AddedFile) -> str | None:
    try:
        content = pa.BufferReader(root.read_buffer(file.name))
        pq.ParquetFile(content, page_checksum_verification=True).read(use_threads=False)
    except (FileNotFoundError, pa.ArrowException, OSError) as error:
        return f"{root.path(file.name)}: {error}"
    return None


def _stamps(root: StorageRoot, end: LogReach) -> dict[str, Stamp | None]:
    """The stamps of all files that may be put aside."""
    commits = (commit_name(version).rpartition("/")[2] for version in range(max(0, end.checkpoint), end.last + 1))
    names = [*commits, *end.ghosts, *end.torn]
    return dict(zip(names, root.child("_delta_log").stamps(names), strict=True))


def _put_aside(root: StorageRoot, files: Mapping[str, Stamp | None]) -> None:
    """Moves files of a log, with their stamps, to a folder beside it, the last one first: so no commit lands in between
    that would seem to follow one of them. A file with another stamp is another one, which is no ghost: it stays. The
    hint at the last checkpoint goes if that one does."""
    log, aside = root.child("_delta_log"), root.child(ASIDE)
    for name, stamp in sorted(files.items(), reverse=True):
        if stamp is None or log.stamps([name]) != [stamp]:
            continue
        try:
            content = log.read_buffer(name)
        except FileNotFoundError:  # another process of the owner has moved it
            continue
        aside.write(f"{name}.{stamp[1]}", content)
        if log.stamps([name]) == [stamp]:
            log.delete(name)
    if any(".checkpoint" in name for name in files):
        log.delete(_LAST_CHECKPOINT)
    log.sync_folder()


def _version(name: str) -> int:
    return int(name[:20])
