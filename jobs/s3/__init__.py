"""Small S3 servers on the loopback, for demonstrations, soaks, event scripts and benchmarks."""
