"""The clients: `Producer`, `Consumer`, `AdminClient`, and `read_committed` for Spark."""
