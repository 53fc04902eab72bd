"""Heartbeats of any age, see the fixture `waits`, and a cluster that has them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.storage.logs import P0, P1

NOW = 1_800_000_000.0

Wait = Callable[[float], None]


def beat(cluster: str, broker: int, ago: float = 1.0, **fields: Any) -> None:
    """Commits a heartbeat of the broker that is this old by the store's clock."""
    BrokerTable.open(StorageRoot.of(cluster), broker).heartbeat(1, "heartbeat", **fields)
    written(f"{cluster}/brokers/{broker}", ago)


def written(table: str, ago: float) -> None:
    """Makes the newest commit of a table this many seconds old."""
    newest = max(Path(table, "_delta_log").glob("*.json"))
    os.utime(newest, (NOW - ago, NOW - ago))


def living_world(folder: Path) -> World:
    """Two brokers that are alive and in sync, and an active controller."""
    world = World(str(folder))
    for partition in (P0, P1):
        world.say(0, partition)
        world.say(0, partition, broker=2, lag=0)
    world.cluster.lease.elect("c", None)
    written(f"{world.uri}/controller", 1.0)
    for broker in (1, 2):
        beat(world.uri, broker)
    return world
