"""The quickstart: its records, its course, its report."""
