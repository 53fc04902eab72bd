"""The rules: values in, values out. No Spark, no Delta, no clock, no randomness, no I/O."""
