"""Other tools read our tables and do not write them, because of a feature that only Lakelog's writers know."""

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.table_opening import WRITER_FEATURE
from tests.storage.delta.tables import put
from tests.storage.logs import P0, fill, new_log


@pytest.fixture
def log(root):
    """A log of 3 small files, one of which a commit has removed, so that VACUUM has something to delete."""
    log = new_log(root, P0)
    fill(log, P0, 2, 2, 2)
    delta = DeltaLog.open(log.root)
    delta.commit({"why": "test"}, removes=delta.active_files()[:1])
    return log


def state(log):
    return last_version(log.root), {name for name in log.root.list() if name.endswith(".parquet")}


IN_SPARK = {  # the rest is tried in `tests/long`
    "OPTIMIZE": "OPTIMIZE {}",
    "VACUUM": "VACUUM {} RETAIN 0 HOURS",
    "ALTER properties": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
}
BY_DELTA_RS = {
    "optimize": lambda table: table.optimize.compact(),
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "vacuum full": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    "delete": lambda table: table.delete("offset = 3"),
    "append": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="append"),
    "restore": lambda table: table.restore(1),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "false"}),
    "columns": lambda table: table.alter.add_columns([Field("more", "integer")]),
}


def check_that_spark_refuses(spark, log, statements):
    """Each statement is refused, no file goes, and Spark still reads the log."""
    table, version, files = f"delta.`{log.root.uri}`", *state(log)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    refused = []
    for what, statement in statements.items():
        try:
            spark.sql(statement.replace("{}", table)).collect()
        except Exception as error:  # py4j's error of Java's exception, or PySpark's
            refused.append((what, "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE" in str(error)))
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert refused == [(what, True) for what in statements]
    assert last_version(log.root) == version
    assert files <= state(log)[1], "a file is gone"
    assert spark.table(table).count() == 4


def test_spark_reads_a_log_and_refuses_to_write_it(spark, log):
    check_that_spark_refuses(spark, log, IN_SPARK)


@pytest.mark.parametrize("write", BY_DELTA_RS.values(), ids=BY_DELTA_RS.keys())
def test_delta_rs_reads_a_log_and_refuses_to_write_it(log, write):
    version, files = state(log)
    with pytest.raises(CommitFailedError, match=WRITER_FEATURE):
        write(DeltaTable(log.root.uri))
    assert last_version(log.root) == version
    assert files <= state(log)[1], "a file is gone"
    assert DeltaTable(log.root.uri).to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 3}, "to reader 1 and writer 3:"),
        ({"minReaderVersion": 2, "minWriterVersion": 5}, "to reader 2 and writer 5:"),
        (
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["invariants", "lakelog", "rowTracking"]},
            "to reader 1 and writer 7, features rowTracking:",
        ),
        (
            {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors", "invariants", "lakelog"],
            },
            "to reader 3 and writer 7, features deletionVectors:",
        ),
    ],
)  # fmt: skip
def test_a_protocol_that_another_tool_has_raised_is_refused_by_name(log, protocol, told):
    DeltaLog.open(log.root)
    put(log.root, last_version(log.root) + 1, [{"protocol": protocol}])
    with pytest.raises(KafkaStorageException, match=told):
        DeltaLog.open(log.root)


def test_a_lost_reply_to_the_first_commit_is_no_table_of_another(root, monkeypatch):
    real = LocalRoot.put_if_absent
    monkeypatch.setattr(LocalRoot, "put_if_absent", lambda *given: real(*given) and None)
    log = new_log(root)
    assert log.root.exists(commit_name(0))
