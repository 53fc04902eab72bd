"""The measurements of `lakelog bench`: a follower against a plain stream in the same run, and the controller alone."""
