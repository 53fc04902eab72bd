"""The URI of a storage root: the allowed forms, and the errors for any other text."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from urllib.parse import unquote, urlsplit

from lakelog.replication.errors import InvalidConfigurationException

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_ADDRESSES = re.compile(r"(?:[A-Za-z_]+://)?[^/,\s]+:\d+(?:,[^/,\s]+:\d+)*/?")
_EXAMPLES = "such as /data/lakelog or s3://bucket/lakelog"


def normal_uri(uri: str, schemes: Collection[str] = STORES) -> str:
    """The one spelling of a root's URI: local paths are absolute, and no URI ends with a slash.

    `schemes` are those of the roots that are not on a disk. Raises InvalidConfigurationException if the text names
    neither a folder nor a store, or if its path has an escape such as `%20`, which delta-rs reads as a space.
    """
    if not uri.strip():
        raise InvalidConfigurationException(f"{uri!r} is not a storage root: give a folder or a URI, {_EXAMPLES}")
    parts = urlsplit(uri)
    if parts.scheme not in schemes and _ADDRESSES.fullmatch(uri):
        raise InvalidConfigurationException(
            f"{uri} is the address of a server, but Lakelog has no servers: "
            f"give the URI of the cluster's storage root, {_EXAMPLES}"
        )
    if parts.scheme in ("", "file"):
        return _absolute(uri, unquote(parts.path) if parts.scheme else uri)
    if parts.scheme not in schemes or not parts.netloc:
        known = ", ".join(f"{scheme}://" for scheme in ("file", *STORES))
        raise InvalidConfigurationException(
            f"{uri} is not a storage root: give a folder, or a URI that begins with one of {known} and a bucket or host"
        )
    return _without_escapes(uri, uri.rstrip("/"))


def _absolute(uri: str, path: str) -> str:
    try:
        return os.path.abspath(os.path.expanduser(_without_escapes(uri, path)))
    except FileNotFoundError:
        raise InvalidConfigurationException(
            f"storage root {uri}: this process stands in a folder that was deleted; give an absolute path"
        ) from None


def _without_escapes(uri: str, path: str) -> str:
    if unquote(path) != path:
        raise InvalidConfigurationException(f"storage root {uri}: its path must not contain an escape such as %20")
    return path
