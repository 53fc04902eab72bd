"""Who decides over the whole cluster: elections."""
