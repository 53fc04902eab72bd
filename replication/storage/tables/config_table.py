"""`configs`: the settings of brokers that may change while they run. [TH-02]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakelog.replication.protocol.entity import BROKERS, DEFAULT, Configs, Entity
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.controller_claim import check_claim, claim
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import CONFIGS


class ConfigTable:
    """The configs table of a cluster."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @classmethod
    def create(cls, cluster: StorageRoot) -> ConfigTable:
        """Makes the table without rows."""
        return cls(StateTable.create(cluster.child(CONFIGS.name), CONFIGS))

    @classmethod
    def open(cls, cluster: StorageRoot) -> ConfigTable:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(CONFIGS.name), CONFIGS))

    @property
    def configs(self) -> Configs:
        """The settings of every entity that has any, as last read."""
        return _configs(self._table.rows)

    def of_broker(self, broker_id: int) -> dict[str, str]:
        """The settings of a broker, as last read: its own over those of all brokers. Kafka: `DynamicBrokerConfig`."""
        found = self.configs
        return {**found.get(Entity(BROKERS, DEFAULT), {}), **found.get(Entity(BROKERS, str(broker_id)), {})}

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._table.refresh()

    def maintain(self) -> None:
        """Keeps opening cheap; for the active controller, now and then."""
        self._table.maintain()

    def claim(self, controller_epoch: int) -> None:
        """Makes a controller the only one that may write here. Raises ControllerMovedException. [CE-05]"""
        claim(self._table, CONFIGS.name, controller_epoch)

    def change(self, put: Configs, cause: Mapping[str, Any], controller_epoch: int | None = None) -> None:
        """Replaces the settings of entities, in one commit; an entity that is left with none has no row.

        Nothing is written if that is how they are. Raises ControllerMovedException if a newer controller has claimed
        the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            check_claim(self._table, CONFIGS.name, controller_epoch)
            before = _configs(rows)
            after = {entity: configs for entity, configs in {**before, **put}.items() if configs}
            return None if after == before else [_row(entity, after[entity]) for entity in sorted(after)]

        self._table.update(cause, change)


def _configs(rows: list[Row]) -> dict[Entity, dict[str, str]]:
    return {Entity(row["entity_type"], row["entity_name"]): dict(row["configs"]) for row in rows}


def _row(entity: Entity, configs: Mapping[str, str]) -> Row:
    return {**entity._asdict(), "configs": list(configs.items())}
