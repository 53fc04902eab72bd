"""The logs that the tests of the source read."""

import pytest

from tests.clients.world import partly_committed_world


@pytest.fixture
def world(root):
    return partly_committed_world(root)
