"""The work of the verbs that write and read records: on the console, and to measure."""
