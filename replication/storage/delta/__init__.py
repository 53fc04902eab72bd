"""One Delta table in one storage root: its files, its commits and the errors of its store."""

from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.object_root import ObjectRoot
from lakelog.replication.storage.delta.storage_root import STORES, use_root

use_root("file", LocalRoot)
for _scheme in STORES:
    use_root(_scheme, ObjectRoot)
