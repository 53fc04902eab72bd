"""The logs that the tests of the source read."""

import pytest

from tests.clients.world import World
from tests.storage.logs import P0, P1, fill


@pytest.fixture
def world(root):
    """Partition 0 has 0-2 | 3-4, of which 4 is not committed, partition 1 has 0-1."""
    made = World(root)
    fill(made.logs[1], P0, 3, 2)
    fill(made.logs[1], P1, 2)
    made.say(4)
    made.say(2, P1)
    return made
