"""Turns the errors of a store into a KafkaStorageException that names the place and says why, in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from lakelog.replication.errors import KafkaStorageException

_COLOURS_AND_ARROWS = re.compile(r"\x1b\[\d+m|↳")


def reason(error: Exception) -> str:
    """The text of an error of Python, pyarrow or delta-rs in one line. delta-rs uses several lines with colours."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, FileNotFoundError):
        return os.strerror(error.errno)
    return " ".join(_COLOURS_AND_ARROWS.sub("", str(error)).split())


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns each error of the store into a KafkaStorageException, except FileNotFoundError: that is an answer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise KafkaStorageException(f"{where}: cannot be read: {reason(error)}") from error


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Turns each error of the store into a KafkaStorageException, also FileNotFoundError: the folder has gone."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise KafkaStorageException(f"{where}: cannot be written: {reason(error)}") from error
