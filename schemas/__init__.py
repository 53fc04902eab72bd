"""The tables of a cluster, one module each. `README.md` beside this file lists their writers and readers."""

from lakelog.schemas.admin import ADMIN
from lakelog.schemas.batch_headers import BATCH_HEADERS
from lakelog.schemas.brokers import BROKERS
from lakelog.schemas.cluster import CLUSTER, FORMAT_VERSION, OLDEST_FORMAT
from lakelog.schemas.configs import CONFIGS
from lakelog.schemas.controller import CONTROLLER
from lakelog.schemas.fetch_states import FETCH_STATES
from lakelog.schemas.groups import GROUPS
from lakelog.schemas.log import LOG
from lakelog.schemas.members import MEMBERS
from lakelog.schemas.metadata import METADATA
from lakelog.schemas.producers import PRODUCERS
from lakelog.schemas.replicas import REPLICAS
from lakelog.schemas.table import Column, Table
from lakelog.schemas.topics import TOPICS

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
    "REPLICAS",
    "STATE_TABLES",
    "TOPICS",
    "Column",
    "Table",
]
