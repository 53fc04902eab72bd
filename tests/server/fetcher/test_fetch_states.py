"""The fetch states of one fetcher, between the thread of its query and those of its broker."""

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState
from lakelog.replication.server.fetcher.fetch_states import SharedFetchStates
from tests.clock import Clock
from tests.hanging import ends, in_background

P0, P1 = TopicIdPartition("t", 0), TopicIdPartition("t", 1)


def assigned(*partitions):
    states = SharedFetchStates(Clock())
    states.assign({p: InitialFetchState("t", 1, 0, 0) for p in partitions})
    return states


def test_fm_07_a_partition_is_removed_after_what_is_being_written_of_it():
    states = assigned(P0, P1)
    with states.held(states.removals):
        removal = in_background(lambda: states.remove([P0]))
        removal.join(0.05)
        assert removal.is_alive(), "it waits"
        assert states.get(P0) is not None
    assert ends(removal)
    assert (states.get(P0), states.get(P1) is None) == (None, False)


def test_fm_07_who_has_none_of_the_partitions_is_not_waited_for():
    states = assigned(P1)
    with states.held(states.removals):
        assert ends(in_background(lambda: states.remove([P0])))
    with states.held(0):
        pass
