"""Rules that compare or move records: DataFrames in, DataFrames out."""
