"""Every setting of a topic or a broker with its value, and where that comes from. Kafka: `ConfigEntry.ConfigSource`.

A value of the topic or broker itself goes before one of all brokers, that before one of a properties file, and that
before the built-in default. The settings that a whole cluster shares lie in its root.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lakelog.replication.config import CLUSTER_KEYS, KEYS, TOPIC_KEYS, Config
from lakelog.replication.properties import Setting, text_of
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.settings import ConfigKey

TOPIC, BROKER, ALL_BROKERS = "DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"
FILE, BUILT_IN = "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"  # Kafka's names up to here
REGISTRATION, CLUSTER = "BROKER_REGISTRATION", "CLUSTER_CONFIG"


class EffectiveConfig(NamedTuple):
    """A setting as it holds."""

    key: str
    value: str
    source: str


def topic_settings(
    configs: Mapping[str, str], all_brokers: Mapping[str, str], given: Mapping[str, Setting]
) -> Iterator[EffectiveConfig]:  # fmt: skip
    """The settings of a topic: its own, else those that a broker gives it. `all_brokers`: the dynamic ones of all
    brokers."""
    for name, key in TOPIC_KEYS.items():
        broker_name = key.field.replace("_", ".")
        if name in configs:
            yield EffectiveConfig(name, configs[name], TOPIC)
        elif broker_name in all_brokers:
            yield EffectiveConfig(name, all_brokers[broker_name], ALL_BROKERS)
        else:
            yield EffectiveConfig(name, *_static(key, given))


def broker_settings(
    registration: BrokerRegistration | None, dynamic: Mapping[str, Mapping[str, str]], given: Mapping[str, Setting],
    config: Config,
) -> Iterator[EffectiveConfig]:  # fmt: skip
    """The settings of a broker; `dynamic`: those of each source. Without a registration, those of a new broker."""
    told = {} if registration is None else {"broker.id": registration.broker_id, "broker.rack": registration.rack}
    for name, key in KEYS.items():
        source = next((source for source, configs in dynamic.items() if name in configs), None)
        if source:
            yield EffectiveConfig(name, dynamic[source][name], source)
        elif name in told:
            yield EffectiveConfig(name, text_of(told[name]), REGISTRATION)
        else:
            source = CLUSTER if name in CLUSTER_KEYS else _static(key, given)[1]
            yield EffectiveConfig(name, text_of(getattr(config, key.field)), source)


def _static(key: ConfigKey, given: Mapping[str, Setting]) -> tuple[str, str]:
    """A topic's key may be spelled otherwise in a properties file, which has the name of the field."""
    name = key.field.replace("_", ".")
    return (given[name].value, FILE) if name in given else (text_of(key.default), BUILT_IN)
