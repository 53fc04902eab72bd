"""A broker: its replicas, its fetchers and its duties as a leader."""
