"""The controller: elections, reassignments, deletions of topics and requests of clients."""
