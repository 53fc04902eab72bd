"""What a broker runs: its replicas, its fetchers, its duties as a leader."""
