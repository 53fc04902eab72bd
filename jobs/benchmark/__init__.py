"""Lakelog's follower against a plain Delta-to-Delta stream, on the same files, in the same run."""
