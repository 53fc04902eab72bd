"""A request's steps through a controller: no request stops the controller."""

import time

import pytest

from lakelog.replication.controller import active_controller, topic_requests
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.decision import DecisionInterrupted
from lakelog.replication.controller.events import TopicChange
from lakelog.replication.controller.term import ChangeMetadata
from lakelog.replication.protocol.admin_request import APPLYING, DECIDING, PENDING, AdminRequest, Outcome
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.verification.memory_root import MemoryStore
from tests.controller.contexts import Active, context, errors, partition, request
from tests.controller.world import World


@pytest.fixture
def world(root):
    return World(root)


def ask(world, request_id="request", validate_only=False, timeout_ms=-1, kind="create_topic", **arguments):
    given = arguments or {"topic": request_id, "assignment": {"0": [1]}}
    row = AdminRequest(request_id, kind, given, validate_only, "test", timeout_ms=timeout_ms)
    world.cluster.admin.add(row)


def outcome(world, request_id="request"):
    """The error's name, `done`, None while the request is undecided, or `no row` if the row is gone."""
    world.cluster.admin.refresh()
    found = world.cluster.admin.request(request_id)
    if found is None:
        return "no row"
    return found.outcomes and next(told.error or "done" for told in found.outcomes.values())


def made(world):
    world.cluster.topics.refresh()
    return sorted(world.cluster.topics.topics.keys() - {"flights"})


def test_tc_01_a_request_may_name_a_broker_that_has_just_registered_in_an_object_store():
    """There the controller lists the registrations only now and then, and anew for a request."""
    with MemoryStore("requests").opened() as store:
        world = World(store.uri)
        world.controller.poll()
        world.beats[4] = BrokerTable.open_or_create(world.cluster.root, 4)
        world.register(4, epoch=1)
        world.controller.poll()
        assert 4 not in world.controller.context.brokers
        ask(world, topic="late", assignment={"0": [4]})
        world.controller.poll()
        assert outcome(world) == "done"


@pytest.mark.parametrize("arguments", ["{not json", '["topic", "t"]', "null", "3", '{"topic": ["t"]}'])
def test_ev_01_an_unreadable_row_is_answered_and_delays_no_other(world, arguments):
    ask(world, "bad")
    world.cluster.admin.update({"who": "test"}, lambda rows: [{**rows[-1], "arguments": arguments}])
    ask(world, "good")
    world.controller.poll()
    assert (outcome(world, "bad"), outcome(world, "good"), made(world)) == (
        "InvalidRequestException", "done", ["good"],
    )  # fmt: skip


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), TypeError("Expected integer, got bool")])
@pytest.mark.parametrize("place", ["decided", "written"])
def test_ev_01_a_request_that_fails_unexpectedly_is_answered_and_delays_no_other(world, monkeypatch, error, place):
    def fail(*_args, **_options):
        raise error

    ask(world, "bad")
    ask(world, "good", kind="alter_configs", topic="flights", put={}, delete=[])
    with monkeypatch.context() as patched:
        if place == "decided":
            patched.setattr(topic_requests, "check_topic_name", fail)
        else:
            patched.setitem(world.controller._handlers, ChangeMetadata, fail)
        world.controller.poll()
    assert (outcome(world, "bad"), outcome(world, "good")) == ("UnknownServerException", "done")


def test_ev_05_a_request_of_too_many_partitions_is_refused_before_its_plan_is_built(world, monkeypatch):
    """The client that wrote the row did not check it."""
    monkeypatch.setattr(topic_requests, "assign_replicas", None)
    for validate_only in (False, True):
        name = f"large-{validate_only}"
        ask(world, name, validate_only, topic="t", partitions=10_000_000, replication_factor=3)
        world.controller.poll()
        assert outcome(world, name) == "PolicyViolationException"
    ask(world, "more", kind="create_partitions", topic="flights", total=10_000_000)
    world.controller.poll()
    assert outcome(world, "more") == "PolicyViolationException"


@pytest.mark.parametrize(
    ("kind", "limits", "given", "error"),
    [
        ("create_partitions", {"lakelog_max_partitions_per_request": 2}, {"total": 3}, None),
        ("create_partitions", {"lakelog_max_partitions_per_request": 2}, {"total": 4}, "PolicyViolationException"),
        ("create_topic", {"lakelog_max_partitions_per_topic": 2, "num_partitions": 2}, {}, None),
        ("create_topic", {"lakelog_max_partitions_per_topic": 2, "num_partitions": 3}, {}, "PolicyViolationException"),
    ],
)
def test_ev_05_the_controller_bounds_requests_that_clients_cannot_check(kind, limits, given, error):
    name = "flights" if kind == "create_partitions" else "new"
    active = Active(context(partition((1,)), **limits))
    assert errors(active.ask(kind, topic=name, **given)) == {name: error}


def test_li_06_a_request_that_waits_longer_than_its_client_is_refused(world):
    ask(world, "short", timeout_ms=5000)
    ask(world, "long", timeout_ms=60_000)
    ask(world, "begun", timeout_ms=5000)
    world.cluster.admin.move("begun", APPLYING, 1)
    requests = world.controller.requests
    assert [asked.request_id for asked in requests.poll()] == ["short", "long", "begun"]
    world.clock.now += 5
    assert [asked.request_id for asked in requests.poll()] == ["long", "begun"]
    assert outcome(world, "short") == "TimeoutException"


@pytest.mark.parametrize(("hours", "expected"), [(-1, "TimeoutException"), (1, "done")])
def test_li_06_a_request_of_a_client_that_was_killed_while_there_was_no_controller_is_refused(world, hours, expected):
    """Days later another controller finds it. A client that still waits is answered."""
    deadline_ms = int((time.time() + hours * 3600) * 1000)
    row = AdminRequest("old", "create_topic", {"topic": "old", "assignment": {"0": [1]}}, deadline_ms=deadline_ms)
    world.cluster.admin.add(row)
    world.controller.poll()
    assert (outcome(world, "old"), made(world)) == (expected, ["old"] if expected == "done" else [])


def test_li_06_no_wrong_clock_refuses_a_request_that_comes_during_a_term(world):
    world.controller.poll()
    world.cluster.admin.add(
        AdminRequest("t", "create_topic", {"topic": "t", "assignment": {"0": [1]}}, deadline_ms=1, timeout_ms=5000)
    )
    world.controller.poll()
    assert outcome(world, "t") == "done"


def test_li_06_a_request_whose_turn_comes_too_late_is_refused(world):
    ask(world, timeout_ms=5000)
    (asked,) = world.controller.requests.poll()
    world.clock.now += 5
    carry_out(world.controller._term._process(TopicChange(asked)), world.controller._handlers)
    assert (outcome(world), made(world)) == ("TimeoutException", [])


@pytest.mark.parametrize("at", [DECIDING, APPLYING])
@pytest.mark.parametrize("validate_only", [False, True])
def test_li_06_a_request_that_is_withdrawn_meanwhile_is_not_carried_out(world, monkeypatch, at, validate_only):
    ask(world, validate_only=validate_only)
    gone, move = Outcome("TimeoutException", "gone"), AdminTable.move

    def withdraw_first(table, request_id, state, epoch):
        if state == at:
            world.cluster.admin.withdraw(request_id, gone, "test")
        return move(table, request_id, state, epoch)

    monkeypatch.setattr(AdminTable, "move", withdraw_first)
    world.controller.poll()
    expected = "no row" if validate_only else "TimeoutException"
    assert (outcome(world), made(world)) == ("done" if validate_only and at == APPLYING else expected, [])


def test_a_dry_run_is_never_applied_and_its_unfetched_answer_is_removed(world):
    ask(world, validate_only=True, timeout_ms=5000)
    world.controller.poll()
    assert (outcome(world), made(world)) == ("done", [])
    world.clock.now += 29
    world.controller.poll()
    assert outcome(world) == "done", "not before the time-out of requests"
    world.clock.now += 2
    world.controller.poll()
    assert outcome(world) == "done", "it was seen decided at the poll before the last one"
    world.clock.now += 30
    world.controller.poll()
    assert outcome(world) == "no row"


def test_li_01_a_broken_registration_delays_no_other_broker(world):
    world.beats[3].heartbeat(1, "garbage", offline_partitions=("garbage",))
    ask(world)
    world.poll(1, 2)
    assert (outcome(world), world.partition()[:2]) == ("done", (1, (1, 2))), "it is dead, as it says nothing any more"


def test_li_02_le_03_ra_01_a_broker_that_is_dead_is_registered_all_the_same(world):
    """Topics may be created on it, and its partitions may be reassigned."""
    world.poll(1, 2)
    ask(world, "over-it", topic="t", assignment={"0": [3, 1]})
    for request_id, target in (("stays", [1, 3]), ("stays-again", [2, 3])):
        ask(world, request_id, kind="alter_partition_reassignments", reassignments={"flights-0": target})
        world.poll(1, 2, after=1.0)
    world.cluster.admin.refresh()
    found = {name: world.cluster.admin.request(name).outcomes for name in ("over-it", "stays", "stays-again")}
    assert [told.error for outcomes in found.values() for told in outcomes.values()] == [None, None, None]
    made_of_t = [(r.leader, r.isr) for r in world.all().values() if r.topic == "t"]
    assert made_of_t == [(1, (1,))]


def test_ce_02_every_step_of_a_decision_renews_a_due_lease():
    steps = []
    event = request("create_topic", topic="t", partitions=100, replication_factor=3)
    decide(context(), event, lambda: steps.append(1))
    assert len(steps) >= 100 * (1 + 3)

    def interrupt():
        raise DecisionInterrupted("told to stop")

    for kind, arguments in (
        ("create_topic", {"topic": "t", "partitions": 1}),
        ("elect_leaders", {"election_type": "preferred", "partitions": ["none-0"]}),
    ):
        with pytest.raises(DecisionInterrupted):
            decide(context(), request(kind, **arguments), interrupt)


class Slow:
    """A decision that takes `steps` seconds on the world's clock. An event may happen at each second."""

    def __init__(self, monkeypatch, world, steps, at_each=lambda: None):
        def decide_slowly(known, event, keep_lease):
            for _ in range(steps if hasattr(event, "request") else 0):
                world.clock.now += 1
                at_each()
                keep_lease()
            return decide(known, event, keep_lease)

        monkeypatch.setattr(active_controller, "decide", decide_slowly)


def controllers(world):
    """Two controllers on the world's clock. The first is active."""
    both = [Controller(Cluster.open(world.cluster.root.uri), name, world.clock) for name in ("a", "b")]
    both[0].tick()
    both[1].tick()
    assert [controller.is_active for controller in both] == [True, False]
    return both


def test_ce_02_a_decision_that_takes_longer_than_the_session_keeps_the_lease(world, monkeypatch):
    a, b = controllers(world)
    ask(world)
    Slow(monkeypatch, world, 20, at_each=b.tick)
    a.tick()
    assert (outcome(world), a.is_active, b.is_active) == ("done", True, False)


def test_ce_02_li_06_a_decision_without_a_renewed_lease_is_given_up_and_not_made_by_the_next_controller(
    world, monkeypatch
):
    a, b = controllers(world)
    ask(world)
    monkeypatch.setattr(a, "_is_renewal_due", lambda: False)
    with monkeypatch.context() as patched:
        Slow(patched, world, 20, at_each=lambda: b.is_active or b.tick())
        a.round()
    b.tick()
    assert (a.is_active, b.is_active) == (False, True)
    assert (outcome(world), made(world)) == ("InvalidRequestException", [])


def test_ce_05_a_controller_that_finds_its_lease_lost_in_the_middle_of_a_decision_stands_by(world, monkeypatch):
    a, b = controllers(world)
    ask(world)

    def depose():
        monkeypatch.undo()
        b._cluster.lease.elect("b", b._cluster.lease.read())

    Slow(monkeypatch, world, 3, at_each=depose)
    a.round()
    assert not a.is_active
    assert world.cluster.admin.refresh()
    assert world.cluster.admin.request("request").state == DECIDING


def test_ce_06_a_stopped_controller_gives_up_its_decision_and_the_next_one_makes_it(world, monkeypatch):
    a, b = controllers(world)
    ask(world)
    with monkeypatch.context() as patched:
        Slow(patched, world, 1, at_each=a._waiter.stop)
        a.round()
    world.cluster.admin.refresh()
    assert world.cluster.admin.request("request").state == DECIDING
    a._thread.start()
    a.stop()
    world.cluster.admin.refresh()
    assert world.cluster.admin.request("request").state == PENDING
    b.tick()
    b.tick()
    assert (b.is_active, outcome(world), made(world)) == (True, "done", ["request"])


def test_ce_06_a_controller_that_does_not_end_in_time_resigns_and_its_decision_is_not_made_again(world, monkeypatch):
    a, b = controllers(world)
    ask(world)
    world.cluster.admin.move("request", DECIDING, 1)
    monkeypatch.setattr(a._thread, "join", lambda _: None)
    monkeypatch.setattr(a._thread, "is_alive", lambda: True)
    a.stop()
    b.tick()
    b.tick()
    assert (b.is_active, outcome(world)) == (True, "InvalidRequestException")


def test_fo_01_a_failover_with_an_unexpected_error_resigns(world, monkeypatch):
    def fail(*_args, **_options):
        raise RuntimeError("a bug")

    a = Controller(Cluster.open(world.cluster.root.uri), "a", world.clock)
    with monkeypatch.context() as patched:
        patched.setattr(active_controller, "decide", fail)
        a.round()
    assert (a.is_active, world.cluster.lease.read().resigned) == (False, True)
    assert BrokerTable.open(world.cluster.root, 1).registration is not None
