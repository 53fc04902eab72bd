"""For tests of verbs that need a checkout: what the tests of the others have. And the order of the files."""

import pytest

from tests.jobs.conftest import admin, cluster, controlled, lakelog, on_t, write

__all__ = ["admin", "cluster", "controlled", "lakelog", "on_t", "write"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file, a third of all the time, begins early: as one of the last it would keep one worker busy long
    after the other has ended."""
    items.sort(key=lambda item: item.path.name != "test_stack_sabotage.py")
