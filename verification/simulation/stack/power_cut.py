"""The effects of a power cut on the end of a table: lost commits, or files with only a part of their bytes."""

from __future__ import annotations

from lakelog.replication.storage.delta.commit_format import commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot


def lose_end(table: StorageRoot, count: int) -> int:
    """Removes the last commits of a table and the files that they added. Returns how many commits. It stops before a
    checkpoint, and where files of the remaining version have been deleted."""
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
    """Leaves only a part of the bytes of the files that the last commits added. Returns their names."""
    names = [f.name for version in _last_commits(table, count) for f in read_commit(table, version).adds]
    return _tear(table, names, part)


def tear_commit(table: StorageRoot, part: float) -> list[str]:
    """Leaves only a part of the bytes of a table's last commit. Returns its name in a list."""
    return _tear(table, [commit_name(version) for version in _last_commits(table, 1)], part)


def _tear(table: StorageRoot, names: list[str], part: float) -> list[str]:
    found = [name for name in names if table.exists(name)]
    for name in found:
        content = table.read(name)
        table.write(name, content[: int(len(content) * part)])
    return found


def _last_commits(table: StorageRoot, count: int) -> list[int]:
    """The last versions that a power cut may affect: only those after a checkpoint, and not the first two."""
    names = table.child("_delta_log").list()
    versions = sorted(int(name[:20]) for name in names if is_commit(name))
    checkpoints = [int(name[:20]) for name in names if name[:20].isdigit() and not is_commit(name)]
    first = max([versions[0] + 1, *(version + 1 for version in checkpoints)])
    return [version for version in versions[max(0, len(versions) - count) :] if version > first]
