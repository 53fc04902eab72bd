"""The state tables, a file each: small, read whole and written whole by compare-and-set."""
