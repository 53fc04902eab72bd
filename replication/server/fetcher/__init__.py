"""One fetcher of a broker: its query, its rounds and how segments are copied."""
