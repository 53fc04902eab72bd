"""One Delta table in one storage root: its files, its commits and the errors of its store."""
