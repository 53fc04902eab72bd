"""The log table of a broker: its segments, the state that its commits add up to, and each operation that changes it."""
