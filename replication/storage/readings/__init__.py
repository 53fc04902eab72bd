"""Reads the tables of a cluster for Spark, as they are or as they were."""
