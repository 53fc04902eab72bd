"""A leader's log was emptied or lost its end, and got other records under the same epoch. Its follower notices,
reports it before anything is truncated, and ends with the same records."""

import dataclasses
import logging

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState, InitialFetchState
from lakelog.replication.protocol.rounds.fetch_round import LOST_END
from lakelog.replication.server.fetcher import fetch_runner
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_snapshot import batch_ends_from
from lakelog.replication.storage.log.log_start import raise_log_starts
from tests.clock import Clock
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.logs import P0, P1, TOPIC, chain, fill, follow, lead, leo, records, request, send, truncate, values

REWRITTEN = 77  # another producer, so that nothing is a duplicate


@pytest.fixture
def world(root):
    return made_world(root)


@pytest.fixture
def world_without_stream(root):
    return made_world(root, looks=False)


def made_world(root, looks=True):
    """Both logs have 0-2 | 3-5 | 6-9 of P0, and three records of P1."""
    clock = Clock()
    made = World(root, clock=clock, looks=looks)
    made.clock = clock
    fill(made.leader, P0, 3, 3, 4)
    fill(made.leader, P1, 3)
    made.publish()
    made.fetch()
    made.fetch()
    assert (chain(made.follower), made.states.all().get(P0).lagging) == (chain(made.leader), False)
    made.told.clear()
    return made


def lose_and_write(world, left, *new):
    """Truncates the leader's log to `left`, and appends other records under the same epoch."""
    truncate(world.leader, {P0: left})
    for number, batch in enumerate(new):
        sequence = sum(map(len, new[:number]))
        sent = request(P0, len(batch), sequence, producer_id=REWRITTEN)
        (outcome,) = send(world.leader, sent, tables={P0: records(*batch)})
        assert isinstance(outcome, Appended), outcome
    world.publish()


def catch_up(world):
    """Runs rounds until there is nothing more to fetch at once."""
    while world.fetch():
        pass


def is_equal(world):
    logs = world.leader, world.follower
    return len({(tuple(values(log)), leo(log), chain(log)) for log in logs}) == 1


OTHERS = [b"other", b"records", b"than", b"before"]


@pytest.mark.parametrize(
    ("left", "new", "truncation"),
    [
        pytest.param(6, [OTHERS], 6, id="r28: it lost its last batch, and has as much again"),
        pytest.param(6, [OTHERS[:2]], 6, id="the follower is above its leader's LEO"),
        pytest.param(3, [OTHERS[:1]], 3, id="two batches"),
        pytest.param(0, [OTHERS[:2]], 0, id="r27: it was emptied"),
        pytest.param(6, [OTHERS, OTHERS], 6, id="the follower is below its leader's LEO by now"),
        pytest.param(0, [OTHERS] * 4, 0, id="emptied, and has more than before"),
        pytest.param(3, [OTHERS[:3], OTHERS], 3, id="the same offsets from batch to batch"),
    ],
)
def test_tr_08_a_diverged_follower_reports_it_truncates_to_the_common_end_and_fetches_again(
    world, left, new, truncation, caplog
):
    """Records of the leader's own epoch are not truncated before the next epoch decides whose records hold."""
    before = chain(world.follower)
    lose_and_write(world, left, *new)
    with caplog.at_level(logging.ERROR):
        catch_up(world)
    why, rows = world.told[0]
    assert (why, rows[P0].state, rows[P0].error.partition(":")[0]) == ("diverged", FollowerState.TRUNCATING, "DIVERGED")
    assert (rows[P1].state, rows[P1].error) == (FollowerState.FETCHING, None)
    assert "broker-2: flights-id-0: DIVERGED" in caplog.text
    state = world.states.all().get(P0)
    assert (state.shown_state, state.error) == (FollowerState.DELAYED, LOST_END)
    assert (leo(world.follower), chain(world.follower)) == (10, before), "nothing has been truncated"
    lead_anew(world)
    catch_up(world)
    assert is_equal(world)
    assert leo_when_truncated(world) == truncation, "at the last batch of both"
    _, last = world.told[-1]
    assert (last[P0].state, last[P0].error, last[P0].chain) == (FollowerState.FETCHING, None, chain(world.leader))
    assert {p for found in world.divergences for p in found} == {P0}


def lead_anew(world):
    """The controller elects the same leader again."""
    for log, take in ((world.leader, lead), (world.follower, follow)):
        take(log, P0, P1, epoch=1)
    world.states.assign({p: InitialFetchState(TOPIC, 1, 1, leo(world.follower, p)) for p in (P0, P1)})
    world.publish(epoch=1)


def leo_when_truncated(world):
    return min(rows[P0].log_end_offset for why, rows in world.told if why == "truncated")


def test_tr_08_a_leader_that_has_lost_its_end_and_written_nothing_has_no_other_history(world):
    """The follower keeps its records, because it may be the next leader. Its row does not count while it has more."""
    version = world.follower.refresh().version
    lose_and_write(world, 6)
    catch_up(world)
    assert (leo(world.follower), world.follower.refresh().version, world.divergences) == (10, version, [])


def test_tr_08_a_commit_whose_batches_the_leader_has_truncated_truncates_nothing(world):
    """A fetch may bring batches that the leader has truncated since. The leader's current log decides."""
    fill(world.leader, P0, 2)
    world.begin_after()
    fill(world.leader, P0, 1)
    world.round.is_round_due()
    found = [*world.round._headers._found]
    lose_and_write(world, 10, OTHERS[:2])
    world.begin_after()
    world.states.fell_behind([P0])
    catch_up(world)
    assert is_equal(world), "it had not fetched what was lost"
    version = world.follower.refresh().version
    world.told.clear()
    world.round._headers._found = [*found]
    assert world.fetch() is True, "it looks at the leader's log at once"
    assert [rows[P0].state for _, rows in world.told] == [FollowerState.TRUNCATING] * len(world.told)
    assert world.told
    catch_up(world)
    assert (world.follower.refresh().version, world.states.all().get(P0).shown_state) == (
        version,
        FollowerState.FETCHING,
    )
    assert is_equal(world)


def test_tr_08_ft_12_where_the_leaders_batches_cannot_be_read_nothing_is_truncated(world):
    """The common batches are unknown, so the partition waits. The other partition goes on."""
    lose_and_write(world, 6, OTHERS)
    broken = world.leader.current().partition(P0).batches[0].segment
    content = world.leader.root.read(broken)
    world.leader.root.delete(broken)
    fill(world.leader, P1, 2)
    world.publish()
    version = world.follower.refresh().version
    world.fetch()
    state = world.states.all().get(P0)
    assert (state.shown_state, leo(world.follower), leo(world.follower, P1)) == (FollowerState.DELAYED, 10, 5)
    assert broken in state.error
    assert {p for _, rows in world.told for p in rows if rows[p].log_end_offset < 3} == set()
    assert world.follower.refresh().version == version + 1, "P1's records alone"
    world.leader.root.write(broken, content)
    world.clock.now += 60
    lead_anew(world)
    catch_up(world)
    assert is_equal(world)


def test_tr_07_tr_08_a_follower_diverges_by_the_log_start_chain_of_a_leader_whose_first_records_were_deleted(world):
    """The leader's batches follow other records, so the follower drops all and begins at the leader's log start."""
    lose_and_write(world, 0, OTHERS, OTHERS, OTHERS)
    raise_log_starts(world.leader, {P0: lambda _: 6}, "test", "test")
    lead_anew(world)
    catch_up(world)
    own, leader = (log.refresh().partition(P0) for log in (world.follower, world.leader))
    assert (own.log_start_offset, own.log_end) == (6, leader.log_end)
    assert values(world.follower, start=6) == values(world.leader, start=6)
    assert own.batches[0].header == leader.batches[1].header, "the batch that holds the log start is here as a whole"


def say(world, **said):
    """Changes the leader's row of P0."""
    world.publish(epoch=1)
    world.table.publish([dataclasses.replace(row, **said) for row in world.table.replicas.values()], "test")


def rewrite(world):
    """Replaces the leader's log under the same epoch, and publishes its row."""
    truncate(world.leader, {P0: 3})
    fill(world.leader, P0, 3, epoch=1, producer_id=REWRITTEN + 1)
    world.publish(epoch=1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, lambda world: say(world, leader_epoch=2), id="its leader has another epoch by now"),
        pytest.param(None, lambda world: say(world, role="follower"), id="it leads no more"),
        pytest.param(None, rewrite, id="its log is another by now"),
        pytest.param(lambda world: truncate(world.leader, {P0: 6}), None, id="its log lacks what its row tells of"),
    ],
)
def test_tr_02_tr_08_nothing_is_truncated_after_batches_that_are_not_the_leaders_any_more(
    world_without_stream, monkeypatch, before, after
):
    """They are read from its log, which does not show whether it still agrees with the leader's row."""
    world = world_without_stream
    lose_and_write(world, 6, OTHERS)
    lead_anew(world)
    version = world.follower.refresh().version
    with monkeypatch.context() as patch:
        patch.setattr(fetch_runner, "batch_ends_from", while_reading(world, before, after))
        world.fetch()
    state = world.states.all().get(P0)
    assert (world.follower.refresh().version, state.shown_state) == (version, FollowerState.DELAYED)
    assert state.error
    world.publish(epoch=1)
    world.clock.now += 60
    catch_up(world)
    assert is_equal(world)


def while_reading(world, before, after):
    """Runs work just before the leader's batches are read, and just after."""

    def read(*args):
        if before:
            before(world)
        found = batch_ends_from(*args)
        if after:
            after(world)
        return found

    return read


def test_tr_08_a_leader_that_appends_during_the_comparison_is_followed(world_without_stream, monkeypatch):
    """Its row covers batches that came after the read ones."""
    world = world_without_stream
    lose_and_write(world, 6, OTHERS)
    lead_anew(world)

    def go_on(world):
        fill(world.leader, P0, 2, epoch=1, producer_id=REWRITTEN + 1)
        world.publish(epoch=1)

    monkeypatch.setattr(fetch_runner, "batch_ends_from", while_reading(world, None, go_on))
    catch_up(world)
    assert is_equal(world)
    assert leo_when_truncated(world) == 6
