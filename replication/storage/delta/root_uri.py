"""The URI of a storage root: the allowed forms, and the errors for any other text."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from urllib.parse import SplitResult, unquote, urlsplit

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import is_utf8

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_ADDRESSES = re.compile(r"(?:[A-Za-z_]+://)?[^/,\s]+:\d+(?:,[^/,\s]+:\d+)*/?")
_EXAMPLES = "such as /data/lakelog or s3://bucket/lakelog"


def normal_uri(uri: str, schemes: Collection[str] = STORES) -> str:
    """The one spelling of a root's URI: local paths are absolute, and no URI ends with a slash.

    `schemes` are those of the roots that are not on a disk. Raises InvalidConfigurationException if the text names
    neither a folder nor a store, or if its path has a character or a part that delta-rs or the store reads as another
    one. Its tables would lie elsewhere, or on top of one another.
    """
    if not isinstance(uri, str) or not uri.strip():
        raise InvalidConfigurationException(f"{uri!r:.80} is not a storage root: give a folder or a URI, {_EXAMPLES}")
    if not (uri.isprintable() and is_utf8(uri)):
        raise InvalidConfigurationException(
            f"{uri!a} is not a storage root: its name must be UTF-8 without control characters"
        )
    parts = urlsplit(uri)
    if parts.scheme not in schemes and _ADDRESSES.fullmatch(uri):
        raise InvalidConfigurationException(
            f"{uri} is the address of a server, but Lakelog has no servers: "
            f"give the URI of the cluster's storage root, {_EXAMPLES}"
        )
    if parts.scheme in ("", "file"):
        return _absolute(uri, _path_of(uri, parts) if parts.scheme else uri)
    if parts.scheme not in schemes or not parts.netloc:
        known = ", ".join(f"{scheme}://" for scheme in ("file", *STORES))
        raise InvalidConfigurationException(
            f"{uri} is not a storage root: give a folder, or a URI that begins with one of {known} and a bucket or host"
        )
    return _in_a_store(uri, uri.rstrip("/"))


def _path_of(uri: str, parts: SplitResult) -> str:
    """The path of a URI of a local file. A query, a fragment or a host would get lost without a word."""
    if parts.query or parts.fragment or parts.netloc not in ("", "localhost"):
        raise InvalidConfigurationException(
            f"storage root {uri}: a URI of a local folder is file:/// and its absolute path, with %3F for ? and %23 "
            "for #; the path alone is taken as it is"
        )
    return unquote(parts.path)


def _absolute(uri: str, path: str) -> str:
    try:
        found = os.path.abspath(os.path.expanduser(_plain(uri, path)))
    except FileNotFoundError:
        raise InvalidConfigurationException(
            f"storage root {uri}: this process stands in a folder that was deleted; give an absolute path"
        ) from None
    return f"/{found.lstrip('/')}"  # POSIX lets two slashes begin a path, and Hadoop takes what follows for a host


def _in_a_store(uri: str, found: str) -> str:
    key = _plain(uri, found).partition("://")[2]
    if found_at := sorted({"?", "#"}.intersection(key)):
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain {found_at[0]}, which ends the path of a URI"
        )
    if {"", ".", ".."}.intersection(key.split("/")):
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain an empty part, . or ..; a store has no parent folders"
        )
    return found


def _plain(uri: str, path: str) -> str:
    """The path, if delta-rs and the stores take it as it is."""
    if unquote(path) != path:
        raise InvalidConfigurationException(f"storage root {uri}: its path must not contain an escape such as %20")
    if "\\" in path or not path.isprintable():
        raise InvalidConfigurationException(
            f"storage root {uri}: its path must not contain a backslash or a control character such as a line break"
        )
    return path
