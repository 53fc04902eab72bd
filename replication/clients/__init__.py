"""The clients for users: producer, consumer, reader, admin client."""
