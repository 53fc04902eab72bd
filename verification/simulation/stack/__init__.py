"""The stack tier of the simulation: all shipped code but Spark, over a store in memory that fails like real ones."""
