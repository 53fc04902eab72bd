"""Settings that a user's session may have."""

# Those of a session of a user, where the session of the tests has others, see tests/conftest.py.
SHIPPED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
}
NTZ = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
# None of these has an effect on our reads, not even all of them together.
WITHOUT_EFFECT = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.files.maxPartitionBytes": "100",
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    "spark.sql.parquet.aggregatePushdown": "true",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.columnarReaderBatchSize": "1",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.recordLevelFilter.enabled": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.useV1SourceList": "",
}
