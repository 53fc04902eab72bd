"""State tables written by another version or another program: additions do no harm, and nonsense is one error."""

import dataclasses
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables import replica_table
from lakelog.replication.storage.tables.replica_table import ReplicaTable, _row
from lakelog.schemas import REPLICAS
from tests.hanging import SECONDS, Hanging, ends
from tests.storage.tables.test_state_tables import REPLICA

P0 = TopicIdPartition("id", 0)


@pytest.fixture
def storage(root):
    ReplicaTable.create(StorageRoot.of(root)).publish([REPLICA], "test")
    return StorageRoot.of(root)


def put(storage, table, name="foreign.parquet"):
    """Replaces the table's rows, as another writer may."""
    log = DeltaLog.open(storage.child("replicas"))
    pq.write_table(table, log.root.path(name))
    log.commit({"why": "test"}, [AddedFile(name, log.root.sizes([name])[0])], overwrite=True)


def rows(**changes):
    return pa.Table.from_pylist([{**_row(REPLICA), **changes}], REPLICAS.arrow)


def with_column(table, name, values):
    found = table.drop_columns([name]) if name in table.column_names else table
    return found.append_column(name, values)


_FIELDS = {"why": pa.string(), "start_offset": pa.int64(), "chain": pa.string(), "leader_epoch": pa.int32()}
EPOCHS = pa.list_(pa.struct(list(_FIELDS.items())))
EPOCH = {"why": "x", "start_offset": 4, "leader_epoch": 3, "chain": "c"}


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        pytest.param(with_column(rows(), "new", pa.array([1])), {}, id="a column more"),
        pytest.param(rows().drop_columns(["lag", "error"]), {}, id="columns less that may be null"),
        pytest.param(rows().select(sorted(REPLICAS.names)), {}, id="another order"),
        pytest.param(with_column(rows(), "partition", pa.array([0], pa.int64())), {}, id="a wider type"),
        pytest.param(
            with_column(rows(), "epochs", pa.array([[EPOCH]], EPOCHS)),
            {"epochs": ((3, 4, "c"),)}, id="more of an epoch",
        ),
    ],
)  # fmt: skip
def test_what_a_newer_version_has_added_does_no_harm(storage, table, changes):
    opened = ReplicaTable.open(storage)
    put(storage, table)
    assert opened.refresh()
    assert opened.replicas == ReplicaTable.open(storage).replicas == {P0: dataclasses.replace(REPLICA, **changes)}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        pytest.param(rows().drop_columns(["role"]), "column role is missing", id="a column less"),
        pytest.param(with_column(rows(), "role", pa.nulls(1, pa.string())), "column role has nulls", id="nulls"),
        pytest.param(with_column(rows(), "epochs", pa.nulls(1)), "column epochs has nulls", id="no epochs"),
        pytest.param(with_column(rows(), "partition", pa.array(["x"])), "x", id="another type"),
        pytest.param(with_column(rows(), "partition", pa.array([2**40])), "not in range", id="out of range"),
        pytest.param(rows(epochs=[{"leader_epoch": None, "start_offset": 1}]), "a row", id="half an epoch"),
    ],
)
def test_rows_that_make_no_sense_are_one_error_until_there_are_others(storage, table, fault):
    opened = ReplicaTable.open(storage)
    put(storage, table)
    for _ in range(2):
        with pytest.raises(CorruptRecordException, match=fault):
            assert opened.refresh() is opened.replicas
    put(storage, rows(), "again.parquet")
    assert opened.refresh()
    assert opened.replicas == {P0: REPLICA}


def test_a_file_outside_the_table_is_not_read(storage):
    opened = ReplicaTable.open(storage)
    put(storage, rows(), "../foreign.parquet")
    with pytest.raises(CorruptRecordException, match="not the name of a file in the table's folder"):
        opened.refresh()


def test_a_bit_that_has_flipped_in_a_row_is_an_error(storage):
    table = ReplicaTable.open(storage)
    table.publish([dataclasses.replace(REPLICA, error="flip me")], "test")
    (file,) = DeltaLog.open(storage.child("replicas")).active_files()
    path = storage.child("replicas").path(file.name)
    with open(path, "rb") as opened:
        content = opened.read()
    with open(path, "wb") as opened:
        opened.write(content.replace(b"flip me", b"flip mf", 1))
    with pytest.raises(CorruptRecordException, match="CRC"):
        assert ReplicaTable.open(storage).replicas


def test_rows_do_not_go_back_when_two_threads_decode(storage, monkeypatch):
    """The slower thread still has older rows when the newer ones are already there."""
    decode, slow = replica_table._replica, Hanging(replica_table._replica)
    monkeypatch.setattr(
        replica_table, "_replica", lambda row: (slow if threading.current_thread() is slower else decode)(row)
    )
    own, shared = ReplicaTable.open(storage), ReplicaTable.open(storage)
    slower = threading.Thread(target=lambda: (shared.refresh(), shared.replicas), daemon=True)
    own.publish([dataclasses.replace(REPLICA, log_end_offset=95)], "test")
    slower.start()
    assert slow.is_entered.wait(SECONDS)
    own.publish([dataclasses.replace(REPLICA, log_end_offset=100)], "test")
    assert shared.refresh()
    assert shared.replicas[P0].log_end_offset == 100
    slow.let_go()
    assert ends(slower)
    assert (shared.refresh(), shared.replicas[P0].log_end_offset) == (False, 100)
