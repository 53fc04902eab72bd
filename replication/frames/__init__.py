"""Rules that compare or move records, and the views of the state: DataFrames in, DataFrames out."""
