"""Heartbeats of any age: see the fixture `waits`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable

NOW = 1_800_000_000.0

Wait = Callable[[float], None]


def beat(cluster: str, broker: int, ago: float = 1.0, **fields: Any) -> None:
    """Commits a heartbeat of the broker that is this old by the store's clock."""
    BrokerTable.open(StorageRoot.of(cluster), broker).update(1, "heartbeat", **fields)
    written(f"{cluster}/brokers/{broker}", ago)


def written(table: str, ago: float) -> None:
    """Makes the newest commit of a table this many seconds old."""
    newest = max(Path(table, "_delta_log").glob("*.json"))
    os.utime(newest, (NOW - ago, NOW - ago))
