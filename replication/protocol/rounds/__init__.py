"""Rounds: what is read, decided and written, in which order, as generators that do no I/O."""
