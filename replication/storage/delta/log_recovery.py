"""Recovers a table whose log has lost files: in a power cut, or because its root was emptied while others wrote to it.

A commit counts only while the commit before it exists, and only if it was written after that very one. A commit that
does not count is a *ghost*: its writer reports no success, and no later commit follows it. Ghosts come about where
commits are lost and other processes have written later ones. Readers open such a table below its first hole. Its owner
puts the ghosts aside, because the next commits need their names. Kafka: `LogLoader.recoverLog`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.checkpoint import HINT, checkpoint_name, last_checkpoint
from lakelog.replication.storage.delta.commit import AddedFile, Commit, Stamp
from lakelog.replication.storage.delta.commit_format import (
    commit_content,
    commit_name,
    drop_commits_before,
    is_commit,
    last_version,
    read_commit,
)
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.in_threads import in_threads

logger = logging.getLogger(__name__)

ASIDE = "_ghost_commits"  # a folder of the table, in which no reader of Delta looks

_REMOTE_COMMITS = 16  # that recovery reads in an object store
_READERS = 8


class LogReach(NamedTuple):
    """How far the files of a log reach.

    `checkpoint`: the version of the checkpoint from which the log is read; -1 without one. `last`: the last commit
    before a hole; -1 if there is no table. By name: `torn` are newer checkpoints that are torn, `ghosts` the files
    after the hole, and `gone` the checkpoint that the hint names, if it is missing.
    """

    checkpoint: int
    last: int
    torn: Sequence[str]
    ghosts: Sequence[str]
    gone: Sequence[str]

    @property
    def readable(self) -> int:
        """The newest version at which delta-rs can open the table. Commits lead on from there to `last`."""
        return min([self.last, *(_version(name) - 1 for name in (*self.torn, *self.gone))])


def log_files(root: StorageRoot) -> dict[str, Stamp | None]:
    """The commits and checkpoints of a log, by name, and their stamps. Raises KafkaStorageException."""
    log = root.child("_delta_log")
    names = [name for name in log.list() if name[:20].isdigit()]
    return dict(zip(names, log.stamps(names), strict=True))


def find_end(root: StorageRoot, lost: Collection[str] = ()) -> LogReach:
    """Finds the end of a log from a listing. It takes `lost` commits for missing, and `lost` checkpoints for torn.
    Raises KafkaStorageException."""
    names = [name for name in root.child("_delta_log").list() if name[:20].isdigit()]
    commits = {_version(name) for name in names if is_commit(name) and name not in lost}
    torn, checkpoint = list[str](), -1
    for name in sorted((name for name in names if ".checkpoint" in name), reverse=True):
        if name not in lost and root.is_whole_checkpoint(f"_delta_log/{name}"):
            checkpoint = _version(name)
            break
        torn.append(name)
    last = checkpoint
    while last + 1 in commits:
        last += 1
    ghosts = [name for name in names if _version(name) > last and name not in torn]
    return LogReach(checkpoint, last, torn, ghosts, _lost_checkpoint(root, names))


def is_half_deleted(root: StorageRoot) -> bool:
    """Whether `StorageRoot.delete_table` was interrupted here: commits are left, and the log has no beginning. Raises
    KafkaStorageException."""
    return last_version(root) >= 0 and find_end(root).last < 0


def _lost_checkpoint(root: StorageRoot, names: Sequence[str]) -> Sequence[str]:
    """The checkpoint that the hint names, if it is not among these files. Then delta-rs does not open the table."""
    try:
        hinted = last_checkpoint(root)
    except (ValueError, KeyError, TypeError):  # a torn hint, which delta-rs ignores
        return ()
    is_there = hinted < 0 or any(_version(name) == hinted and ".checkpoint" in name for name in names)
    return () if is_there else (checkpoint_name(hinted).rpartition("/")[2],)


def recover_log(root: StorageRoot, is_after_crash: bool = False, has_rows: bool = False) -> bool:
    """For a table's owner: puts the ghosts of its log aside, and torn checkpoints, and logs that in one line.

    After a crash (`is_after_crash`) an empty or torn commit is a hole, too, because its writer had not synced it. But
    if a whole checkpoint has the content of that commit, recovery deletes the commit and all before it. If that leaves
    no commit at the checkpoint or after it, recovery writes an empty one, which the next commit can follow. In a state
    table (`has_rows`) a commit is a hole if the file with its rows is torn.

    Recovery decides before it writes, and its writes do not change what it would decide. So after an interruption the
    next call finishes it. Returns False for a log without a beginning, which stays as it is. Raises
    KafkaStorageException, and without `is_after_crash` CorruptRecordException for a torn commit.
    """
    looks_for_torn = is_after_crash and root.is_local  # in an object store, where each read is paid for, only later
    refused_checkpoints = set[str]()
    while True:
        lost = _torn_commits(root) if looks_for_torn else {}
        end, torn = find_end(root, {*lost, *refused_checkpoints}), list[str]()
        if end.last < 0:
            return False
        covered = max((_version(name) for name in lost if _version(name) <= end.checkpoint), default=-1)
        # Another process of the owner may recover the log, too, and commits may land under the same names.
        stamps = {**_stamps(root, end), **lost}
        try:
            tail = read_tail(root, end.last, end.checkpoint, _REMOTE_COMMITS, covered)
        except CorruptRecordException:
            if looks_for_torn or not is_after_crash:
                raise
            looks_for_torn = True
            continue
        last = end.last if not tail else _last_with_rows(root, tail, torn) if has_rows else tail[-1].version
        has_commit = last > end.checkpoint or any(commit.version == last for commit in tail)
        if last < end.checkpoint or (has_rows and not has_commit and not _has_whole_rows(root, last, torn)):
            refused_checkpoints |= _checkpoints(root, end.checkpoint)  # it leads to a file that is torn
            continue
        torn += [name for name in lost if _version(name) > end.checkpoint]
        if last < end.last or not end.ghosts or torn or not root.exists(commit_name(last + 1)):
            break  # otherwise the commit of the hole has landed since the listing, so the files after it are no ghosts
    refused = [commit_name(version).rpartition("/")[2] for version in range(last + 1, end.last + 1)]
    found = [*refused, *end.ghosts, *end.torn]
    if end.gone:
        root.child("_delta_log").delete(HINT)
        logger.error("%s: %s is gone, as after a power cut: the table is read from older files", root.uri, *end.gone)
    if found:
        put_aside(root, {name: stamps[name] for name in found})
        why = "the next one, or its file, is empty or torn" if torn else "the next one was written after another one"
        why = why if refused or torn else "the next one is missing" if end.ghosts else "a checkpoint is torn"
        logger.error(
            "%s: its last version is %d: %s, as after a power cut. These files of its log were put aside, to %s: %s",
            root.uri, last, why, root.path(ASIDE), ", ".join(sorted(found)),
        )  # fmt: skip
    if covered >= 0 or not has_commit:
        _rely_on_checkpoint(root, covered if has_commit else last, lost, has_commit)
    return True


def _rely_on_checkpoint(root: StorageRoot, version: int, lost: Mapping[str, Stamp], has_commit: bool) -> None:
    """Removes the commits up to `version`, because a checkpoint has all their content.

    Without `has_commit` the log has no commit that the next one can follow. Then this writes an empty commit for
    `version`, which is that of the checkpoint. It removes the older commits first, and the empty one follows no other:
    so no reader that has replayed the older ones takes it for the next commit. Another process that recovers the log
    at the same time removes the same commits. If another process has written a commit for `version`, that one stays.
    """
    drop_commits_before(root, version)  # a gap between those that stay would look like the log's end
    name = commit_name(version).rpartition("/")[2]
    if name in lost:
        put_aside(root, {name: lost[name]})
    if not has_commit:
        cause = {"who": "broker", "why": "go on from a checkpoint"}
        root.put_if_absent(
            commit_name(version), commit_content(cause, uuid.uuid4().hex, (), (), {}, follows=uuid.uuid4().hex)
        )
        root.sync("_delta_log")
    logger.error("%s: commits up to %d: some were torn or lost, so a checkpoint is read instead", root.uri, version)


def _torn_commits(root: StorageRoot) -> dict[str, Stamp]:
    """The commits of a log that are empty or torn, by name, and their stamps."""

    def is_torn(name: str) -> bool:
        try:
            read_commit(root, _version(name))
        except CorruptRecordException:
            return True
        except FileNotFoundError:  # another process of the owner has moved it
            return False
        return False

    log = root.child("_delta_log")
    names = [name for name in log.list() if is_commit(name)]
    torn = in_threads(is_torn, names, 1 if root.is_local else _READERS)
    names = [name for name, found in zip(names, torn, strict=True) if found]
    stamps = zip(names, log.stamps(names), strict=True)
    return {name: stamp for name, stamp in stamps if stamp is not None and is_torn(name)}  # the stamp is of a torn one


def read_tail(
    root: StorageRoot, last: int, checkpoint: int | None = None, remote: int = 2, above: int = -1,
    after: int | None = None,
) -> list[Commit]:  # fmt: skip
    """The commits from a checkpoint up to `last`, in order, up to the first that does not follow the one before it.

    Args:
        last: the last version.
        checkpoint: the version of the checkpoint; by default that of the newest one. The commit of that version is left
            out if only its checkpoint is left.
        remote: how many commits are read in an object store, which loses no commit. Two show whether the last one was
            late.
        above: commits up to this version are left out.
        after: all commits after this version are read, however many.

    Raises CorruptRecordException for a torn commit, and KafkaStorageException.
    """
    if checkpoint is None:
        names = root.child("_delta_log").list() if root.is_local else ()
        checkpoints = (_version(name) for name in names if name[:20].isdigit() and ".checkpoint" in name)
        checkpoint = max((version for version in checkpoints if version <= last), default=0)
    first = max(0, above + 1, checkpoint if root.is_local else last - remote + 1)
    first = first if after is None else min(first, after + 1)

    def read(version: int) -> Commit | None:
        try:
            return read_commit(root, version)
        except FileNotFoundError:
            return None

    found: list[Commit] = []
    for commit in in_threads(read, range(first, last + 1), 1 if root.is_local else _READERS):
        if commit is not None and found and not commit.follows(found[-1].unique_id):
            break
        found += [commit] if commit is not None else []
    return found


def _last_with_rows(root: StorageRoot, tail: Sequence[Commit], torn: list[str]) -> int:
    """The last version whose file of rows is whole. A commit that changes no row has no file. Adds faults to `torn`."""
    last = tail[-1].version
    for commit in reversed(tail):
        fault = next((fault for file in commit.adds if (fault := _fault(root, file))), None)
        if fault is not None:
            torn.append(fault)
            last = commit.version - 1
        elif commit.adds:
            break
    return last


def _has_whole_rows(root: StorageRoot, version: int, torn: list[str]) -> bool:
    """Whether all files of the table at a version are whole. Adds faults to `torn`."""
    try:
        names = add_actions(root.open_table(version)).column("path").to_pylist()
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error
    faults = [fault for name in names if (fault := _fault(root, AddedFile(name, 0)))]
    torn += faults
    return not faults


def _checkpoints(root: StorageRoot, version: int) -> set[str]:
    """The names of the files of a version's checkpoint."""
    return {name for name in root.child("_delta_log").list() if name.startswith(f"{version:020d}.checkpoint")}


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


def put_aside(root: StorageRoot, files: Mapping[str, Stamp | None]) -> None:
    """Moves files of a log to a folder beside it, the last one first, so that no commit lands in between that would
    seem to follow one of them. A file whose stamp is not the given one stays: it is a later file, and no ghost. With a
    checkpoint, the hint at the last checkpoint is deleted, too."""
    log, aside = root.child("_delta_log"), root.child(ASIDE)
    for name, stamp in sorted(files.items(), reverse=True):
        if stamp is not None:  # otherwise another process of the owner has moved it
            log.move_out(name, stamp, aside, f"{name}.{stamp[1]}")
    if any(".checkpoint" in name for name in files):
        log.delete(HINT)
    log.sync()


def _version(name: str) -> int:
    return int(name[:20])
