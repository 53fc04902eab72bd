"""The base of the settings of clients: each is a field, checked by its type when the client is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import ValueType, faults


def client_key(default: Any, type: ValueType) -> Any:
    """A field of a `ClientConfig`: `linger_ms` is the key `linger.ms`."""
    return field(default=default, metadata={"type": type})


@dataclass(frozen=True)
class ClientConfig:
    """Settings of one client. Raises InvalidConfigurationException, which lists every value that is not allowed."""

    def __post_init__(self) -> None:
        """Checks every value, and those that are not allowed together."""
        problems = faults(self) or self._contradictions()
        if problems:
            who = type(self).__name__.removesuffix("Config").lower()
            raise InvalidConfigurationException(f"{who}: {'; '.join(problems)}")

    def _contradictions(self) -> list[str]:
        """What is wrong with values that are allowed one by one."""
        return []
