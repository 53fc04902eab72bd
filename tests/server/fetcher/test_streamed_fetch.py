"""Rounds of micro-batches: what the stream tells of is fetched once, and again where a round starts over."""

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.server.fetcher import header_fetch
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.logs import P0, P1, fill, leo, offsets


@pytest.fixture
def world(root):
    """A follower that has read its leader's snapshot."""
    world = World(root)
    world.fetch()
    return world


def test_ft_12_a_broken_new_segment_delays_its_partition_and_no_other(world):
    fill(world.leader, P0, 3)
    (broken,) = world.files(world.leader)
    fill(world.leader, P1, 5)
    world.leader.root.delete(broken)
    assert world.fetch() is True, "the snapshot is to be read at once"
    assert leo(world.follower, P1) == 5
    world.round.run(is_streamed=False)
    assert world.states.get(P0).shown_state == FollowerState.DELAYED
    assert broken in world.states.get(P0).error


def test_fm_07_a_round_that_starts_over_has_the_same_headers_again(world, monkeypatch):
    """The stream tells of a segment once."""
    fill(world.leader, P0, 3)
    copy, removed = SegmentCopier.copy, []

    def removes(copier, plan):
        if not removed:
            removed.append(world.states.remove([P1]))
        return copy(copier, plan)

    monkeypatch.setattr(SegmentCopier, "copy", removes)
    world.fetch()
    assert (offsets(world.follower), len(removed)) == ([0, 1, 2], 1)


def test_ft_05_each_new_segment_is_fetched_once(world, monkeypatch):
    looked_at = []
    reads = header_fetch.read_segments
    monkeypatch.setattr(
        header_fetch, "read_segments", lambda root, files: looked_at.append(len(files)) or reads(root, files)
    )
    for count in (1, 2, 0):
        fill(world.leader, P0, *[1] * count)
        world.fetch()
    world.round.run(is_streamed=False)
    assert looked_at == [1, 2, 0]
