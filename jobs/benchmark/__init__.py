"""What `lakelog bench` measures: a follower against a plain stream in the same run, and the controller alone."""
