"""Names of folders and keys that a library may read as a pattern, an escape, or a part of a URI."""

# In a file system, and in a bucket, where a URI ends its path at ? and #.
NO_PATTERN = "{a,b} [c]*? %+~^é#d:8020,e;f=g&$'\"`é"
NO_PATTERN_IN_A_BUCKET = NO_PATTERN.replace("?", "").replace("#", "")
