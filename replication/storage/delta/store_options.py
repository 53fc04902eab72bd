"""What delta-rs and pyarrow are told of an object store: credentials, endpoints, and how long an operation may take.

A local disk or a network file system needs no options, and takes no deadline: a call that hangs there cannot be ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

# Names that delta-rs and object_store give to options -> names of pyarrow's S3FileSystem.
_S3_OPTIONS = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint_override",
}
_ATTEMPTS = 3


def delta_options(options: Mapping[str, str], timeout_ms: int) -> dict[str, str]:
    """The options for delta-rs. An attempt may take half of the time, and none begins after that; options that the root
    has of its own go before these."""
    half = f"{timeout_ms // 2}ms"
    given = {name.lower() for name in options}
    deadlines = {"timeout": half, "connect_timeout": half, "retry_timeout": half}
    return {**options, **{name: value for name, value in deadlines.items() if name not in given}}


def s3_arguments(options: Mapping[str, str], timeout_ms: int) -> dict[str, Any]:
    """The arguments of pyarrow's S3FileSystem: the attempts of an operation share the time."""
    arguments: dict[str, Any] = {_S3_OPTIONS[name]: value for name, value in options.items() if name in _S3_OPTIONS}
    endpoint = arguments.get("endpoint_override", "")
    if "://" in endpoint:
        arguments["scheme"], _, arguments["endpoint_override"] = endpoint.partition("://")
    seconds = timeout_ms / 1000 / _ATTEMPTS
    retries = pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
    return {**arguments, "request_timeout": seconds, "connect_timeout": seconds, "retry_strategy": retries}
