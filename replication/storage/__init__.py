"""Everything that knows how tables and files are written and read."""
