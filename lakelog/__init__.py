"""Lakelog: Kafka's replication protocol on Delta Lake, run by Spark."""
