"""What the verbs do that write and read records: on the console, and to measure."""
