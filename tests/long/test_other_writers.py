"""Everything by which Spark may write a Delta table, tried on a log."""

from tests.storage.delta.test_other_writers import check_that_spark_refuses
from tests.storage.delta.test_other_writers import log as log

STATEMENTS = {
    "OPTIMIZE ZORDER": "OPTIMIZE {} ZORDER BY (offset)",
    "VACUUM LITE": "VACUUM {} LITE RETAIN 0 HOURS",
    "VACUUM DRY RUN": "VACUUM {} RETAIN 0 HOURS DRY RUN",
    "DELETE": "DELETE FROM {} WHERE offset = 3",
    "UPDATE": "UPDATE {} SET partition = 1 WHERE offset = 3",
    "MERGE": "MERGE INTO {} t USING (SELECT 3L AS o) s ON t.offset = s.o WHEN MATCHED THEN DELETE",
    "INSERT": "INSERT INTO {} SELECT * FROM {}",
    "RESTORE": "RESTORE TABLE {} TO VERSION AS OF 1",
    "ALTER columns": "ALTER TABLE {} ADD COLUMNS (more INT)",
    "ALTER protocol": "ALTER TABLE {} SET TBLPROPERTIES ('delta.minWriterVersion' = '5')",
    "CLUSTER BY": "ALTER TABLE {} CLUSTER BY (offset)",
}


def test_spark_refuses_every_statement_that_writes_a_log(spark, log):
    check_that_spark_refuses(spark, log, STATEMENTS)
