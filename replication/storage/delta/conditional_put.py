"""Every commit depends on one promise of the store: a put that must not replace a file does not replace it."""

from __future__ import annotations

import uuid
from contextlib import suppress

from lakelog.replication.errors import InvalidConfigurationException, KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot

PROBE = "_probe-"  # begins the name of a file or folder that only a kill leaves


def check_conditional_put(root: StorageRoot) -> None:
    """Refuses a store that takes a second put of one key: there a commit could be lost without a word.

    It leaves no file behind. Of several cluster roots it asks each. Raises InvalidConfigurationException, or
    KafkaStorageException if the root cannot be written, or no majority of them.
    """
    away = list[KafkaStorageException]()
    for part in root.parts:
        try:
            _check(part)
        except KafkaStorageException as error:
            away.append(error)
    if 2 * len(away) >= len(root.parts):
        raise away[0]


def _check(root: StorageRoot) -> None:
    name = f"{PROBE}{uuid.uuid4().hex}"
    try:
        takes_second = takes_second_put(root, name)
    finally:
        with suppress(KafkaStorageException):
            root.delete(name)
    if takes_second:
        raise InvalidConfigurationException(
            f"{root.uri}: the store takes a second put of one key: commits could be lost"
        )


def takes_second_put(root: StorageRoot, name: str) -> bool:
    """Puts a file twice, each time only if it is not there, and returns whether the store takes the second put. Raises
    KafkaStorageException."""
    root.put_if_absent(name, b"first")  # refused if the answer to it was lost, and it was sent again
    return root.put_if_absent(name, b"second") is not None
