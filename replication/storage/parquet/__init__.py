"""Parquet files by their parts: column chunks are copied from file to file as they are."""
