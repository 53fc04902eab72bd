"""How verbs read their arguments, wait, and print."""
