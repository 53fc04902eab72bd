"""Requests to the controller: their kinds, their arguments, and the type and bounds of each argument.

Any client can write a row to the `admin` table. So a client checks a request before it sends it, and the controller
checks it again before it acts. The kinds are named after the methods of `AdminClient`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from lakelog.replication.errors import InvalidRequestException, PolicyViolationException

# The states of a request.
PENDING, DECIDING, APPLYING, DECIDED = "Pending", "Deciding", "Applying", "Decided"

MAX_INT = 2**31 - 1
_SHOWN = 80  # characters of a value in an error


@dataclass(frozen=True)
class Outcome:
    """The result for one topic or partition of a request: it succeeded if `error` is None. `message` is for people."""

    error: str | None
    message: str


@dataclass(frozen=True)
class AdminRequest:
    """A request. `outcomes` has one for each topic or partition; it is None until a controller has decided.

    `timeout_ms`: how long the client waits, in ms; -1 is no limit. `deadline_ms`: until when, in ms since 1970 by the
    client's clock; None if an older version has written the row. `problem`: why the row cannot be decoded, or None.
    """

    request_id: str
    kind: str
    arguments: Mapping[str, Any]
    validate_only: bool = False
    requested_by: str = ""
    metadata_version: int = -1
    outcomes: Mapping[str, Outcome] | None = None
    controller_epoch: int = -1
    state: str = PENDING
    timeout_ms: int = -1
    deadline_ms: int | None = None
    problem: str | None = None


class _Limited(Protocol):
    @property
    def lakelog_max_partitions_per_topic(self) -> int: ...
    @property
    def lakelog_max_partitions_per_request(self) -> int: ...


class PartitionLimits(NamedTuple):
    """Limits on partitions: `lakelog.max.partitions.per.topic` and `lakelog.max.partitions.per.request`.

    Kafka: `MAX_PARTITIONS_PER_BATCH` of the controller.
    """

    per_topic: int
    per_request: int

    @classmethod
    def of(cls, config: _Limited) -> PartitionLimits:
        """The limits in a configuration."""
        return cls(config.lakelog_max_partitions_per_topic, config.lakelog_max_partitions_per_request)


class _Argument(NamedTuple):
    """An argument of a request. `check` raises TypeError; its text describes the right values."""

    check: Callable[[Any], None]
    is_required: bool = True


_Arguments: TypeAlias = Mapping[str, _Argument]


def check_arguments(kind: str, arguments: Any) -> None:
    """Checks that the kind is known, all required arguments are there, none is unknown, and each has its type. [EV-05]

    Raises:
        InvalidRequestException: the text names the kind, the argument and what is allowed.
    """
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise InvalidRequestException(f"unknown kind of request {_shown(kind)}; there are: {', '.join(_KINDS)}")
    if not isinstance(arguments, Mapping):
        raise InvalidRequestException(f"{kind}: the arguments are {_shown(arguments)}, they must be an object")
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise InvalidRequestException(f"{kind}: unknown argument {_shown(unknown[0])}; there are: {', '.join(known)}")
    for name, argument in known.items():
        value = arguments.get(name)
        if value is None and not argument.is_required:
            continue
        if name not in arguments:
            raise InvalidRequestException(f"{kind}: {name} is missing")
        try:
            argument.check(value)
        except TypeError as error:
            raise InvalidRequestException(f"{kind}: {name} is {_shown(value)}, it must be {error}") from error


def check_limits(kind: str, arguments: Mapping[str, Any], limits: PartitionLimits) -> None:
    """Checks a request's number of partitions against the limits. Call `check_arguments` first.

    Only the controller knows how many partitions a `create_partitions` request adds, so it checks that number itself.

    Kafka: `ReplicationControlManager.validateTotalNumberOfPartitions`.

    Raises:
        PolicyViolationException: the topic would have, or the request has, more partitions than allowed.
    """
    match kind:
        case "create_topic":
            count = arguments.get("partitions") or len(arguments.get("assignment") or ())
            check_topic_size(arguments["topic"], count, limits)
            check_request_size(kind, count, limits)
        case "create_partitions":
            check_topic_size(arguments["topic"], arguments["total"], limits)
            check_request_size(kind, len(arguments.get("assignment") or ()), limits)
        case "alter_partition_reassignments":
            check_request_size(kind, len(arguments["reassignments"]), limits)
        case "elect_leaders":
            check_request_size(kind, len(arguments.get("partitions") or ()), limits)


def check_topic_size(topic: str, partitions: int, limits: PartitionLimits) -> None:
    """Raises PolicyViolationException if the topic would have too many partitions."""
    if partitions > limits.per_topic:
        raise PolicyViolationException(
            f"topic {topic}: {partitions} partitions exceed lakelog.max.partitions.per.topic ({limits.per_topic})"
        )


def check_request_size(kind: str, partitions: int, limits: PartitionLimits) -> None:
    """Raises PolicyViolationException if the request has too many partitions."""
    if partitions > limits.per_request:
        raise PolicyViolationException(
            f"{kind}: {partitions} partitions exceed lakelog.max.partitions.per.request ({limits.per_request}); "
            "send several requests"
        )


def _text(value: Any) -> None:
    """A `str` may hold a lone surrogate, which UTF-8 cannot encode."""
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise TypeError("a string in UTF-8")


def _integer(value: Any) -> None:
    """Refuses `True` and `False`, which Python counts as integers."""
    if type(value) is not int or abs(value) > MAX_INT:
        raise TypeError(f"an integer, at most {MAX_INT}")


def _is_list_of_brokers(value: Any) -> bool:
    return isinstance(value, list) and all(type(broker) is int and 0 <= broker <= MAX_INT for broker in value)


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_INT


def _assignment(value: Any) -> None:
    is_right = isinstance(value, dict) and all(_is_number(n) and _is_list_of_brokers(b) for n, b in value.items())
    if not is_right or len({int(number) for number in value}) != len(value):
        raise TypeError("a list of broker ids for each partition number")


def _reassignments(value: Any) -> None:
    if not isinstance(value, dict):
        raise TypeError("a list of broker ids, or null, for each partition")
    for name, brokers in value.items():
        _text(name)
        if brokers is not None and not _is_list_of_brokers(brokers):
            raise TypeError("a list of broker ids, or null, for each partition")


def _texts(value: Any) -> None:
    if not isinstance(value, list):
        raise TypeError("a list of strings")
    for text in value:
        _text(text)


def _settings(value: Any) -> None:
    if not isinstance(value, dict):
        raise TypeError("a value for each key")
    for key, setting in value.items():
        _text(key)
        if isinstance(setting, str):
            _text(setting)
        elif setting is not None and not isinstance(setting, bool | int | float):
            raise TypeError("a string, a number or a boolean for each key")


def _shown(value: Any) -> str:
    """A value for an error text: shortened, in ASCII."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


_TEXT, _INTEGER, _ASSIGNMENT = _Argument(_text), _Argument(_integer), _Argument(_assignment, False)
_SETTINGS, _TEXTS = _Argument(_settings), _Argument(_texts)

_KINDS: Mapping[str, _Arguments] = {
    "create_topic": {
        "topic": _TEXT, "partitions": _Argument(_integer, False), "replication_factor": _Argument(_integer, False),
        "assignment": _ASSIGNMENT, "configs": _Argument(_settings, False),
    },
    "create_partitions": {"topic": _TEXT, "total": _INTEGER, "assignment": _ASSIGNMENT},
    "alter_configs": {"topic": _TEXT, "put": _SETTINGS, "delete": _TEXTS},
    "alter_broker_configs": {"broker": _TEXT, "put": _SETTINGS, "delete": _TEXTS},
    "unregister_broker": {"broker": _INTEGER},
    "delete_topic": {"topic": _TEXT},
    "alter_partition_reassignments": {"reassignments": _Argument(_reassignments)},
    "elect_leaders": {"election_type": _TEXT, "partitions": _Argument(_texts, False)},
}  # fmt: skip
