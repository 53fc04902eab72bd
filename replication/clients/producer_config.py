"""The settings of a producer that shape its sends. The names and meanings are those of Kafka's `ProducerConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import Integer, text_of


def _key(default: int, low: int, high: int = 2**31 - 1) -> Any:
    return field(default=default, metadata={"type": Integer(low, high)})


@dataclass(frozen=True)
class ProducerConfig:
    """Times are in ms, sizes in bytes; the key `linger.ms` is the field `linger_ms`.

    `max.in.flight.requests.per.connection`: how many sends are on their way at the same time; a log remembers the last
    five of each producer. `linger.ms`: how long a send waits for others, to share a commit with them. `batch.size`: the
    most bytes of a partition in a commit of several sends; 0: each send has its own. `buffer.memory`: the most bytes of
    the sends that are not settled; a larger send must be alone. `max.block.ms`: how long a send waits for that memory.

    Kafka's `batch.size` is 16 KB and its `buffer.memory` 32 MB. Here a commit costs more than a request, and one send
    may have tens of MB.
    """

    max_in_flight_requests_per_connection: int = _key(5, 1, 5)
    linger_ms: int = _key(5, 0)
    batch_size: int = _key(1048576, 0)
    buffer_memory: int = _key(268435456, 1, 2**63 - 1)
    max_block_ms: int = _key(60000, 0, 2**63 - 1)

    def __post_init__(self) -> None:
        """Raises InvalidConfigurationException, which lists every value that is not allowed."""
        problems = [
            f"{member.name} is {value!r}, it must be {member.metadata['type']}"
            for member in fields(self)
            if not _is_allowed(member.metadata["type"], value := getattr(self, member.name))
        ]
        if problems:
            raise InvalidConfigurationException(f"producer: {'; '.join(problems)}")


def _is_allowed(type: Integer, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    try:
        type.parse(text_of(value))
    except ValueError:
        return False
    return True
