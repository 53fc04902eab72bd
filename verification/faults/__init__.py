"""Starts clusters of processes, kills, freezes and damages them under load, and checks them afterwards."""
