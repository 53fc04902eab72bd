"""What becomes of partitions when brokers are lost: tables of cases, and a controller that lives through it."""

from dataclasses import replace

import pytest

from lakelog.replication.controller.predict import elect_uncleanly, predict, predict_reassignments
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from tests.controller.contexts import Active, context, partition, tp

UNCLEAN = {"unclean.leader.election.enable": "true"}


def facts(view, number=0):
    registration = view.partitions[tp(number)]
    return registration.leader, registration.isr


@pytest.mark.parametrize(
    ("given", "killed", "stopped", "then"),
    [
        (context(partition()), (1,), (), (2, (2, 3))),  # the leader
        (context(partition()), (2,), (), (1, (1, 3))),  # a follower
        (context(partition()), (1, 2), (), (3, (3,))),
        (context(partition()), (1, 2, 3), (), (-1, (3,))),  # the last member stays
        (context(partition(isr=(1,))), (1,), (), (-1, (1,))),
        (context(partition(isr=(1, 2))), (1, 2), (), (-1, (2,))),
        (context(partition(isr=(1,)), configs=UNCLEAN), (1,), (), (2, (2,))),
        (context(partition(isr=(1, 2)), configs=UNCLEAN), (1, 2), (), (3, (3,))),
        (context(partition()), (), (1,), (2, (2, 3))),
        (context(partition()), (), (2,), (1, (1, 3))),
        (context(partition(isr=(1,))), (), (1,), (-1, (1,))),  # nobody to hand over to
        (context(partition((1,))), (), (1,), (-1, (1,))),
        (context(partition()), (3,), (1,), (2, (2,))),
        (context(partition()), (4,), (), (1, (1, 2, 3))),  # it is not there
        (context(partition(leader=2, isr=(2, 3)), live=(2, 3)), (1,), (), (2, (2, 3))),  # it is dead already
        (context(partition(leader=-1, isr=(1,)), live=(2, 3)), (2,), (), (-1, (1,))),  # without a leader already
        (context(partition(), shutting_down=(2,)), (1,), (), (3, (3,))),  # a broker that is leaving is not elected
    ],
)
def test_who_leads_and_who_is_in_sync_then(given, killed, stopped, then):
    found = predict(given, killed, stopped)
    assert facts(found.then) == then
    assert found.now is given


def test_what_happens_anyway_is_not_of_the_loss():
    """Broker 1 has died, and no controller has decided on it yet."""
    found = predict(context(partition(), partition((2, 3), number=1), live=(2, 3)), killed=(3,))
    assert (facts(found.now), facts(found.settled), facts(found.then)) == ((1, (1, 2, 3)), (2, (2, 3)), (2, (2,)))
    assert facts(found.settled, 1) == (2, (2, 3))


@pytest.mark.parametrize("killed", [(1,), (2,), (1, 2), (2, 3), (1, 2, 3)])
def test_a_controller_that_sees_it_decides_the_same(killed):
    given = context(partition(), partition((2, 3), number=1), partition((3, 1), isr=(3,), number=2))
    predicted = predict(given, killed).then
    active = Active(given)
    active.brokers(gone=killed)
    assert [facts(active.context, n) for n in range(3)] == [facts(predicted, n) for n in range(3)]


def test_brokers_that_stop_together_hand_over_to_others():
    given = context(partition())
    active = Active(given)
    active.shut_down(1, 2)
    active.brokers(gone=(1, 2))
    assert facts(predict(given, stopped=(1, 2)).then) == facts(active.context) == (3, (3,))


def test_a_topic_that_is_being_deleted_is_deleted_and_has_no_other_leader():
    assert facts(predict(context(partition(), deleting=("flights",)), killed=(1,)).then)[0] == LEADER_DURING_DELETE


@pytest.mark.parametrize(
    ("given", "leaders"),
    [
        (context(partition(leader=-1, isr=(1,)), live=(2, 3)), {tp(): 2}),
        (context(partition(leader=-1, isr=(1,)), live=()), {}),
        (context(partition()), {}),
    ],
)
def test_who_leads_after_an_unclean_election(given, leaders):
    assert elect_uncleanly(given) == leaders


@pytest.mark.parametrize(
    ("given", "target", "then"),
    [
        (context(partition((1, 2)), live=(1, 2, 3, 4)), (3, 4), (3, (3, 4), (3, 4))),
        (context(partition((1, 2)), live=(1, 2, 3)), (3, 1), (1, (3, 1), (1, 3))),  # the leader stays
        (context(partition((1, 2, 3))), (2, 3), (2, (2, 3), (2, 3))),  # nobody has to catch up
        (context(partition((1, 2)), live=(1, 2)), (2, 3), (1, (1, 2), (1, 2))),  # refused: broker 3 is dead
        (context(partition((1, 2), leader=-1, isr=(1,)), live=(2, 3)), (2, 3), (-1, (2, 3, 1), (1,))),  # nobody leads
    ],
)
def test_who_leads_after_a_reassignment(given, target, then):
    found = predict_reassignments(given, {"flights-0": target})
    registration = found.then.partitions[tp()]
    assert (registration.leader, registration.replicas, registration.isr) == then
    assert found.now is given


def test_the_context_is_not_changed():
    given = context(partition())
    before = replace(given)
    predict(given, killed=(1,), stopped=(2,))
    assert given == before
