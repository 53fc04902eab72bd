"""Rules over records and batch headers, and the views of the state: DataFrames in, DataFrames out."""
