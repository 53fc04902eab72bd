"""The pictures of the quickstart, besides its figures."""
