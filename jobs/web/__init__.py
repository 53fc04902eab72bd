"""The web console of a cluster: what is read and shared, what each page shows of it, and how pages are served."""
