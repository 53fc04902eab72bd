"""A cluster in memory: runs the shipped rules under crashes, pauses, zombies and lost answers, one step at a time."""
