"""What users hold: producer, reader, admin client."""
