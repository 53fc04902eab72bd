"""What a power cut does to the end of a table: commits are lost, or files have their names and a part of themselves."""

from __future__ import annotations

from lakelog.replication.storage.delta.commit_reader import commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot


def lose_end(table: StorageRoot, count: int) -> int:
    """A power cut takes the last commits of a table, and the files that they have added, as if they had never been
    written. Not beyond a checkpoint, nor where files of what is left have been deleted. Answers how many it took."""
    lost = _last_commits(table, count)
    while lost and not all(table.exists(f.name) for f in read_commit(table, lost[0] - 1).adds):
        lost = lost[1:]
    for version in reversed(lost):
        added = read_commit(table, version).adds
        table.delete(commit_name(version))
        for file in added:
            table.delete(file.name)
    return len(lost)


def tear_end(table: StorageRoot, count: int, part: float) -> list[str]:
    """After a power cut the files that the last commits have added have their names and a part of their bytes. Answers
    which files."""
    names = [f.name for version in _last_commits(table, count) for f in read_commit(table, version).adds]
    return _tear(table, names, part)


def tear_commit(table: StorageRoot, part: float) -> list[str]:
    """After a power cut the last commit of a table has its name and a part of its bytes."""
    return _tear(table, [commit_name(version) for version in _last_commits(table, 1)], part)


def _tear(table: StorageRoot, names: list[str], part: float) -> list[str]:
    found = [name for name in names if table.exists(name)]
    for name in found:
        content = table.read(name)
        table.write(name, content[: int(len(content) * part)])
    return found


def _last_commits(table: StorageRoot, count: int) -> list[int]:
    """The versions that a power cut may have taken: not those before a checkpoint, nor the first two."""
    names = table.child("_delta_log").list()
    versions = sorted(int(name[:20]) for name in names if is_commit(name))
    checkpoints = [int(name[:20]) for name in names if name[:20].isdigit() and not is_commit(name)]
    first = max([versions[0] + 1, *(version + 1 for version in checkpoints)])
    return [version for version in versions[max(0, len(versions) - count) :] if version > first]
