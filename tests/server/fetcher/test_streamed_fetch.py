"""Rounds of micro-batches: what the stream tells of is fetched once, and again where a round starts over."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.server.fetcher import header_fetch
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from tests.clock import Clock
from tests.hanging import raises
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, fill, leo, new_log, offsets


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
    assert looked_at == [1, 2, 0, 0]


def test_ft_10_a_batch_after_the_snapshot_of_a_gap_comes_with_the_next_fetch(world, monkeypatch):
    """The gap ends before the snapshot. Otherwise it would pass over a batch that the snapshot lacks."""
    fill(world.leader, P0, 1)
    clean_up(world.leader.root)
    world.states.fell_behind([P0])
    snapshot = header_fetch.batches_from

    def commits_meanwhile(*given):
        found = snapshot(*given)
        fill(world.leader, P0, 1)
        return found

    with monkeypatch.context() as changed:
        changed.setattr(header_fetch, "batches_from", commits_meanwhile)
        world.fetch()
    world.fetch()
    assert offsets(world.follower) == [0, 1]


def test_ft_11_what_a_limit_leaves_is_fetched_though_no_micro_batch_tells_of_it(root, monkeypatch):
    """Rounds that fail read nothing, and Spark takes their micro-batches as done."""
    clock = Clock()
    world = World(root, clock=clock, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    with monkeypatch.context() as changed:
        changed.setattr(type(world.table), "poll", raises(KafkaStorageException("503 Slow Down")))
        for _ in range(3):
            fill(world.leader, P0, 1)
            world.fetch()
    clock.now += 60
    while world.round.run(is_streamed=False):
        pass
    assert (leo(world.follower), world.states.get(P0).lagging) == (3, False)
    fill(world.leader, P0, 1)
    is_due = world.fetch()
    for _ in range(10):
        is_due = is_due and world.round.run(is_streamed=False)
    assert (leo(world.follower), is_due) == (4, False)


def test_ft_06_a_fetch_that_fails_does_not_follow_at_once(root, monkeypatch):
    clock = Clock()
    world = World(root, clock=clock, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    fill(world.leader, P0, 1, 1)
    assert world.fetch() is True
    monkeypatch.setattr(header_fetch, "batches_from", raises(KafkaStorageException("503 Slow Down")))
    assert world.round.run(is_streamed=False) is False


def test_ft_10_what_came_before_the_rounds_follow_is_read_from_the_snapshot(world):
    fill(world.leader, P0, 3)
    world.round.stop_following()
    world.round.follow()
    assert world.states.get(P0).lagging
    world.fetch()
    assert (offsets(world.follower), world.states.get(P0).lagging) == ([0, 1, 2], False)


def test_ft_01_rounds_that_follow_already_read_no_snapshot(world):
    world.round.follow()
    assert not world.states.get(P0).lagging


def test_ft_10_a_log_that_was_made_again_is_read_from_its_snapshot(world):
    fill(world.leader, P0, 1, 1, 1)
    world.fetch()
    world.leader.root.delete_folder()
    new_log(world.leader.root)
    world.fetch()
    assert world.states.get(P0).lagging
