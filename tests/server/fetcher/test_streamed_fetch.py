"""Rounds of micro-batches: what a poll finds is fetched once, and again where a round starts over."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.fetch_state import FollowerState, InitialFetchState
from lakelog.replication.server.fetcher import fetch_runner, header_fetch, segment_copier
from lakelog.replication.server.fetcher.follower_query import StreamPlan, batch_key
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from lakelog.replication.storage.log.new_segments import NewSegments
from tests.clock import Clock
from tests.hanging import raises
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, TOPIC, fill, leo, new_log, offsets


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
    world.round.run()
    assert world.states.all().get(P0).shown_state == FollowerState.DELAYED
    assert broken in world.states.all().get(P0).error


def test_fm_07_a_round_that_starts_over_has_the_same_headers_again(world, monkeypatch):
    """A poll finds a segment once."""
    fill(world.leader, P0, 3)
    copy, removed = SegmentCopier.copy, []

    def removes(copier, plan, known):
        if not removed:
            removed.append(world.states.remove([P1]))
        return copy(copier, plan, known)

    monkeypatch.setattr(SegmentCopier, "copy", removes)
    world.fetch()
    assert (offsets(world.follower), len(removed)) == ([0, 1, 2], 1)


def test_ft_05_each_new_segment_is_fetched_once(world, monkeypatch):
    polled_at = []
    reads = segment_copier.read_segments
    monkeypatch.setattr(
        segment_copier,
        "read_segments",
        lambda root, files, *rest: polled_at.append(len(files)) or reads(root, files, *rest),
    )
    for count in (1, 2, 0):
        fill(world.leader, P0, *[1] * count)
        world.fetch()
    world.round.run()
    assert polled_at == [1, 2]


def test_ft_10_a_batch_after_the_snapshot_of_a_gap_comes_with_the_next_fetch(world, monkeypatch):
    """The gap ends before the snapshot. Otherwise it would pass over a batch that the snapshot lacks."""
    fill(world.leader, P0, 1)
    clean_up(world.leader.root)
    world.states.fell_behind([P0])
    snapshot = header_fetch.segments_from

    def commits_meanwhile(*given):
        found = snapshot(*given)
        fill(world.leader, P0, 1)
        return found

    with monkeypatch.context() as changed:
        changed.setattr(header_fetch, "segments_from", commits_meanwhile)
        world.fetch()
    world.fetch()
    assert offsets(world.follower) == [0, 1]


def test_ft_11_what_a_limit_leaves_is_fetched_though_no_micro_batch_tells_of_it(root, monkeypatch):
    """Rounds that fail before the fetch take nothing."""
    clock = Clock()
    world = World(root, clock=clock, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    with monkeypatch.context() as changed:
        changed.setattr(type(world.table), "poll", raises(KafkaStorageException("503 Slow Down")))
        for _ in range(3):
            fill(world.leader, P0, 1)
            world.fetch()
    clock.now += 60
    while world.round.run():
        pass
    assert (leo(world.follower), world.states.all().get(P0).lagging) == (3, False)
    fill(world.leader, P0, 1)
    is_due = world.fetch()
    for _ in range(10):
        is_due = is_due and world.round.run()
    assert (leo(world.follower), is_due) == (4, False)


def test_ft_06_a_fetch_that_fails_does_not_follow_at_once(root, monkeypatch):
    clock = Clock()
    world = World(root, clock=clock, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    fill(world.leader, P0, 1, 1)
    assert world.fetch() is True
    monkeypatch.setattr(header_fetch, "segments_from", raises(KafkaStorageException("503 Slow Down")))
    assert world.round.run() is False


def test_ft_10_what_came_before_the_rounds_follow_is_read_from_the_snapshot(world):
    fill(world.leader, P0, 3)
    world.round.stop_following()
    assert world.round.run()
    assert offsets(world.follower) == [0, 1, 2]
    assert not world.round.run()
    assert not world.states.all().get(P0).lagging


def test_ft_01_rounds_that_follow_already_do_not_begin_to(world, monkeypatch):
    monkeypatch.setattr(HeaderFetch, "begin", raises(AssertionError("it follows")))
    fill(world.leader, P0, 1)
    world.fetch()
    assert offsets(world.follower) == [0]


def test_ft_06_a_leader_whose_log_cannot_be_listed_delays_its_partitions_and_says_why(root, monkeypatch, caplog):
    """Reads of known files may work all the same, for example without the right to list."""
    clock = Clock()
    world = World(root, clock=clock)
    fill(world.leader, P0, 2)
    with monkeypatch.context() as changed:
        changed.setattr(NewSegments, "begin", raises(KafkaStorageException("403 Forbidden")))
        for _ in range(2):
            assert world.fetch() is False
            clock.now += 60
    assert "KafkaStorageException: 403 Forbidden" in world.states.all().get(P0).error
    assert len(caplog.messages) == 1
    while world.fetch():
        pass
    assert offsets(world.follower) == [0, 1]


def test_ft_10_a_log_that_was_made_again_is_read_from_its_snapshot(world):
    fill(world.leader, P0, 1, 1, 1)
    world.fetch()
    world.leader.root.delete_folder()
    new_log(world.leader.root)
    world.fetch()
    assert world.states.all().get(P0).lagging


def plan_of(behind):
    """The plan that chooses all of these batches."""
    return StreamPlan(frozenset(map(batch_key, behind)), frozenset())


def test_ft_05_what_a_micro_batch_is_given_is_appended_by_its_rounds(root):
    """What its rounds append is told to the next one."""
    world = World(root, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    fill(world.leader, P0, 2, 1)
    fill(world.leader, P1, 3)
    world.publish()
    appended, behind = world.round.stream_rows()
    assert (appended, sorted((b.topic_id_partition.partition, b.base_offset) for b in behind)) == (
        [],
        [(0, 0), (0, 2), (1, 0)],
    )
    world.round.begin_micro_batch(plan_of(behind))
    for _ in range(5):
        if not world.fetch():
            break
    assert (offsets(world.follower), leo(world.follower, P1)) == ([0, 1, 2], 3)
    appended, behind = world.round.stream_rows()
    assert (len(appended), behind) == (3, [])
    assert world.round.stream_rows() == ([], [])


@pytest.mark.parametrize("left_out", [[P0], [P1], []], ids=repr)
def test_ft_10_a_plan_that_is_out_of_date_loses_nothing(world, left_out):
    """Spark had left out what was delayed then, or had chosen nothing of it."""
    fill(world.leader, P0, 2)
    world.round.stream_rows()
    world.round.begin_micro_batch(StreamPlan(frozenset(), frozenset(left_out)))
    world.fetch()
    assert offsets(world.follower) == [0, 1]


def test_fm_07_a_partition_that_is_fetched_anew_reads_the_snapshot_again(world):
    """What came meanwhile is not in memory."""
    fill(world.leader, P0, 2)
    assert len(world.round.stream_rows()[1]) == 1
    world.states.remove([P0])
    fill(world.leader, P0, 1)
    world.fetch()
    world.states.assign({P0: InitialFetchState(TOPIC, 1, 0, 0)})
    world.publish()
    world.fetch()
    assert offsets(world.follower) == [0, 1, 2]


def test_ft_15_a_partition_that_was_delayed_reads_the_snapshot_again(root):
    clock = Clock()
    world = World(root, clock=clock)
    world.fetch()
    fill(world.leader, P0, 1)
    assert len(world.round.stream_rows()[1]) == 1
    world.round.delay_all("its query has ended")
    fill(world.leader, P0, 1)
    world.fetch()
    clock.now += 60
    world.fetch()
    assert offsets(world.follower) == [0, 1]


def test_ft_05_many_full_rounds_in_a_row_are_far_behind_but_those_of_a_plan_are_not(root, monkeypatch):
    monkeypatch.setattr(fetch_runner, "_FULL_ROUNDS", 2)
    world = World(root, **{"replica.fetch.response.max.bytes": 1})
    world.fetch()
    fill(world.leader, P0, *[1] * 8)
    far = []
    for _ in range(3):
        world.fetch()
        far.append(world.round.is_far_behind())
    _, behind = world.round.stream_rows()
    world.round.begin_micro_batch(plan_of(behind))
    while world.fetch():
        far.append(world.round.is_far_behind())
    assert (far, leo(world.follower)) == ([False, True, True] + [False] * 4, 8)


@pytest.mark.parametrize("stop", ["leader", "not followed", "nothing fetched"])
def test_ft_05_without_a_leader_to_read_nothing_is_behind(world, monkeypatch, stop):
    fill(world.leader, P0, 2)
    match stop:
        case "leader":
            monkeypatch.setattr(header_fetch, "segments_from", raises(KafkaStorageException("503 Slow Down")))
        case "not followed":
            world.round.stop_following()
        case _:
            world.states.remove([P0, P1])
    assert world.round.stream_rows() == ([], [])
    monkeypatch.undo()
    if stop == "leader":
        world.fetch()
        assert offsets(world.follower) == [0, 1]


@pytest.mark.parametrize("has_executors", [True, False])
def test_ft_05_executors_copy_a_plan_in_one_round_whatever_the_limits(root, monkeypatch, has_executors):
    world = World(root, **{"replica.fetch.response.max.bytes": 1, "replica.fetch.max.bytes": 1})
    world.fetch()
    monkeypatch.setattr(world.round._copier, "has_executors", lambda: has_executors)
    fill(world.leader, P0, *[2] * 5)
    _, behind = world.round.stream_rows()
    world.round.begin_micro_batch(plan_of(behind))
    world.fetch()
    assert leo(world.follower) == (10 if has_executors else 2)
    fill(world.leader, P0, *[2] * 5)
    world.fetch()
    assert leo(world.follower) == (12 if has_executors else 4), "without a plan the limits hold"


def test_br_04_a_stop_in_the_middle_of_a_large_copy_appends_nothing(world, monkeypatch):
    """The shutdown removes all partitions. What was copied has no commit."""
    monkeypatch.setattr(segment_copier, "_COPIERS", 1)
    fill(world.leader, P0, 1, 1, 1)
    copied, real = [], segment_copier.copy_segment

    def stops(*given):
        world.states.remove([P0, P1])
        copied.append(given)
        return real(*given)

    monkeypatch.setattr(segment_copier, "copy_segment", stops)
    before = world.follower.refresh().version
    assert world.fetch() is False
    assert (len(copied), world.follower.refresh().version) == (1, before)
