"""Rules for topic names."""

from __future__ import annotations

from lakelog.replication.errors import InvalidTopicException

MAX_LENGTH = 249
INTERNAL_PREFIX = "__"
_LEGAL_SYMBOLS = "._-"


def check_topic_name(name: str) -> None:
    """A topic name has 1 to 249 ASCII letters, digits, `.`, `_` and `-`, and is not `.` or `..`.

    Kafka: `Topic.validate`. Names become parts of file names.

    Raises:
        InvalidTopicException: the text says what is wrong with the name.
    """
    check_is_text(name)
    problem = _problem(name)
    if problem:
        raise InvalidTopicException(f"topic name {name!r} {problem}")


def check_is_text(name: object) -> None:
    """A topic name must be a `str`.

    Raises:
        InvalidTopicException: it is of another type; the text names it.
    """
    if not isinstance(name, str):
        raise InvalidTopicException(f"topic name {name!r} is of type {type(name).__name__}, it must be text (str)")


def is_internal(name: str) -> bool:
    """Whether the name begins with `__`. Such names are reserved for the cluster's own topics.

    Kafka: `Topic.isInternal`, which knows two such names. [AP-02, DR-01]
    """
    return name.startswith(INTERNAL_PREFIX)


def check_not_internal(name: str, who: str) -> None:
    """Clients must not make internal topics or write to them.

    Kafka: `ReplicaManager.appendToLocalLog` with internalTopicsAllowed = false. [AP-02]

    Raises:
        InvalidTopicException: the topic is internal, and the text names `who`; or the name is not a `str`.
    """
    check_is_text(name)
    if is_internal(name):
        raise InvalidTopicException(
            f"topic {name} is internal, which is not for {who}: names that begin with {INTERNAL_PREFIX} are reserved"
        )


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "is a folder, not a name"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters: at most {MAX_LENGTH} are allowed"
    if not (name.isascii() and all(symbol.isalnum() or symbol in _LEGAL_SYMBOLS for symbol in name)):
        return "has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None
