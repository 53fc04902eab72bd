"""Storage roots and Delta tables in memory, `memory://<store>/<folder>`. Shipped code runs on them, and they can
fail."""

from lakelog.replication.storage.delta.storage_root import use_root
from lakelog.replication.storage.memory.root import MemoryRoot

use_root("memory", MemoryRoot)
