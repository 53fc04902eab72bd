"""Checks the quorum of cluster roots: every interleaving of one slot, and random histories of several slots."""
