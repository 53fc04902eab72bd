"""The settings, under Kafka's keys: what each may be, what it is if it is not told, and what it is for.

The fields of `Config` are the table: `broker_id` is the key `broker.id`. Everything is checked when it is read, and
all that is wrong is reported at once. Storage options (credentials, endpoints) belong to a root, are never rows of a
table, and never appear in a text or in a `repr`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from replication.errors import InvalidConfigurationException
from replication.properties import Boolean, Integer, OptionalText, Setting, ValueType, parse_properties, text_of

Scope = Literal["broker", "cluster", "topic"]
Owner = int | Literal["cluster"]

_STORAGE_KEY = re.compile(r"storage\.(?P<owner>0|[1-9][0-9]*|cluster)\.(?P<option>[A-Za-z0-9_.]+)")
_STORAGE_HINT = " and storage.<broker id|cluster>.<option>"
_ENVIRONMENT_PREFIX = "LAKELOG_STORAGE"


@dataclass(frozen=True)
class ConfigKey:
    """A key: its type, its default (parsed), what it is for, and where it may be set."""

    name: str
    type: ValueType
    default: Any
    doc: str
    scopes: tuple[Scope, ...]

    @property
    def default_text(self) -> str:
        """The default as it stands in a properties file."""
        return text_of(self.default)


def _key(default: Any, type: ValueType, doc: str, *scopes: Scope) -> Any:
    return field(default=default, metadata={"type": type, "doc": doc, "scopes": scopes or ("broker",)})


@dataclass(frozen=True)
class Config:
    """The settings of one process, typed: `config.replica_fetch_backoff_ms`. Times are in ms, sizes in bytes."""

    broker_id: int = _key(-1, Integer(-1), "Id of this broker; -1: told on the command line.")
    broker_rack: str | None = _key(None, OptionalText(), "Rack, zone or region; replicas are spread over them.")
    num_partitions: int = _key(1, Integer(1), "Partitions of a topic that is made without a number.")
    default_replication_factor: int = _key(
        1, Integer(1, 32767), "Replicas of a partition of a topic that is made without a number."
    )
    min_insync_replicas: int = _key(
        1, Integer(1), "In-sync replicas without which acks=all is refused and the HW stands.", "broker", "topic"
    )
    unclean_leader_election_enable: bool = _key(
        False,
        Boolean(),
        "A replica out of sync may lead if none else lives; records are lost.",
        "broker",
        "topic",
    )
    replica_lag_time_max_ms: int = _key(
        10000, Integer(1), "A follower that was last caught up longer ago than this leaves the ISR."
    )
    num_replica_fetchers: int = _key(
        1, Integer(1), "Fetchers for one source broker; segments are cut by it, so it is one for all.", "cluster"
    )
    replica_fetch_wait_max_ms: int = _key(
        500, Integer(0), "How long a new HW alone waits for records to go with; it is a micro-batch of its own."
    )
    replica_fetch_backoff_ms: int = _key(1000, Integer(0), "How long a partition in error waits before it is fetched.")
    replica_fetch_max_bytes: int = _key(
        268435456, Integer(1), "Bytes of one partition in a micro-batch; its first batch is taken whatever its size."
    )
    replica_fetch_response_max_bytes: int = _key(
        268435456, Integer(1), "Bytes of a micro-batch; far above Kafka's 10 MiB, as files are copied and not held."
    )
    lakelog_executor_copy_bytes: int = _key(
        134217728, Integer(1), "From how many bytes on a micro-batch is copied by executors, not by the driver."
    )
    broker_heartbeat_interval_ms: int = _key(2000, Integer(1), "How often a broker shows that it lives.")
    broker_session_timeout_ms: int = _key(6000, Integer(1), "A broker whose heartbeat stands still this long is dead.")
    controller_session_timeout_ms: int = _key(
        6000, Integer(1), "A controller whose lease stands still this long is replaced by one that stands by."
    )
    controlled_shutdown_max_retries: int = _key(
        3, Integer(0), "How often a broker that stops looks whether its leaderships have been taken over."
    )
    controlled_shutdown_retry_backoff_ms: int = _key(5000, Integer(1), "How long it waits each time.")
    controlled_shutdown_enable: bool = _key(True, Boolean(), "A broker that stops gives away what it leads first.")
    auto_leader_rebalance_enable: bool = _key(True, Boolean(), "Preferred leaders lead again by and by.")
    leader_imbalance_check_interval_seconds: int = _key(300, Integer(1), "How often the balance is looked at.")
    leader_imbalance_per_broker_percentage: int = _key(
        10, Integer(0), "How much of what a broker is preferred for may be led elsewhere before it is given back."
    )
    delete_topic_enable: bool = _key(True, Boolean(), "Topics may be deleted.")
    request_timeout_ms: int = _key(30000, Integer(1), "How long an admin client waits for the controller.")
    lakelog_poll_interval_ms: int = _key(
        50, Integer(1), "How often tables are polled; each poll of an object store is a request that is paid for."
    )
    log_segment_bytes: int = _key(33554432, Integer(1024), "Largest data file that a producer writes.")
    storage_fsync: bool = _key(False, Boolean(), "Sync files on local disks; replication is the guard, as in Kafka.")
    storage: Mapping[str, Setting] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def from_properties(cls, properties: str | Mapping[str, object], source_name: str = "configuration") -> Config:
        """The settings in a text in the format of Java's properties (see `parse_properties`), or in a mapping.

        Raises:
            InvalidConfigurationException: lists every unknown key and every value that is not allowed, each with
                `source_name` and, in a text, its line.
        """
        given, problems = _read(properties, source_name)
        storage = {key: setting for key, setting in given.items() if _STORAGE_KEY.fullmatch(key)}
        known = {key: setting for key, setting in given.items() if key not in storage}
        config = cls(**_parse(known, KEYS, problems), storage=storage)
        _raise_if(problems + _contradictions(config), source_name)
        return config

    def storage_options(self, owner: Owner, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """Options of the storage of one root, such as AWS_ENDPOINT_URL: upper case, dots as underscores.

        `owner` is the broker id, or "cluster" for the cluster root. They come from the keys `storage.<owner>.<option>`;
        `LAKELOG_STORAGE_<OWNER>_<OPTION>` in the environment (None: that of the process) goes before them.
        """
        environment = os.environ if environment is None else environment
        options = {}
        for key, setting in self.storage.items():
            match = _STORAGE_KEY.fullmatch(key)
            if match and match["owner"] == str(owner):
                options[match["option"].upper().replace(".", "_")] = setting.value
        prefix = f"{_ENVIRONMENT_PREFIX}_{owner}_".upper()
        for name in environment:
            if name.startswith(prefix):
                options[name.removeprefix(prefix).upper()] = environment[name]
        return options

    def topic(self, configs: Mapping[str, object]) -> TopicConfig:
        """The settings of a topic: its own, as the topics table has them, over those of this broker."""
        defaults = {_field(name): getattr(self, _field(name)) for name in TOPIC_KEYS}
        return TopicConfig(**defaults | _scoped_values(configs, TOPIC_KEYS, "topic"))

    def cluster_configs(self) -> dict[str, str]:
        """The settings that the whole cluster shares, by key: what `lakelog format` writes into the cluster table."""
        return {name: text_of(getattr(self, _field(name))) for name in CLUSTER_KEYS}

    def in_cluster(self, configs: Mapping[str, object]) -> Config:
        """These settings in a cluster: those that it shares, as the cluster table has them, replace one's own."""
        return replace(self, **_scoped_values(configs, CLUSTER_KEYS, "cluster"))


@dataclass(frozen=True)
class TopicConfig:
    """The settings of one topic, typed."""

    min_insync_replicas: int
    unclean_leader_election_enable: bool


def _keys(*scopes: Scope) -> dict[str, ConfigKey]:
    """The keys that may be set in one of the scopes, by name, in the order of `Config`."""
    settings = [member for member in fields(Config) if member.metadata]
    keys = [ConfigKey(member.name.replace("_", "."), default=member.default, **member.metadata) for member in settings]
    return {key.name: key for key in keys if set(scopes) & set(key.scopes)}


KEYS = _keys("broker", "cluster")
CLUSTER_KEYS = _keys("cluster")
TOPIC_KEYS = _keys("topic")


def load_properties(path: str | os.PathLike[str]) -> Config:
    """The settings in a properties file, UTF-8. Raises InvalidConfigurationException, also if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigurationException(f"{os.fspath(path)} cannot be read: {error}") from error
    return Config.from_properties(text, os.fspath(path))


def topic_configs(configs: Mapping[str, object], source_name: str = "topic") -> dict[str, str]:
    """The settings of a topic as its row keeps them, by key; raises InvalidConfigurationException with all errors."""
    values = _scoped_values(configs, TOPIC_KEYS, source_name)
    return {name: text_of(values[_field(name)]) for name in TOPIC_KEYS if _field(name) in values}


def _field(name: str) -> str:
    return name.replace(".", "_")


def _scoped_values(configs: Mapping[str, object], keys: Mapping[str, ConfigKey], source_name: str) -> dict[str, Any]:
    given, problems = _read(configs, source_name)
    values = _parse(given, keys, problems)
    _raise_if(problems, source_name)
    return values


def _read(properties: str | Mapping[str, object], source_name: str) -> tuple[dict[str, Setting], list[str]]:
    if isinstance(properties, str):
        return parse_properties(properties, source_name)
    return {key: Setting(text_of(value), source_name) for key, value in properties.items()}, []


def _parse(given: Mapping[str, Setting], keys: Mapping[str, ConfigKey], problems: list[str]) -> dict[str, Any]:
    """The values by field name; what is wrong is added to `problems`."""
    values = {}
    for name, setting in given.items():
        if name not in keys:
            problems.append(f"{setting.where}: unknown key {name}{_suggestion(name, keys)}")
            continue
        try:
            values[_field(name)] = keys[name].type.parse(setting.value)
        except (ValueError, KeyError):
            problems.append(f"{setting.where}: {name} is {setting.value!r}, it must be {keys[name].type}")
    return values


def _suggestion(name: str, keys: Mapping[str, ConfigKey]) -> str:
    """What may have been meant. The value is not shown: it may be a secret under a key with a typing error."""
    close = get_close_matches(name, keys, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return f"; known are {', '.join(keys)}{_STORAGE_HINT if keys is KEYS else ''}"


def _contradictions(config: Config) -> list[str]:
    """Values that are allowed each, and not together."""
    heartbeat, session = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
    problems = []
    if heartbeat >= session:
        problems.append(
            f"broker.heartbeat.interval.ms is {heartbeat}, it must be below broker.session.timeout.ms ({session}): "
            "else a living broker looks dead"
        )
    return problems


def _raise_if(problems: list[str], source_name: str) -> None:
    if problems:
        raise InvalidConfigurationException(f"{source_name} is not valid:\n" + "\n".join(f"  {p}" for p in problems))
