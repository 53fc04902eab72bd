"""Event scripts: the events of a cluster, step by step, and the expected observations."""
