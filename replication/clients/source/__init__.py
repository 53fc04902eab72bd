"""`format("lakelog")` for reading: a batch and streaming source of Spark, with the options and columns of Spark's Kafka
source."""
