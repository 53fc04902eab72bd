"""One fetcher of a broker: its query, its rounds and the copying of segments."""
