"""`configs`: the settings of brokers that may change while they run. [TH-02]"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lakelog.replication.config import broker_configs
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.topic import BROKER_TYPE, DEFAULT_NAME, Configs, Entity
from lakelog.replication.storage.tables.state_table import ControlledTable, Row
from lakelog.schemas import CONFIGS

_MESSAGE_MAX_BYTES = "message.max.bytes"


class ConfigTable(ControlledTable[Configs]):
    """The configs table of a cluster."""

    TABLE = CONFIGS
    _limits: tuple[Configs, Mapping[str, int]] = {}, {}  # the settings that were last read, and those of them

    @property
    def configs(self) -> Configs:
        """The settings of every entity that has any, as last read."""
        return self._value

    def _decode(self, rows: list[Row]) -> Configs:
        return {Entity(row["entity_type"], row["entity_name"]): dict(row["configs"]) for row in rows}

    @property
    def message_max_bytes(self) -> Mapping[str, int]:
        """The `message.max.bytes` of each broker that has one, as last read, by its name in the table. One that is not
        valid is left out: a person may have written the row."""
        configs = self.configs
        if self._limits[0] is not configs:
            found = dict[str, int]()
            for (kind, name), own in configs.items():
                if kind == BROKER_TYPE and _MESSAGE_MAX_BYTES in own:
                    with suppress(InvalidConfigurationException):
                        text = broker_configs({_MESSAGE_MAX_BYTES: own[_MESSAGE_MAX_BYTES]})[_MESSAGE_MAX_BYTES]
                        found[name] = int(text)
            self._limits = configs, found
        return self._limits[1]

    def of_broker(self, broker_id: int) -> dict[str, str]:
        """The settings of a broker, as last read: its own over those of all brokers. Kafka: `DynamicBrokerConfig`."""
        found = self.configs
        return {
            **found.get(Entity(BROKER_TYPE, DEFAULT_NAME), {}),
            **found.get(Entity(BROKER_TYPE, str(broker_id)), {}),
        }

    def change(self, put: Configs, cause: Mapping[str, Any], controller_epoch: int | None = None) -> None:
        """Replaces the settings of entities, in one commit; an entity that is left with none has no row.

        Nothing is written if that is how they are. Raises ControllerMovedException if a newer controller has claimed
        the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            before = self._decode(rows)
            after = {entity: configs for entity, configs in {**before, **put}.items() if configs}
            return None if after == before else [_row(entity, after[entity]) for entity in sorted(after)]

        self.update(cause, change)


def _row(entity: Entity, configs: Mapping[str, str]) -> Row:
    return {**entity._asdict(), "configs": list(configs.items())}
