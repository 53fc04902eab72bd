"""For tests of verbs that need a checkout: what the tests of the others have."""

from tests.jobs.conftest import admin, cluster, controlled, lakelog, on_t, write

__all__ = ["admin", "cluster", "controlled", "lakelog", "on_t", "write"]
