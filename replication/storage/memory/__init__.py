"""Storage roots and Delta tables in memory, `memory://<store>/<folder>`: what ships runs on them, and they can fail."""

from replication.storage.filesystem import use_root
from replication.storage.memory.root import MemoryRoot

use_root("memory", MemoryRoot)
