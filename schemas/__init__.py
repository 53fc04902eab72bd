"""The tables of a cluster, a file each. `README.md` beside this file says who reads and who writes which."""

from schemas.admin import ADMIN
from schemas.brokers import BROKERS
from schemas.cluster import CLUSTER, FORMAT_VERSION
from schemas.configs import CONFIGS
from schemas.controller import CONTROLLER
from schemas.fetch_states import FETCH_STATES
from schemas.groups import GROUPS
from schemas.log import LOG
from schemas.metadata import METADATA
from schemas.producers import PRODUCERS
from schemas.record_batches import RECORD_BATCHES
from schemas.replicas import REPLICAS
from schemas.table import Column, Table
from schemas.topics import TOPICS

STATE_TABLES = (ADMIN, CLUSTER, TOPICS, CONFIGS, METADATA, BROKERS, PRODUCERS, GROUPS, CONTROLLER, REPLICAS)

__all__ = [
    "ADMIN",
    "BROKERS",
    "CLUSTER",
    "CONFIGS",
    "CONTROLLER",
    "FETCH_STATES",
    "FORMAT_VERSION",
    "GROUPS",
    "LOG",
    "METADATA",
    "PRODUCERS",
    "RECORD_BATCHES",
    "REPLICAS",
    "STATE_TABLES",
    "TOPICS",
    "Column",
    "Table",
]
