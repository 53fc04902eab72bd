"""Rounds: generators that read, decide and write in a fixed order, and do no I/O themselves."""
