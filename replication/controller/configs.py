"""Changes settings of brokers while they run.

Kafka: `AdminManager.incrementalAlterConfigs`, `DynamicBrokerConfig`. KIP-226. [TH-02]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakelog.replication.config import DYNAMIC_KEYS, KEYS, broker_configs
from lakelog.replication.controller.decision import Decision
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InvalidConfigurationException,
    InvalidRequestException,
)
from lakelog.replication.protocol.entity import BROKERS, DEFAULT, Entity

_DIGITS = 10  # the most in a broker id


def alter_broker_configs(decision: Decision, broker: str, put: Mapping[str, object], delete: Sequence[str]) -> str:
    """Sets and removes settings of a broker, or the defaults of all brokers. Returns the settings as text. Brokers read
    them by themselves.

    Raises InvalidRequestException if `broker` is no id or a setting cannot change while a broker runs,
    BrokerNotAvailableException for an unknown broker, InvalidConfigurationException for unknown keys or invalid values.
    """
    entity = _existing(decision, broker)
    name = f"broker {broker}"
    fixed = sorted((put.keys() | set(delete)) & KEYS.keys() - DYNAMIC_KEYS.keys())
    if fixed:
        raise InvalidRequestException(
            f"{name}: {fixed[0]} cannot change while a broker runs; these can: {', '.join(DYNAMIC_KEYS)}"
        )
    unknown = sorted(set(delete) - DYNAMIC_KEYS.keys())
    if unknown:
        raise InvalidConfigurationException(f"{name}: unknown key {unknown[0]}; {', '.join(DYNAMIC_KEYS)} exist")
    kept = {key: value for key, value in decision.configs_of(entity).items() if key not in delete}
    decision.configs[entity] = {**kept, **broker_configs(put, name)}
    return ", ".join(f"{key}={value}" for key, value in decision.configs[entity].items()) or "no settings"


def _existing(decision: Decision, broker: str) -> Entity:
    """The broker as an entity. It may be dead if it has registered, or has replicas or settings: it reads the new
    settings when it returns."""
    if broker == DEFAULT:
        return Entity(BROKERS, DEFAULT)
    if not (broker.isascii() and broker.isdigit() and len(broker) <= _DIGITS):
        raise InvalidRequestException(f"{broker[:80]!r} is no broker: it must be a broker id or {DEFAULT}")
    hosts = {broker_id for r in decision.context.partitions.values() for broker_id in r.replicas}
    known = decision.context.known_brokers | hosts
    entity = Entity(BROKERS, str(int(broker)))
    if int(broker) not in known and entity not in decision.context.configs:
        there = ", ".join(map(str, sorted(known))) or "none"
        raise BrokerNotAvailableException(f"no broker {broker}; there are: {there}")
    return entity
