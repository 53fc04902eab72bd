"""Clusters of processes that are killed, frozen and damaged under load, and what is checked afterwards."""
