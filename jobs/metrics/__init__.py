"""Metrics of a cluster in Prometheus's formats: what is read, what it means under which name, and how it is served."""
