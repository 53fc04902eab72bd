"""What the quickstart shows besides its figures."""
