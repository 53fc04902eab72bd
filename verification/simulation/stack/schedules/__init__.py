"""Directed histories of the stack tier: each leads to a rare moment, in which a mistake has lost or doubled records."""
