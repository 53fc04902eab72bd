"""The stack tier of the simulation: all that ships but Spark, over a store in memory that fails as real ones do."""
