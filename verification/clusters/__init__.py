"""The ways to run a cluster under test: in one Spark session, as processes, or simulated."""
