"""Proofs of what ships, which are not shipped: simulations, faults, event scripts and benchmarks."""
