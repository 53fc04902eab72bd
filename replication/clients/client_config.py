"""The base of the settings of clients: each is a field, checked by its type when the client is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import ValueType, text_of


def client_key(default: Any, type: ValueType) -> Any:
    """A field of a `ClientConfig`: `linger_ms` is the key `linger.ms`."""
    return field(default=default, metadata={"type": type})


@dataclass(frozen=True)
class ClientConfig:
    """Settings of one client. Raises InvalidConfigurationException, which lists every value that is not allowed."""

    def __post_init__(self) -> None:
        """Checks every value, and those that are not allowed together."""
        problems = [
            f"{member.name} is {value!r}, it must be {member.metadata['type']}"
            for member in fields(self)
            if not _is_allowed(member.metadata["type"], value := getattr(self, member.name), member.default)
        ]
        problems = problems or self._contradictions()
        if problems:
            who = type(self).__name__.removesuffix("Config").lower()
            raise InvalidConfigurationException(f"{who}: {'; '.join(problems)}")

    def _contradictions(self) -> list[str]:
        """What is wrong with values that are allowed one by one."""
        return []


def _is_allowed(allowed: ValueType, value: Any, default: Any) -> bool:
    if type(value) is not type(default):
        return False
    try:
        allowed.parse(text_of(value))
    except (ValueError, KeyError):
        return False
    return True
