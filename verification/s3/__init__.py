"""A small S3 server on the loopback, for demonstrations, soaks, event scripts and benchmarks."""
