"""A store that fails to return a file for a moment: the error is the store's, and the file does not count as broken."""

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import read_records, read_segment
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import CLUSTER
from lakelog.verification.memory_root import MemoryStore, NoFaults
from tests.storage.logs import P0, fill, new_log

ROW = {"cluster_id": "c", "broker_id": 1, "format_version": 3, "configs": []}


class Busy(NoFaults):
    """Answers 503 when it is asked for a data file."""

    def read(self, uri):
        if uri.endswith(".parquet"):
            raise OSError(f"{uri}: 503 Slow Down")


@pytest.fixture
def store():
    with MemoryStore("busy").opened() as store:
        yield store


def segment_of(store):
    log = new_log(f"{store.uri}/log", P0)
    fill(log, P0, 2)
    return log, log.current().known(P0).batches[0].segment


@pytest.mark.parametrize("read", [
    pytest.param(lambda log, name: read_records(log.root, name), id="records"),
    pytest.param(lambda log, name: read_segment(log.root, log.current().segments[name].file), id="footer"),
    pytest.param(lambda log, _: log.read(P0, 0), id="log"),
])  # fmt: skip
def test_ol_01_a_segment_that_is_not_handed_out_is_not_broken(store, read):
    log, name = segment_of(store)
    store.faults = Busy()
    with pytest.raises(KafkaStorageException, match="503"):
        read(log, name)
    store.faults = NoFaults()
    read(log, name)


def test_a_segment_that_is_handed_out_and_makes_no_sense_is_broken(store):
    log, name = segment_of(store)
    size = log.current().segments[name].file.size
    log.root.put(name, b"x" * size)
    for read in (
        lambda: read_records(log.root, name),
        lambda: read_segment(log.root, log.current().segments[name].file),
    ):
        with pytest.raises(CorruptRecordException, match=name):
            read()


def test_a_state_table_that_is_not_handed_out_is_not_broken(store):
    root = StorageRoot.of(f"{store.uri}/cluster")
    StateTable.create_at(root, CLUSTER, [ROW])
    store.faults = Busy()
    with pytest.raises(KafkaStorageException, match="503"):
        StateTable.open_at(root, CLUSTER)
    store.faults = NoFaults()
    assert StateTable.open_at(root, CLUSTER).rows[0]["cluster_id"] == "c"
    (name,) = [name for name in root.list() if name.endswith(".parquet")]
    root.put(name, b"x")
    with pytest.raises(CorruptRecordException, match=name):
        StateTable.open_at(root, CLUSTER)
