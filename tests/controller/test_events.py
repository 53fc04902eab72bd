"""A controller's event queue, and the event of each kind of request."""

import logging

import pytest

from lakelog.replication.controller.events import (
    EVENT_OF_REQUEST,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerEventManager,
    IsrChangeNotification,
    TopicDeletion,
)
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import AdminRequest
from tests.clock import Clock
from tests.controller.contexts import views


class Handler:
    """Records events, and fails as often as the test says."""

    def __init__(self, failures=0, clock=None):
        self.seen, self.states, self.failures, self.clock = [], [], failures, clock
        self.queue = ControllerEventManager(self, clock or Clock())

    def process_all(self):
        for _ in self.queue.process_all():
            raise AssertionError("these events ask for nothing")

    def __call__(self, event):
        yield from ()
        self.states.append(self.queue.state)
        if self.clock:
            self.clock.now += 0.25
        if self.failures:
            self.failures -= 1
            raise KafkaStorageException("the disk is full")
        self.seen.append(event)


def test_ev_01_events_are_processed_in_order_and_once():
    handler = Handler()
    events = [ControlledShutdown(2), BrokerModifications(), ControlledShutdown(1), IsrChangeNotification()]
    for event in events:
        handler.queue.put(event)
    assert handler.seen == [], "nothing is done where it is put"
    handler.process_all()
    handler.process_all()
    assert handler.seen == events


@pytest.mark.parametrize("failures", [1, 2])
def test_ev_01_cs_07_bc_03_an_event_that_raises_stays_at_the_head(failures):
    handler = Handler(failures)
    handler.queue.put(ControlledShutdown(1))
    handler.queue.put(ControlledShutdown(2))
    for _ in range(failures):
        with pytest.raises(KafkaStorageException):
            handler.process_all()
        assert (handler.seen, handler.queue.state) == ([], "Idle")
    handler.queue.put(ControlledShutdown(3))
    handler.process_all()
    assert handler.seen == [ControlledShutdown(1), ControlledShutdown(2), ControlledShutdown(3)]


def test_ev_01_the_state_of_the_event_manager_is_its_current_event():
    handler = Handler()
    handler.queue.put(BrokerModifications())
    handler.queue.put(ControlledShutdown(1))
    assert handler.queue.state == "Idle"
    handler.process_all()
    assert (handler.states, handler.queue.state) == (["BrokerModifications", "ControlledShutdown"], "Idle")


def test_ev_01_an_equal_waiting_event_is_not_queued_again_but_a_processed_one_is():
    handler = Handler()
    for event in (IsrChangeNotification(), ControlledShutdown(1), IsrChangeNotification(), ControlledShutdown(2)):
        handler.queue.put(event)
    handler.process_all()
    assert handler.seen == [IsrChangeNotification(), ControlledShutdown(1), ControlledShutdown(2)]
    handler.queue.put(IsrChangeNotification())
    handler.process_all()
    assert handler.seen[-1] == IsrChangeNotification()


def test_bc_02_two_polls_with_different_brokers_are_two_events():
    handler = Handler()
    handler.queue.put(BrokerChange(views((1, 2))))
    handler.queue.put(BrokerChange(views((1,))))
    handler.queue.put(BrokerChange(views((1, 2))))
    handler.process_all()
    assert [sorted(event.before) for event in handler.seen] == [[1, 2], [1]]


def test_ev_01_bc_03_how_long_an_event_has_waited_and_taken_is_logged(caplog):
    handler = Handler(clock=Clock())
    handler.queue.put(ControlledShutdown(1))
    handler.clock.now += 2
    with caplog.at_level(logging.DEBUG, "lakelog.replication.controller.events"):
        handler.process_all()
    assert caplog.messages == ["ControlledShutdown: waited 2000 ms, took 250 ms"]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("create_topic", "TopicChange"),
        ("create_partitions", "PartitionModifications"),
        ("alter_configs", "TopicConfigChange"),
        ("alter_broker_configs", "BrokerConfigChange"),
        ("unregister_broker", "BrokerUnregistration"),
        ("delete_topic", "TopicDeletion"),
        ("alter_partition_reassignments", "PartitionReassignment"),
        ("elect_leaders", "ReplicaLeaderElection"),
    ],
)
def test_ev_05_li_02_li_03_li_06_li_07_each_request_is_an_event_of_its_own(kind, event):
    asked = AdminRequest("request-1", kind, {})
    assert type(EVENT_OF_REQUEST[kind](asked)).__name__ == event
    assert EVENT_OF_REQUEST[kind](asked).request is asked
    assert len(EVENT_OF_REQUEST) == 8


def test_li_03_the_same_request_is_queued_once():
    handler = Handler()
    for request_id in ("a", "b", "a"):
        handler.queue.put(TopicDeletion(AdminRequest(request_id, "delete_topic", {"topic": "flights"})))
    handler.process_all()
    assert [event.request.request_id for event in handler.seen] == ["a", "b"]
