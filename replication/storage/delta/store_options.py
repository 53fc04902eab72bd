"""The options for an object store in the forms of delta-rs and obstore: credentials, endpoints and time limits.

Both take the same names. A local disk or a network file system needs no options and has no time limit: a call that
hangs there cannot be stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

# Options of obstore's HTTP client. It takes all others as those of a store.
_CLIENT_OPTIONS = frozenset(
    """
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_keep_alive_interval
    http2_keep_alive_timeout http2_keep_alive_while_idle http2_only pool_idle_timeout pool_max_idle_per_host
    proxy_ca_certificate proxy_excludes proxy_url randomize_addresses read_timeout timeout user_agent
    """.split()
)
_PREFIXES = ("aws_", "azure_", "google_")
_LONGEST_TRANSFER = 10  # a large file may take so many times as long as an operation, as long as bytes come


def delta_options(options: Mapping[str, str], timeout_ms: int) -> dict[str, str]:
    """The options for delta-rs. An attempt takes at most half of `timeout_ms` (ms), and none begins after that half.
    The root's own options take precedence."""
    half = f"{timeout_ms // 2}ms"
    return _with_defaults(options, timeout=half, connect_timeout=half, retry_timeout=half)


def store_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for a store of obstore, possibly some that it does not know. Not every store that speaks S3 can
    delete several objects by one request."""
    given = {name: value for name, value in options.items() if _plain(name) not in _CLIENT_OPTIONS}
    return _with_defaults(given, aws_disable_bulk_delete="true")


def client_arguments(options: Mapping[str, str], timeout_ms: int) -> dict[str, Any]:
    """The arguments for obstore's HTTP client. An attempt fails if nothing comes for half of `timeout_ms` (ms), and
    none begins after that half. The root's own options take precedence. obstore reads those of its stores from the
    environment, and not those of its client."""
    everywhere = {name: value for name, value in os.environ.items() if name.lower().startswith(_PREFIXES)}
    named = {**everywhere, **options}.items()
    given = {_plain(name): value for name, value in named if _plain(name) in _CLIENT_OPTIONS}
    half, longest = f"{timeout_ms // 2}ms", f"{timeout_ms * _LONGEST_TRANSFER}ms"
    return {
        "client_options": _with_defaults(given, connect_timeout=half, read_timeout=half, timeout=longest),
        "retry_config": {"retry_timeout": timedelta(milliseconds=timeout_ms // 2)},
    }


def _with_defaults(options: Mapping[str, str], **defaults: str) -> dict[str, str]:
    given = {name.lower() for name in options}
    return {**options, **{name: value for name, value in defaults.items() if name not in given}}


def _plain(name: str) -> str:
    plain = name.lower()
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain
