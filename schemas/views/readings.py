"""The rows that Spark reads of the tables of a cluster, before views join them. They are read, never stored."""

from __future__ import annotations

from dataclasses import replace

from lakelog.schemas.table import Column, Table
from lakelog.schemas.tables import ADMIN, BROKERS, CONTROLLER, GROUPS, METADATA, REPLICAS, TOPICS

_WHEN = (
    Column("table_version", "bigint", "Version of the table that was read"),
    Column("committed_at", "timestamp", "Time of that version's commit, by the clock of the store"),
    Column("observed_at", "timestamp", "Time of the reading, or the time that was asked for"),
)
_ROOT_ERROR = Column("root_error", "string", "Why the broker's root could not be read; null if it was", True)


def _read(table: Table, *more: Column) -> Table:
    return replace(table, columns=(*table.columns, *_WHEN, *more), writers="nobody")


_CHANGE = (
    Column("version", "bigint", "Version of metadata with this row"),
    Column("committed_at", "timestamp", "Time of that version's commit, by the clock of the store"),
    Column("is_first", "boolean", "The oldest known row of the partition; there may have been older ones"),
    Column("is_removed", "boolean", "The partition was removed; the row is its last one"),
    Column("who", "string", "Writer of the commit", True),
    Column("why", "string", "Reason of the commit", True),
)

METADATA_CHANGES = replace(
    METADATA,
    name="metadata_changes",
    description="The rows of metadata that changed, version by version",
    key=("topic_id", "partition", "version"),
    writers="nobody",
    columns=(*METADATA.columns, *_CHANGE),
)

EVENTS = Table(
    name="events",
    description="What has happened, by the versions of metadata",
    key=("version", "event", "topic_id", "partition", "brokers"),
    writers="nobody",
    columns=(
        Column("at", "timestamp", "Time of the commit, by the clock of its writer or, if earlier, that of the store"),
        Column("version", "bigint", "Version of metadata"),
        Column("event", "string", "What has happened, such as LeaderElected"),
        Column("topic", "string", "Topic name; null if the event is not about a partition, as all its columns", True),
        Column("topic_id", "string", "Topic id", True),
        Column("partition", "int", "Partition", True),
        Column("brokers", "array<int>", "Brokers to which it has happened"),
        Column("leader", "int", "Broker that leads afterwards; null: none", True),
        Column("leader_epoch", "int", "Leader epoch afterwards", True),
        Column("isr", "array<int>", "Brokers in sync afterwards", True),
        Column("detail", "string", "The event in words"),
        Column("who", "string", "Who has asked for it: a client, a controller or a broker", True),
        Column("why", "string", "Reason of the commit", True),
    ),
)

BATCHES = Table(
    name="batches",
    description="The headers of the record batches in the brokers' logs, and the files that cannot be read",
    key=("broker_id", "file"),
    writers="nobody",
    columns=(
        Column("broker_id", "int", "Broker whose log has the file"),
        Column("file", "string", "Name of the data file in the log table"),
        Column("file_bytes", "bigint", "Size of the file"),
        Column("error", "string", "Why the file cannot be read; null if it can", True),
        Column("topic", "string", "Topic name; null without a batch, as all columns that follow", True),
        Column("topic_id", "string", "Topic id", True),
        Column("partition", "int", "Partition", True),
        Column("leader_epoch", "int", "Leader epoch of the batch", True),
        Column("base_offset", "bigint", "First offset of the batch", True),
        Column("last_offset", "bigint", "Last offset of the batch", True),
        Column("max_timestamp", "timestamp", "Newest timestamp of its records", True),
        Column("records", "bigint", "Number of its records, without those that the log cleaner has removed", True),
        Column("bytes", "bigint", "Size of their keys and values", True),
        Column("producer_id", "bigint", "Producer id; -1: not idempotent", True),
        Column("observed_at", "timestamp", "Time of the reading, or the time that was asked for"),
    ),
)

READINGS = {
    table.name: table
    for table in (
        _read(TOPICS), _read(METADATA), _read(GROUPS), _read(CONTROLLER), _read(ADMIN), _read(REPLICAS),
        _read(BROKERS, _ROOT_ERROR), METADATA_CHANGES, EVENTS, BATCHES,
    )
}  # fmt: skip
