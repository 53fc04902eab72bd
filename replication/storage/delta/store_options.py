"""The options for an object store in the forms of delta-rs and pyarrow: credentials, endpoints and time limits.

A local disk or a network file system needs no options and has no time limit: a call that hangs there cannot be stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

# Option names of delta-rs and object_store -> arguments of pyarrow's S3FileSystem.
_S3_OPTIONS = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint_override",
}
_ATTEMPTS = 3


def delta_options(options: Mapping[str, str], timeout_ms: int) -> dict[str, str]:
    """The options for delta-rs. An attempt takes at most half of `timeout_ms` (ms), and none begins after that half.
    The root's own options take precedence."""
    half = f"{timeout_ms // 2}ms"
    given = {name.lower() for name in options}
    deadlines = {"timeout": half, "connect_timeout": half, "retry_timeout": half}
    return {**options, **{name: value for name, value in deadlines.items() if name not in given}}


def s3_arguments(options: Mapping[str, str], timeout_ms: int) -> dict[str, Any]:
    """The arguments of pyarrow's S3FileSystem. The attempts of an operation share `timeout_ms` (ms)."""
    arguments: dict[str, Any] = {_S3_OPTIONS[name]: value for name, value in options.items() if name in _S3_OPTIONS}
    endpoint = arguments.get("endpoint_override", "")
    if "://" in endpoint:
        arguments["scheme"], _, arguments["endpoint_override"] = endpoint.partition("://")
    seconds = timeout_ms / 1000 / _ATTEMPTS
    retries = pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
    return {**arguments, "request_timeout": seconds, "connect_timeout": seconds, "retry_strategy": retries}
