"""Entities that have settings, and the settings of a cluster. Kafka: `ConfigResource`, `ClientQuotaEntity`. [TH-02]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

BROKERS, DEFAULT = "brokers", "<default>"


class Entity(NamedTuple):
    """An entity with settings: its type and name. `<default>` is the name for all entities without settings of their
    own."""

    entity_type: str
    entity_name: str


Configs: TypeAlias = Mapping[Entity, Mapping[str, str]]
