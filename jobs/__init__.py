"""The verbs of the command line: each reads its arguments, gets a session if it needs one, and makes one call."""
