"""The tables of a cluster. `README.md` beside this file lists their writers and readers."""

from lakelog.schemas.table import Column, Table
from lakelog.schemas.tables import (
    ADMIN,
    BATCH_HEADERS,
    BROKERS,
    CLUSTER,
    CONFIGS,
    CONTROLLER,
    FETCH_STATES,
    FORMAT_VERSION,
    GROUPS,
    LOG,
    MEMBERS,
    METADATA,
    OLDEST_FORMAT,
    PRODUCERS,
    QUORUM_FORMAT,
    REPLICAS,
    TOPICS,
)

STATE_TABLES = (ADMIN, CLUSTER, TOPICS, CONFIGS, METADATA, BROKERS, PRODUCERS, GROUPS, MEMBERS, CONTROLLER, REPLICAS)

__all__ = [
    "ADMIN",
    "BATCH_HEADERS",
    "BROKERS",
    "CLUSTER",
    "CONFIGS",
    "CONTROLLER",
    "FETCH_STATES",
    "FORMAT_VERSION",
    "GROUPS",
    "LOG",
    "MEMBERS",
    "METADATA",
    "OLDEST_FORMAT",
    "PRODUCERS",
    "QUORUM_FORMAT",
    "REPLICAS",
    "STATE_TABLES",
    "TOPICS",
    "Column",
    "Table",
]
