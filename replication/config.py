"""All settings with their types and defaults; reads and checks those of a process or a topic. One error lists
everything that is wrong.

Storage options (credentials, endpoints) belong to a root. They are never stored in a table and never appear in an error
text or a `repr`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from lakelog.replication.errors import InvalidConfigurationException, one_line
from lakelog.replication.properties import (
    Boolean,
    Choice,
    CleanupPolicy,
    CordonedLogDirs,
    Integer,
    IntegerOrDefault,
    OptionalText,
    Setting,
    Share,
    ThrottledReplicas,
    ValueType,
    faults,
    parse_properties,
    text_of,
)

logger = logging.getLogger(__name__)

_COMPATIBILITIES = Choice(
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
)

# `dynamic`: a broker's setting that can change while the broker runs.
Scope = Literal["broker", "cluster", "topic", "dynamic"]


@dataclass(frozen=True)
class ConfigKey:
    """A key: its type, its parsed default, its scopes, and the field of `Settings` that holds it."""

    name: str
    type: ValueType
    default: Any
    scopes: tuple[Scope, ...]
    field: str


def key(default: Any, type: ValueType, *scopes: Scope, topic_name: str | None = None) -> Any:
    """A field of `Settings`, by default of scope `broker`. `topic_name`: the key's other name for a topic."""
    where = (*(scopes or ("broker",)), *(("topic",) if topic_name else ()))
    metadata = {"type": type, "scopes": where, "topic_name": topic_name}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The settings of one process, typed: `config.replica_fetch_backoff_ms`. Times are in ms unless the name says
    otherwise, sizes in bytes. Topic settings are here too, as defaults for topics without their own."""

    broker_id: int = key(-1, Integer(-1))
    broker_rack: str | None = key(None, OptionalText())
    num_partitions: int = key(1, Integer(1))
    default_replication_factor: int = key(1, Integer(1, 32767))
    min_insync_replicas: int = key(1, Integer(1), "broker", "topic")
    unclean_leader_election_enable: bool = key(False, Boolean(), "broker", "topic")
    replica_lag_time_max_ms: int = key(10000, Integer(1))
    num_replica_fetchers: int = key(1, Integer(1), "cluster")
    replica_fetch_wait_max_ms: int = key(500, Integer(0))
    replica_fetch_backoff_ms: int = key(1000, Integer(0))
    replica_fetch_max_bytes: int = key(268435456, Integer(1))
    replica_fetch_response_max_bytes: int = key(268435456, Integer(1))
    lakelog_executor_copy_bytes: int = key(134217728, Integer(1))
    broker_heartbeat_interval_ms: int = key(-1, IntegerOrDefault(1))
    broker_session_timeout_ms: int = key(-1, IntegerOrDefault(3))
    controller_session_timeout_ms: int = key(-1, IntegerOrDefault(1))
    controlled_shutdown_max_retries: int = key(3, Integer(0))
    controlled_shutdown_retry_backoff_ms: int = key(5000, Integer(1))
    controlled_shutdown_enable: bool = key(True, Boolean())
    auto_leader_rebalance_enable: bool = key(True, Boolean())
    leader_imbalance_check_interval_seconds: int = key(300, Integer(1))
    leader_imbalance_per_broker_percentage: int = key(10, Integer(0))
    delete_topic_enable: bool = key(True, Boolean())
    request_timeout_ms: int = key(30000, Integer(1))
    lakelog_max_partitions_per_topic: int = key(10000, Integer(1))
    lakelog_max_partitions_per_request: int = key(10000, Integer(1))
    offsets_retention_minutes: int = key(10080, Integer(1))
    offsets_retention_check_interval_ms: int = key(600000, Integer(1))
    lakelog_admin_requests_kept: int = key(200, Integer(1))
    lakelog_poll_interval_ms: int = key(50, Integer(1))
    log_segment_bytes: int = key(33554432, Integer(1024))
    message_max_bytes: int = key(1048588, Integer(0), "broker", "dynamic", topic_name="max.message.bytes")
    storage_fsync: bool = key(False, Boolean())
    lakelog_storage_timeout_ms: int = key(10000, Integer(1000))
    log_retention_ms: int = key(604800000, Integer(-1, 2**63 - 1), "broker", topic_name="retention.ms")
    log_retention_bytes: int = key(-1, Integer(-1, 2**63 - 1), "broker", topic_name="retention.bytes")
    log_cleanup_policy: str = key("delete", CleanupPolicy(), "broker", topic_name="cleanup.policy")
    log_retention_check_interval_ms: int = key(300000, Integer(1))
    log_cleaner_enable: bool = key(True, Boolean())
    log_cleaner_backoff_ms: int = key(2000, Integer(1))
    log_cleaner_min_files: int = key(64, Integer(2))
    log_cleaner_max_bytes: int = key(268435456, Integer(1))
    log_cleaner_io_max_bytes_per_second: int = key(2**63 - 1, Integer(1, 2**63 - 1))
    log_cleaner_min_cleanable_ratio: float = key(0.5, Share(), "broker", topic_name="min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = key(0, Integer(0, 2**63 - 1), "broker", topic_name="min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = key(
        2**63 - 1, Integer(1, 2**63 - 1), "broker", topic_name="max.compaction.lag.ms"
    )
    log_cleaner_delete_retention_ms: int = key(
        86400000, Integer(0, 2**63 - 1), "broker", topic_name="delete.retention.ms"
    )
    log_cleaner_dedupe_buffer_size: int = key(134217728, Integer(1))
    lakelog_scrub_bytes_per_second: int = key(4194304, Integer(0))
    lakelog_scrub_interval_ms: int = key(-1, Integer(-1))
    log_segment_delete_delay_ms: int = key(3600000, Integer(0))
    producer_id_expiration_ms: int = key(86400000, Integer(1))
    transactional_id_expiration_ms: int = key(604800000, Integer(1), "cluster")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(3600000, Integer(1))
    leader_replication_throttled_rate: int = key(2**63 - 1, Integer(0, 2**63 - 1), "broker", "dynamic")
    follower_replication_throttled_rate: int = key(2**63 - 1, Integer(0, 2**63 - 1), "broker", "dynamic")
    leader_replication_throttled_replicas: str = key("", ThrottledReplicas(), "topic")
    follower_replication_throttled_replicas: str = key("", ThrottledReplicas(), "topic")
    value_schema: str | None = key(None, OptionalText(), "topic")
    value_schema_type: str = key("DDL", Choice("DDL", "JSON", "AVRO"), "topic")
    value_schema_compatibility: str = key("BACKWARD", _COMPATIBILITIES, "topic")
    value_schema_validation: bool = key(False, Boolean(), "topic")
    value_schema_id: int = key(-1, Integer(-1), "topic")
    value_schema_history: str | None = key(None, OptionalText(), "topic")
    cordoned_log_dirs: str = key("", CordonedLogDirs(), "dynamic")


Owner = int | Literal["cluster"]

_STORAGE_KEY = re.compile(
    r"storage\.(?P<owner>0|[1-9][0-9]*|cluster)(?:(?<=cluster)@(?P<bucket>[A-Za-z0-9_.-]+))?\.(?P<option>[A-Za-z0-9_.]+)"
)
_STORAGE_HINT = " and storage.<broker id|cluster>.<option>"
_ENVIRONMENT_PREFIX = "LAKELOG_STORAGE"
_SESSION_MS = 6_000
_SESSION_IN_A_STORE_MS = 18_000
_HEARTBEATS = 3  # in a session, so that a late one does not end it


@dataclass(frozen=True)
class Config(Settings):
    """The settings of one process, typed, and its storage options: `Config.from_properties({"broker.rack": "eu"})`.

    `conf/server.properties` explains each key. The field `request_timeout_ms` is the key `request.timeout.ms`.
    """

    storage: Mapping[str, Setting] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Checks every value. Raises InvalidConfigurationException."""
        problems = faults(self)
        if not isinstance(self.storage, Mapping):
            problems.append(f"storage is a {_kind(self.storage)}, it must be what Config.from_properties makes of it")
        _raise_if([f"configuration: {problem}" for problem in problems])

    @classmethod
    def of(cls, config: object) -> Config:
        """The configuration that somebody has given, or the defaults for None. Raises InvalidConfigurationException."""
        if config is not None and not isinstance(config, Config):
            raise InvalidConfigurationException(
                f"config is a {_kind(config)}: give a Config, as Config.from_properties makes it of a dict, or None"
            )
        return cls() if config is None else config

    @classmethod
    def from_properties(cls, properties: str | Mapping[str, object], source_name: str = "configuration") -> Config:
        """The settings in a properties text (see `parse_properties`) or in a mapping of Kafka's keys to values.

        Raises:
            InvalidConfigurationException: lists every unknown key and every value that is not allowed, with
                `source_name` and, for a text, the line number.
        """
        given, problems = _read(properties, source_name)
        storage = {key: setting for key, setting in given.items() if _STORAGE_KEY.fullmatch(key)}
        known = {key: setting for key, setting in given.items() if key not in storage}
        config = cls(**_parse(known, KEYS, problems), storage=storage)
        problems += [
            f"{known[name].where}: {name} is no setting of a file, where no controller sees it; `lakelog configs "
            f"--entity-type brokers --alter` sets it"
            for name in sorted(known.keys() & _DYNAMIC_ONLY.keys())
            if known[name].value
        ]
        together = _contradictions(config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms)
        _raise_if(problems + [f"{source_name}: {words}" for words in together])
        return config

    def storage_options(
        self, owner: Owner, environment: Mapping[str, str] | None = None, bucket: str = ""
    ) -> dict[str, str]:  # fmt: skip
        """The storage options of one root, such as AWS_ENDPOINT_URL. Names are upper case, with `_` for a dot.

        `owner` is the broker id, or "cluster" for the cluster root. Options come from the keys
        `storage.<owner>.<option>`. Variables `LAKELOG_STORAGE_<OWNER>_<OPTION>` of `environment` (by default that of
        the process) override them. Of several cluster roots those in a `bucket` may have options of their own, which
        count before those of all: `storage.cluster@<bucket>.<option>`, where an option has no dot, and
        `LAKELOG_STORAGE_CLUSTER__<BUCKET>__<OPTION>`, with `_` for each sign of the bucket's name that is no letter
        and no digit.
        """
        if not (owner == "cluster" if isinstance(owner, str) else type(owner) is int):
            raise InvalidConfigurationException(f"owner is {owner!r:.80}: give a broker id, or cluster")
        if not isinstance(bucket, str):
            raise InvalidConfigurationException(f"bucket is {bucket!r:.80}: give its name, a text")
        environment = os.environ if environment is None else environment
        if not isinstance(environment, Mapping) or not all(isinstance(name, str) for name in environment):
            raise InvalidConfigurationException(f"environment is a {_kind(environment)}: give a dict of texts, or None")
        options, own = dict[str, str](), dict[str, str]()
        for key, setting in self.storage.items():
            match = _STORAGE_KEY.fullmatch(key)
            if match and match["owner"] == str(owner) and match["bucket"] in (None, bucket):
                found = own if match["bucket"] else options
                found[match["option"].upper().replace(".", "_")] = setting.value
        prefix = f"{_ENVIRONMENT_PREFIX}_{owner}_".upper()
        prefix_of_own = f"{prefix}_{re.sub('[^A-Za-z0-9]', '_', bucket)}__".upper()
        for name in environment:
            if bucket and name.startswith(prefix_of_own):
                own[name.removeprefix(prefix_of_own).upper()] = environment[name]
            elif name.startswith(prefix) and not name.startswith(f"{prefix}_"):
                options[name.removeprefix(prefix).upper()] = environment[name]
        return options | own

    def topic(self, configs: Mapping[str, object]) -> TopicConfig:
        """The settings of a topic. `configs` are its own, from the topics table; the others are those of this process.
        Names that this version does not know are ignored, with one warning each, and invalid values are left out."""
        return self.topic_as_far_as_known(configs)[0]

    def topic_as_far_as_known(self, configs: Mapping[str, object]) -> tuple[TopicConfig, str | None]:
        """As `topic`, with an error text on the invalid values; None if all are valid.

        A newer version, or a person, may have written the row. Its errors must not affect other topics. A value that is
        not understood must not lose records: then nothing deletes or compacts them, and no election is unclean.
        """
        values, wrong = _stored_values(configs, TOPIC_KEYS, "topic")
        if _UNCLEAN in configs and _field(_UNCLEAN) not in values:
            values[_field(_UNCLEAN)] = False
        if any(name in configs and _field(name) not in values for name in _RETENTION):
            values[_field(_CLEANUP_POLICY)] = "none"
        defaults = {_field(name): getattr(self, key.field) for name, key in TOPIC_KEYS.items()}
        return TopicConfig(**defaults | values), "; ".join(wrong) or None

    def dynamic(self, configs: Mapping[str, object]) -> Config:
        """These settings, overridden by a broker's dynamic settings from the configs table. Names that this version
        does not know, and invalid values, are left out, and logged once."""
        if not configs:
            return self
        values, wrong = _stored_values(configs, DYNAMIC_KEYS, "broker")
        for problem in wrong:
            _log_once(logging.ERROR, f"a dynamic setting is left out: {problem}")
        return replace(self, **values)

    def cluster_configs(self) -> dict[str, str]:
        """The settings that the whole cluster shares, by key. `lakelog format` writes them to the cluster table."""
        return {name: text_of(getattr(self, _field(name))) for name in CLUSTER_KEYS}

    def in_cluster(self, configs: Mapping[str, object]) -> Config:
        """These settings, overridden by the shared settings from the cluster table. Names that this version does not
        know are ignored, with one warning each. Raises InvalidConfigurationException for values that are not allowed.
        """
        values, wrong = _stored_values(configs, CLUSTER_KEYS, "cluster")
        _raise_if(wrong)
        return replace(self, **values)

    def with_sessions(self, is_local: bool) -> Config:
        """Fills in the session time-outs and the heartbeat interval, in ms, that are not set. `is_local`: the cluster
        root is on a disk. Raises InvalidConfigurationException if the interval is not below the session time-out.

        A store takes longer for a commit, at times by seconds, and each heartbeat is paid for. KIP-537 raised Kafka's
        session time-out from 6 s to 18 s for clouds.
        """
        usual, where = (_SESSION_MS, "on a disk") if is_local else (_SESSION_IN_A_STORE_MS, "in an object store")
        session, beat = self.broker_session_timeout_ms, self.broker_heartbeat_interval_ms
        controller = self.controller_session_timeout_ms
        if session < 0:
            session = usual
            _raise_if(_contradictions(beat, session, f", the default if the cluster root is {where}"))
        return replace(
            self,
            broker_session_timeout_ms=session,
            # Others may have the usual time-out, though this process has a longer one.
            broker_heartbeat_interval_ms=min(session, usual) // _HEARTBEATS if beat < 0 else beat,
            controller_session_timeout_ms=usual if controller < 0 else controller,
        )


@dataclass(frozen=True)
class TopicConfig:
    """The settings of one topic, typed."""

    min_insync_replicas: int
    unclean_leader_election_enable: bool
    max_message_bytes: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    leader_replication_throttled_replicas: str
    follower_replication_throttled_replicas: str
    value_schema: str | None
    value_schema_type: str
    value_schema_compatibility: str
    value_schema_validation: bool
    value_schema_id: int
    value_schema_history: str | None

    @property
    def deletes(self) -> bool:
        """Whether retention, and requests to delete records, may delete some."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether the log cleaner removes records of which a later one has the same key."""
        return "compact" in self.cleanup_policy


def _keys(*scopes: Scope) -> dict[str, ConfigKey]:
    """The keys that may be set in any of these scopes, by name, in the order of `Config`."""
    found = {}
    for member in fields(Config):
        told = dict(member.metadata)
        topic_name = told.pop("topic_name", None)
        if told and set(scopes) & set(told["scopes"]):
            name = topic_name if topic_name and "topic" in scopes else member.name.replace("_", ".")
            found[name] = ConfigKey(name, default=member.default, field=member.name, **told)
    return found


KEYS = _keys("broker", "cluster", "dynamic")
CLUSTER_KEYS = _keys("cluster")
TOPIC_KEYS = _keys("topic")
DYNAMIC_KEYS = _keys("dynamic")
_DYNAMIC_ONLY = {name: key for name, key in DYNAMIC_KEYS.items() if key.scopes == ("dynamic",)}
_CLEANUP_POLICY, _UNCLEAN = "cleanup.policy", "unclean.leader.election.enable"
_MAX_LAG, _NEVER = "max.compaction.lag.ms", 2**63 - 1
_RETENTION = (  # settings of topics by which records are deleted
    _CLEANUP_POLICY, "retention.ms", "retention.bytes", "min.compaction.lag.ms", _MAX_LAG,
    "delete.retention.ms", "min.cleanable.dirty.ratio",
)  # fmt: skip


def read_properties(path: str | os.PathLike[str]) -> str:
    """The text of a properties file in UTF-8, without a byte order mark. Raises InvalidConfigurationException if it
    cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidConfigurationException(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigurationException(f"{os.fspath(path)} cannot be read: it is not UTF-8") from error


def topic_configs(
    configs: Mapping[str, object], source_name: str = "topic", kept: Mapping[str, str] = {}
) -> dict[str, str]:  # fmt: skip
    """Checks a topic's settings; returns them as its row stores them. `kept`: those that it has and keeps, which must
    go together with them. Raises InvalidConfigurationException."""
    texts = _texts(configs, TOPIC_KEYS, source_name)
    together = {name: value for name, value in kept.items() if value.isdecimal()} | texts
    least, most = (
        int(together.get(name, default)) for name, default in (("min.compaction.lag.ms", 0), (_MAX_LAG, _NEVER))
    )
    wrong = f"{source_name}: min.compaction.lag.ms is {least}, it must be at most {_MAX_LAG}, which is {most}"
    _raise_if([wrong] if least > most else [])
    return texts


def broker_configs(configs: Mapping[str, object], source_name: str = "broker") -> dict[str, str]:
    """Checks a broker's dynamic settings, as `topic_configs` does for a topic."""
    return _texts(configs, DYNAMIC_KEYS, source_name)


def _texts(configs: Mapping[str, object], keys: Mapping[str, ConfigKey], source_name: str) -> dict[str, str]:
    values = _scoped_values(configs, keys, source_name)
    return {name: text_of(values[_field(name)]) for name in keys if _field(name) in values}


def _field(name: str) -> str:
    return name.replace(".", "_")


def _scoped_values(configs: Mapping[str, object], keys: Mapping[str, ConfigKey], source_name: str) -> dict[str, Any]:
    given, problems = _read(configs, source_name)
    values = _parse(given, keys, problems)
    _raise_if(problems)
    return values


def _stored_values(
    configs: Mapping[str, object], keys: Mapping[str, ConfigKey], source_name: str
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """The valid values in a row of a table, by field name, and what is wrong with the others.

    A newer version may have written the row. It raises the format of the cluster if older ones must not go on with
    what it has added. So a name that is no key here is ignored, with one warning. Kafka: `AbstractConfig.logUnused`.
    Raises InvalidConfigurationException if `configs` is no mapping.
    """
    given, problems = _read(configs, source_name)
    if not isinstance(configs, Mapping):
        _raise_if(problems)
    for name in given.keys() - keys.keys():
        _log_once(logging.WARNING, f"{source_name} setting {name} is ignored: this version of Lakelog does not know it")
    known = {name: setting for name, setting in given.items() if name in keys}
    values = _parse(known, keys, problems)
    return values, problems


@lru_cache(maxsize=1000)
def _log_once(level: int, sentence: str) -> None:
    """Logs what is found whenever the settings are read, which is many times a second."""
    logger.log(level, "%s", one_line(sentence))


def _read(properties: str | Mapping[str, object], source_name: str) -> tuple[dict[str, Setting], list[str]]:
    if isinstance(properties, str):
        return parse_properties(properties, source_name)
    if not isinstance(properties, Mapping):
        return {}, [f"{source_name}: the settings are a {_kind(properties)}, they must be a dict or a text"]
    given, problems = {}, []
    for key, value in properties.items():
        if isinstance(key, str) and (value is None or isinstance(value, str | bool | int | float)):
            given[key] = Setting(text_of(value), source_name)
        else:
            problems.append(f"{source_name}: {key!r:.80} is a {_kind(value)}, it must be a key with a text or a number")
    return given, problems


def _kind(value: object) -> str:
    """The type of a value, for an error text. The value itself may hold a secret."""
    return type(value).__name__


def _parse(given: Mapping[str, Setting], keys: Mapping[str, ConfigKey], problems: list[str]) -> dict[str, Any]:
    """The valid values by field name. Errors are added to `problems`."""
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
    """Names the closest key, or all keys. It does not show the value: a mistyped key may hold a secret."""
    close = get_close_matches(name, keys, n=1)
    if close:
        return f", did you mean {close[0]}?"
    return f"; known are {', '.join(keys)}{_STORAGE_HINT if keys is KEYS else ''}"


def _contradictions(heartbeat: int, session: int, why: str = "") -> list[str]:
    """The faults of values that are allowed one by one, but not together. `why`: the reason for this session
    time-out."""
    if session < 0 or heartbeat < session:
        return []
    return [
        f"broker.heartbeat.interval.ms is {heartbeat}, it must be below broker.session.timeout.ms ({session}{why}): "
        "else a living broker looks dead"
    ]


def _raise_if(problems: list[str]) -> None:
    if problems:
        raise InvalidConfigurationException("; ".join(problems))
