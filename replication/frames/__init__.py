"""The rules that compare or move records: DataFrames in, DataFrames out."""
