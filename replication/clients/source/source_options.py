"""The options of `format("lakelog")` when reading. Names and meanings are those of Spark's Kafka source.

Spark: `KafkaSourceProvider`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakelog.replication.clients.source.offset_spec import OffsetSpec, check_batch, partitions_of, spec_of
from lakelog.replication.clients.spark_options import flag, known_options, positive
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.record_batch import TopicPartition

STRATEGIES = ("subscribe", "subscribePattern", "assign")
# Each option with its default and its meaning. The documents are made from this.
OPTIONS: Mapping[str, tuple[str, str]] = {
    "cluster": (
        "",
        "URI of the cluster root, or all, separated by commas; `kafka.bootstrap.servers` is another name",
    ),
    "subscribe": ("", "topics to read, separated by commas"),
    "subscribePattern": ("", "regular expression of Python; all topics whose whole name matches are read"),
    "assign": ("", 'partitions to read, such as {"orders": [0, 1]}'),
    "startingOffsets": (
        "earliest (batch), latest (stream)",
        "earliest, latest, group, or an offset for each partition",
    ),
    "endingOffsets": ("latest", "latest, or an offset for each partition (excluded); batch only"),
    "startingTimestamp": ("", "ms since 1970: each partition starts at the first record from then on"),
    "endingTimestamp": ("", "ms since 1970: each partition ends before the first record from then on; batch only"),
    "startingOffsetsByTimestamp": ("", "the same with a timestamp for each partition"),
    "endingOffsetsByTimestamp": ("", "the same with a timestamp for each partition; batch only"),
    "startingOffsetsByTimestampStrategy": ("error", "without a record that late: error, or latest"),
    "failOnDataLoss": (
        "true",
        "whether deleted records, or a topic made again, end a query; stream only",
    ),
    "maxOffsetsPerTrigger": ("", "most records of a micro-batch, shared out in proportion; stream only"),
    "minOffsetsPerTrigger": ("", "fewest records of a micro-batch; stream only"),
    "maxTriggerDelay": ("15m", "how long to wait for minOffsetsPerTrigger; stream only"),
    "minPartitions": ("", "fewest tasks of a read, if there are as many records"),
    "maxRecordsPerPartition": ("", "most records of a task"),
    "includeHeaders": ("false", "whether there is a column headers"),
    "includeLeaderEpoch": ("false", "whether there is a column leader_epoch"),
    "typedValues": ("false", "whether the column value has the fields of the topic's value.schema, beside value_error"),
    "mode": ("PERMISSIVE", "a value that does not fit: PERMISSIVE gives null and says why, FAILFAST ends the query"),
    "client.rack": ("", "rack of the reader: in-sync replicas there are read first; also `kafka.client.rack`"),
    "kafka.group.id": ("", "consumer group that a query commits its offsets to"),
    "groupIdPrefix": ("", "taken for compatibility, without effect: a read needs no generated group"),
}
_ALIASES = {"kafka.bootstrap.servers": "cluster", "kafka.client.rack": "client.rack"}
# Options of the Kafka source that tune its Kafka consumers.
_WITHOUT_EFFECT = ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PERMISSIVE, _FAILFAST = "PERMISSIVE", "FAILFAST"  # Spark: ParseMode
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options. `max_trigger_delay_ms` is in ms; a number that is not given is None."""

    cluster: str
    config: Config
    topics: tuple[str, ...]
    pattern: str | None
    assigned: frozenset[TopicPartition]
    batch_starting: OffsetSpec
    stream_starting: OffsetSpec
    ending: OffsetSpec
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    include_leader_epoch: bool
    typed_values: bool
    fails_fast: bool
    rack: str | None
    group: str | None
    given: frozenset[str]

    def check_batch(self) -> None:
        """Raises InvalidConfigurationException for options that a batch read does not have."""
        for name in _STREAM_ONLY:
            if name in self.given:
                raise InvalidConfigurationException(f"option {name} is for streams: a batch read has no micro-batches")
        check_batch(self.batch_starting, self.ending)

    def check_stream(self) -> None:
        """Raises InvalidConfigurationException for options that a stream does not have."""
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in self.given:
                raise InvalidConfigurationException(f"option {name} is for batch reads; a stream has no end")


def parse_options(given: Mapping[str, str], warn: bool = False) -> SourceOptions:
    """The options of a read. `given`: names in any case. With `warn`, one warning names those without effect.

    Raises InvalidConfigurationException, which names the option and what is allowed.
    """
    options, storage = known_options(given, OPTIONS, _ALIASES, _WITHOUT_EFFECT, warn)
    _check_one_strategy(options)
    topics = tuple(dict.fromkeys(t.strip() for t in options.get("subscribe", "").split(",") if t.strip()))
    if "subscribe" in options and not topics:
        raise InvalidConfigurationException("option subscribe names no topic; allowed: names, separated by commas")
    low, high = (positive(options, f"{side}OffsetsPerTrigger") for side in ("min", "max"))
    if low is not None and high is not None and low > high:
        raise InvalidConfigurationException(
            f"option minOffsetsPerTrigger is {low}; allowed: at most maxOffsetsPerTrigger, {high}"
        )
    batch_starting, stream_starting = (spec_of("starting", options, default) for default in ("earliest", "latest"))
    group = options.get("kafka.group.id")
    if stream_starting.is_group and not group:
        raise InvalidConfigurationException("option startingOffsets is group; it needs kafka.group.id")
    return SourceOptions(
        cluster=options["cluster"],
        config=Config.from_properties(storage, "options"),
        topics=topics,
        pattern=_pattern(options.get("subscribePattern")),
        assigned=partitions_of("assign", options["assign"]) if "assign" in options else frozenset(),
        batch_starting=batch_starting,
        stream_starting=stream_starting,
        ending=spec_of("ending", options, "latest"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        max_offsets=high,
        min_offsets=low,
        max_trigger_delay_ms=_duration(options.get("maxTriggerDelay", "15m")),
        min_partitions=positive(options, "minPartitions"),
        max_records_per_partition=positive(options, "maxRecordsPerPartition"),
        include_headers=flag(options, "includeHeaders", False),
        include_leader_epoch=flag(options, "includeLeaderEpoch", False),
        typed_values=flag(options, "typedValues", False),
        fails_fast=_fails_fast(options),
        rack=options.get("client.rack"),
        group=group,
        given=frozenset(options),
    )


def _check_one_strategy(options: Mapping[str, str]) -> None:
    found = [name for name in STRATEGIES if name in options]
    if len(found) != 1:
        raise InvalidConfigurationException(
            f"options {', '.join(found)} exclude one another; give one of them"
            if found
            else f"nothing says what to read; give one of the options {', '.join(STRATEGIES)}"
        )


def _pattern(given: str | None) -> str | None:
    if given is None:
        return None
    try:
        found = re.compile(given.strip()).pattern
    except re.error as error:
        raise InvalidConfigurationException(
            f"option subscribePattern is {given!r}, no regular expression: {error}"
        ) from error
    if not found:
        raise InvalidConfigurationException("option subscribePattern is empty; allowed: a regular expression")
    return found


def _fails_fast(options: Mapping[str, str]) -> bool:
    given = options.get("mode", _PERMISSIVE).upper()
    if given not in (_PERMISSIVE, _FAILFAST):
        raise InvalidConfigurationException(f"option mode is {options['mode']!r}; allowed: {_PERMISSIVE}, {_FAILFAST}")
    if "mode" in options and not flag(options, "typedValues", False):
        raise InvalidConfigurationException("option mode is for typed values; it needs typedValues=true")
    return given == _FAILFAST


def _duration(given: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", given)
    if not found:
        raise InvalidConfigurationException(
            f"option maxTriggerDelay is {given!r}; allowed: a number and a unit, one of {', '.join(_UNITS)}, as in 15m"
        )
    return int(found[1]) * _UNITS[found[2]]
