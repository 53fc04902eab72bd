"""The log table of a broker: segments, what commits add up to, and each way in which a log changes."""
