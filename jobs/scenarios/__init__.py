"""Event scripts: what happens to a cluster, step by step, and what must be seen of it."""
