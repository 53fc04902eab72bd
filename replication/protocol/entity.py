"""Entities that have settings, and all settings of a cluster. Kafka: `ConfigResource`, `ClientQuotaEntity`. [TH-02]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

BROKERS, DEFAULT = "brokers", "<default>"


class Entity(NamedTuple):
    """What has settings: its type and its name, `<default>` for all that have none of their own."""

    entity_type: str
    entity_name: str


Configs: TypeAlias = Mapping[Entity, Mapping[str, str]]
