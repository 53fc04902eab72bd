"""The settings of a producer that shape its sends. The names and meanings are those of Kafka's `ProducerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.replication.clients.client_config import ClientConfig, client_key
from lakelog.replication.properties import Integer


@dataclass(frozen=True)
class ProducerConfig(ClientConfig):
    """Times are in ms, sizes in bytes; the key `linger.ms` is the field `linger_ms`.

    `max.in.flight.requests.per.connection`: how many sends are on their way at the same time; a log remembers the last
    five of each producer. `linger.ms`: how long a send waits for others, to share a commit with them. `batch.size`: the
    most bytes of a partition in a commit of several sends; 0: each send has its own. `buffer.memory`: the most bytes of
    the sends that are not settled; a larger send must be alone. `max.block.ms`: how long a send waits for that memory.
    `delivery.timeout.ms`: the most time from `produce` to the report; a send has a time-out of its own.

    Kafka's `batch.size` is 16 KB and its `buffer.memory` 32 MB. Here a commit costs more than a request, and one send
    may have tens of MB.
    """

    max_in_flight_requests_per_connection: int = client_key(5, Integer(1, 5))
    linger_ms: int = client_key(5, Integer(0))
    batch_size: int = client_key(8388608, Integer(0))
    buffer_memory: int = client_key(268435456, Integer(1, 2**63 - 1))
    max_block_ms: int = client_key(60000, Integer(0, 2**63 - 1))
    delivery_timeout_ms: int = client_key(120000, Integer(0))
