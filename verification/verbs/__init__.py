"""The verbs that need a checkout."""
