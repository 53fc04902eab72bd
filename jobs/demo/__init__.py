"""The quickstart: its records, its run and its report."""
