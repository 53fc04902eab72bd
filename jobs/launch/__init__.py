"""How verbs are started: options of spark-submit, Delta's jars, the code for executors, the session."""
