"""State changes of replicas: which are allowed, and which remove a replica from the ISR."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.replica_state_machine import DELETION, handle_state_changes, replicas_on
from lakelog.replication.protocol.replica_states import VALID_PREVIOUS_STATES, ReplicaState
from tests.controller.contexts import NOBODY, Active, changed, check, context, partition, replica, tp

ONLINE, OFFLINE = ReplicaState.ONLINE, ReplicaState.OFFLINE
INELIGIBLE = ReplicaState.DELETION_INELIGIBLE


def decision_of(registration, state, broker, **given):
    return Decision(replace(context(registration, **given), replica_states={replica(broker): state}), "a test")


@pytest.mark.parametrize(("before", "after"), list(itertools.product(VALID_PREVIOUS_STATES, repeat=2)))
def test_rs_01_an_invalid_move_of_a_replica_is_logged_and_left_out(before, after):
    decision = decision_of(partition(), before, 2)
    handle_state_changes(decision, [replica(2)], after)
    is_valid = before in VALID_PREVIOUS_STATES[after]
    assert decision.replica_state(replica(2)) == (after if is_valid else before)
    moves = [(change.what, change.before, change.after, change.is_valid) for change in decision.state_changes]
    assert moves == ([] if is_valid and before == after else [("replica 2 of flights-0", before, after, is_valid)])
    assert bool(decision.changed) == (is_valid and after == OFFLINE), "only who goes offline leaves the ISR"


@pytest.mark.parametrize(("broker", "state"), [(2, ReplicaState.NEW), (1, ReplicaState.NON_EXISTENT)])
def test_rs_02_a_leader_is_not_moved_to_new_replica(broker, state):
    decision = decision_of(partition(leader=1), ReplicaState.NON_EXISTENT, broker)
    handle_state_changes(decision, [replica(broker)], ReplicaState.NEW)
    assert decision.replica_state(replica(broker)) == state


@pytest.mark.parametrize(
    ("leader", "isr", "outcome"),
    [
        pytest.param(1, (1, 2, 3), (1, (1, 3)), id="a follower"),
        pytest.param(2, (1, 2, 3), (NOBODY, (1, 3)), id="the leader"),
        pytest.param(2, (2,), (NOBODY, (2,)), id="the leader, alone: it stays in the ISR"),
        pytest.param(NOBODY, (2,), None, id="the last member of an offline partition"),
        pytest.param(1, (1, 3), None, id="a follower that is out of sync"),
    ],
)
def test_rs_03_an_offline_replica_leaves_the_isr(leader, isr, outcome):
    decision = decision_of(partition(leader=leader, isr=isr), ONLINE, 2)
    handle_state_changes(decision, [replica(2)], OFFLINE)
    check(decision)
    assert changed(decision) == ({"flights-0": outcome} if outcome else {})


def test_rs_03_several_offline_replicas_in_one_decision_are_one_isr_change():
    decision = Decision(context(partition((1, 2, 3, 4)), live=(1, 2, 3, 4)), "a test")
    handle_state_changes(decision, [replica(4), replica(2), replica(3)], OFFLINE)
    check(decision)
    assert changed(decision) == {"flights-0": (1, (1,))}


def test_rs_03_td_05_a_topic_that_is_being_deleted_keeps_its_isr():
    decision = decision_of(partition(), ONLINE, 2, deleting=("flights",))
    handle_state_changes(decision, [replica(2)], OFFLINE)
    assert (decision.changed, decision.replica_state(replica(2))) == ({}, OFFLINE)


def test_rs_01_ra_03_a_replica_leaves_the_cluster_step_by_step_and_may_come_again():
    decision = decision_of(partition(isr=(1, 3)), ONLINE, 2)
    for state in (OFFLINE, *DELETION, ReplicaState.NEW, ONLINE):
        handle_state_changes(decision, [replica(2)], state)
        assert decision.replica_state(replica(2)) == state
    check(decision)


def test_rs_04_at_start_the_live_are_online_and_the_dead_wait_in_ineligible():
    given = context(partition(), live=(1, 3))
    assert [given.replica_states[replica(b)] for b in (1, 2, 3)] == [ONLINE, INELIGIBLE, ONLINE]


def test_rs_04_fo_03_after_the_failover_the_live_are_online_and_the_dead_are_missed():
    active = Active(context(partition(), live=(1, 3)))
    decision = active.fail_over()
    assert [active.state(b) for b in (1, 2, 3)] == [ONLINE, OFFLINE, ONLINE]
    assert changed(decision) == {"flights-0": (1, (1, 3))}


def test_bu_01_bd_02_replicas_of_given_brokers_are_found():
    decision = Decision(context(partition((1, 2)), partition((2, 3), number=1), partition((3, 1), number=2)), "a test")
    assert replicas_on(decision, (3, 1)) == [replica(1), replica(3, 1), replica(1, 2), replica(3, 2)]
    assert replicas_on(decision, ()) == []
    assert tp(1) == replicas_on(decision, (2,))[1].topic_id_partition
