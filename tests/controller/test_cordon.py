"""Cordoned brokers get no new replica, whatever a request asks for, and lose nothing. KIP-1066."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.topic import Entity
from tests.controller.contexts import Active, changed, context, errors, partition
from tests.controller.world import World

CORDON = {"cordoned.log.dirs": "*"}


def cordoned(*brokers, live=(1, 2, 3, 4), partitions=()):
    active = Active(context(*partitions, live=live))
    configs = {Entity("brokers", str(broker)): CORDON for broker in brokers}
    active.context = replace(active.context, configs=configs)
    return active


def held(decision):
    return {broker for registration in decision.changed.values() for broker in registration.replicas}


def refused(decision, error, *words):
    (outcome,) = decision.outcomes.values()
    assert (outcome.error, decision.changed, decision.topics) == (error, {}, {})
    assert all(word in outcome.message for word in words), outcome.message


def test_tm_02_a_cordoned_broker_gets_no_replica_of_a_new_topic_or_partition():
    active = cordoned(3)
    assert held(active.ask("create_topic", topic="new", partitions=20, replication_factor=3)) == {1, 2, 4}
    more = active.ask("create_partitions", "more", topic="new", total=40)
    assert (len(more.changed), held(more)) == (20, {1, 2, 4})


def test_tm_02_the_cordon_is_set_and_lifted_by_a_request():
    active = cordoned()
    set_it = active.ask("alter_broker_configs", broker="3", put=CORDON, delete=[])
    assert (set_it.outcomes["3"].message, set_it.touches_metadata) == ("cordoned.log.dirs=*", False)
    create = {"topic": "new", "partitions": 8, "replication_factor": 4}
    assert errors(active.ask("create_topic", **create)) == {"new": "InvalidReplicationFactorException"}
    active.fail_over()
    active.context = replace(active.context, configs={Entity("brokers", "3"): CORDON})  # as the next one reads it
    assert errors(active.ask("create_topic", **create)) == {"new": "InvalidReplicationFactorException"}
    active.ask("alter_broker_configs", broker="3", put={}, delete=["cordoned.log.dirs"])
    assert held(active.ask("create_topic", **create)) == {1, 2, 3, 4}


@pytest.mark.parametrize("value", ["/data", "1", "*,/data"])
def test_tm_02_a_broker_has_one_root_so_it_is_cordoned_as_a_whole(value):
    decision = cordoned().ask("alter_broker_configs", broker="3", put={"cordoned.log.dirs": value}, delete=[])
    words = f"broker 3: cordoned.log.dirs is {value!r}, it must be * for the root of the broker, or empty"
    assert decision.outcomes["3"].message == words


def test_tm_02_too_few_uncordoned_brokers_are_named():
    words = "replication factor 3 is larger than the 2 available brokers; cordoned, so without new replicas: 3, 4 "
    asked = {"topic": "new", "partitions": 1, "replication_factor": 3}
    refused(cordoned(3, 4).ask("create_topic", **asked), "InvalidReplicationFactorException", words)
    active = cordoned(3, 4, partitions=[partition((1, 2, 3))])
    more = active.ask("create_partitions", topic="flights", total=2)
    refused(more, "InvalidReplicationFactorException", words)


@pytest.mark.parametrize("kind", ["create_topic", "create_partitions"])
def test_tm_02_an_assignment_by_hand_to_a_cordoned_broker_is_refused(kind):
    active = cordoned(3, partitions=[partition((1, 2))])
    asked = {"create_topic": {"topic": "new", "assignment": {"0": [1, 2], "1": [2, 3]}},
             "create_partitions": {"topic": "flights", "total": 2, "assignment": {"1": [2, 3]}}}[kind]  # fmt: skip
    words = "partition 1 gets replicas on 2, 3: 3 cordoned (cordoned.log.dirs), so without new replicas"
    refused(active.ask(kind, **asked), "InvalidReplicaAssignmentException", words)


def test_tm_02_ra_01_no_reassignment_adds_a_replica_on_a_cordoned_broker():
    active = cordoned(3, partitions=[partition((1, 2))])
    decision = active.ask("alter_partition_reassignments", reassignments={"flights-0": [1, 3]})
    refused(decision, "InvalidReplicaAssignmentException", "partition 0 gets replicas on 3: 3 cordoned")


@pytest.mark.parametrize("target", [(3, 1, 2), (3,), (1, 3, 4), (4, 3)], ids=["first", "alone", "another comes", "two"])
def test_tm_02_ra_01_a_replica_stays_on_a_cordoned_broker_in_any_place_of_the_list(target):
    active = cordoned(3, partitions=[partition((1, 2, 3))])
    decision = active.ask("alter_partition_reassignments", reassignments={"flights-0": list(target)})
    assert errors(decision) == {"flights-0": None}


def test_tm_02_ra_01_a_move_that_has_begun_ends_on_a_broker_that_is_cordoned_since():
    moving = partition((4, 1, 2), 1, (1, 2), adding=(4,), removing=(2,))
    active = cordoned(4, partitions=[moving])
    again = active.ask("alter_partition_reassignments", reassignments={"flights-0": [1, 4]})
    assert errors(again) == {"flights-0": None}
    active.isr(1, 2, 4)
    active.fail_over()
    assert (active.row().replicas, active.row().adding_replicas) == ((1, 4), ())


def test_tm_02_a_cordoned_broker_goes_on_leading_and_is_elected():
    active = cordoned(1, 2, partitions=[partition((1, 2, 3))])
    assert active.fail_over().changed == {}
    assert changed(active.brokers(gone=(1,))) == {"flights-0": (2, (2, 3))}


@pytest.mark.parametrize("cordons_first", [True, False])
@pytest.mark.parametrize("fails_over", [True, False])
def test_tm_02_a_topic_and_a_cordon_of_one_moment_are_decided_in_their_order(root, cordons_first, fails_over):
    """Both wait when a controller looks, or one is carried out and the next controller finds the other."""
    world = World(root)
    asked = [
        AdminRequest("cordon", "alter_broker_configs", {"broker": "3", "put": CORDON, "delete": []}),
        AdminRequest("topic", "create_topic", {"topic": "new", "partitions": 1, "replication_factor": 3}),
    ]
    for request in asked if cordons_first else reversed(asked):
        world.cluster.admin.add(request)
        if fails_over:
            world.poll(1, 2, 3, after=0.0)
            world.fail_over()
    world.poll(1, 2, 3, after=0.0)
    world.cluster.admin.refresh()
    found = {r.request_id: [o.error for o in r.outcomes.values()] for r in world.cluster.admin.requests}
    refused = "InvalidReplicationFactorException" if cordons_first else None
    assert found == {"cordon": [None], "topic": [refused]}
    assert len(world.all()) == (1 if cordons_first else 2)
