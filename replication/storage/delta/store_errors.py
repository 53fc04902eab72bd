"""Turns the errors of a store into a KafkaStorageException that names the place and the cause, in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.errors import KafkaStorageException

_NO_WORDS = re.compile(r"\x1b\[\d+m|↳|\n\nDebug source:.*", re.DOTALL)

# Words of delta-rs and obstore, by what a person can do about them. delta-rs asks a server of Amazon's machines, at an
# address of their own, where it has been given no credentials.
_NO_CREDENTIALS = re.compile(r"loading credentials|169\.254\.169\.254|\bIMDS\b|NoCredentials|metadata\.google")
_REFUSED = re.compile(
    "ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|InvalidAccessKey|SIGNATURE_|SignatureDoes|ExpiredToken|403 Forbidden"
)
_UNREACHABLE = re.compile(r"NETWORK_CONNECTION|error sending request")
_OWNER = "the owner is `cluster` or the id of the broker"


class _Store(NamedTuple):
    """Words of a kind of store in its errors, and the names of its settings."""

    words: re.Pattern[str]
    credentials: tuple[str, ...]
    endpoint: str

    @property
    def advice(self) -> str:
        """The settings for missing or wrong credentials."""
        variables = " and ".join(f"LAKELOG_STORAGE_<OWNER>_{name}" for name in self.credentials)
        keys = " and ".join(f"storage.<owner>.{name.lower().replace('_', '.')}" for name in self.credentials)
        return f"set {variables} in the environment, or {keys} in the properties file; {_OWNER}"


_STORES = (
    _Store(
        re.compile("MicrosoftAzure|AuthenticationFailed|AuthorizationFailure|failed to authenticate"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"), "AZURE_STORAGE_ENDPOINT",
    ),
    _Store(re.compile(r"Generic GCS|metadata\.google|googleapis"), ("GOOGLE_SERVICE_ACCOUNT",), "GOOGLE_BASE_URL"),
    _Store(re.compile(""), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "AWS_ENDPOINT_URL"),
)  # fmt: skip


def words_of(error: Exception) -> str:
    """The text of an error in one line. delta-rs uses several with colours; obstore appends its fields."""
    return " ".join(_NO_WORDS.sub("", str(error)).split())


def reason(error: Exception) -> str:
    """The text of an error of Python, pyarrow, delta-rs or obstore in one line, and the settings that may end it."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    words = words_of(error)
    store = next(each for each in _STORES if each.words.search(words))
    if _NO_CREDENTIALS.search(words):
        return f"there are no credentials for it: {store.advice}"
    if _REFUSED.search(words):
        return f"the store refuses access ({words}): {store.advice}"
    if _UNREACHABLE.search(words):
        return f"{words}; a store of one's own needs LAKELOG_STORAGE_<OWNER>_{store.endpoint}; {_OWNER}"
    return words


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
    """Turns each error of the store into a KafkaStorageException, also FileNotFoundError: the folder does not exist."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise KafkaStorageException(f"{where}: cannot be written: {reason(error)}") from error
