"""`format("lakelog")` for writing: a batch and streaming sink of Spark, with the columns of Spark's Kafka sink."""
