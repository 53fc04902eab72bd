"""Simulated controllers run the shipped decisions: they claim, are deposed, crash, pause and return."""

from dataclasses import replace

import pytest

from lakelog.replication.controller import partition_reassignment
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.replication.protocol.topic import Topic
from lakelog.verification.simulation import invariants
from lakelog.verification.simulation.history_events import CRASH, LANDED, PAUSE, RESUME, STEP, Event, Violation
from lakelog.verification.simulation.rule_sabotages import SABOTAGES, swapped
from lakelog.verification.simulation.rules import SHIPPED
from lakelog.verification.simulation.simulated_controller import SimulatedController
from lakelog.verification.simulation.simulated_tables import Admin, Metadata, Topics
from lakelog.verification.simulation.world import World
from lakelog.verification.simulation.world_state import WorldSettings

P0 = PartitionRegistration("numbers", "t1", 0, (1, 2), 1, 3, (1, 2), 5, 2)
MOVING = replace(P0, replicas=(3, 2, 1), adding_replicas=(3,), removing_replicas=(1,))
LIVE = {broker: BrokerView(1) for broker in (1, 2, 3)}


def controlled(world: World, name: str, steps: int = 60) -> SimulatedController:
    """Lets a controller take over and finish its first rounds. With salt 0 it takes over at the first poll."""
    for _ in range(steps):
        world.apply(Event(name))
    found = world.others[name]
    assert isinstance(found, SimulatedController)
    return found


def test_fo_01_a_controller_claims_all_its_tables_before_it_reads_them() -> None:
    world = World(WorldSettings(), SHIPPED)
    world.trace = []
    assert controlled(world, "controller-1").is_at_work
    claimed = [table.at(table.newest).controller_epoch for table in (world.metadata, world.topics, world.admin)]
    assert claimed == [1, 1, 1]
    lines = "\n".join(world.trace)
    assert lines.index("of admin (claim 1)") < lines.index("reads topics, version 1 of 1")


def test_ce_05_a_controller_that_returns_is_refused_and_stands_by() -> None:
    world = World(WorldSettings(), SHIPPED)
    old = controlled(world, "controller-1")
    world.apply(Event("controller-1", PAUSE))
    assert "controller-1" not in world.runnable()
    assert controlled(world, "controller-2").is_at_work
    world.apply(Event("controller-1", RESUME))
    request = AdminRequest("t2", "delete_topic", {"topic": world.topic})
    world.admin.commit(world.admin.newest, Admin((request,), 2), world.step)
    world.trace = []
    for _ in range(10):
        world.apply(Event("controller-1", salt=5))
    assert not old.is_at_work
    assert any("stands by: ControllerMovedException" in line for line in world.trace)
    assert not any("commits version" in line for line in world.trace)


def test_ce_03_a_controller_that_crashes_has_forgotten_everything() -> None:
    world = World(WorldSettings(), SHIPPED)
    old = controlled(world, "controller-1")
    world.apply(Event("controller-1", CRASH))
    assert not world.is_controlled()
    assert world.others["controller-1"] is not old
    assert controlled(world, "controller-1").active is not None
    assert world.metadata.at(world.metadata.newest).controller_epoch == 2


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        (MOVING, replace(P0, replicas=(3, 2), leader=2, isr=(2,)), False),
        (replace(MOVING, isr=(1, 2, 3)), replace(P0, replicas=(3, 2), leader=2, isr=(2, 3)), True),
        (replace(MOVING, isr=(1, 2, 3)), replace(P0, replicas=(2, 3), leader=2, isr=(2, 3)), False),
        (replace(MOVING, isr=(1, 2, 3)), replace(P0, replicas=(3, 2, 1), isr=(2, 3, 1)), False),
        (MOVING, replace(P0, replicas=(2, 1)), True),
        (P0, replace(P0, replicas=(3,)), False),
        (replace(P0, isr=(1,)), replace(P0, replicas=(2, 1), isr=(1,)), True),
        (P0, MOVING, True),
        (P0, replace(P0, replicas=(1,), isr=(1,)), True),
    ],
)
def test_ra_03_a_reassignment_ends_at_its_target(
    before: PartitionRegistration, after: PartitionRegistration, holds: bool
) -> None:
    checker = World(WorldSettings(), SHIPPED).checker
    assert _holds(lambda: invariants.reassignments_end_at_their_target(checker, before, after)) is holds


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        (MOVING, replace(P0, replicas=(3, 2), leader=2, isr=(2,)), False),
        (replace(MOVING, isr=(1, 2, 3)), replace(P0, replicas=(2, 3), leader=2, isr=(2, 3)), True),
        (MOVING, replace(P0, replicas=(2,), leader=2, isr=(2,)), True),
        (replace(MOVING, isr=(1,)), replace(P0, replicas=(2, 1), isr=(1,)), True),
        (replace(MOVING, isr=(1,)), replace(P0, replicas=(4, 1), isr=(1,)), False),
    ],
)
def test_ra_01_one_that_is_replaced_ends_at_once_only_where_nobody_has_to_catch_up(
    before: PartitionRegistration, after: PartitionRegistration, holds: bool
) -> None:
    world = World(WorldSettings(), SHIPPED)
    newest = world.metadata.at(world.metadata.newest)
    assert world.metadata.commit(world.metadata.newest, newest._replace(request="r"), 1)
    ask = invariants.reassignments_end_at_their_target
    assert _holds(lambda: ask(world.checker, before, after)) is holds


@pytest.mark.parametrize(
    ("claim", "written", "holds"), [(2, 2, True), (4, 4, True), (1, 2, False), (3, 1, False)]
)  # fmt: skip
def test_ce_05_controller_epochs_never_go_back(claim: int, written: int, holds: bool) -> None:
    before = Metadata({P0.topic_id_partition: P0}, 2)
    after = Metadata({P0.topic_id_partition: replace(P0, controller_epoch=written)}, claim)
    assert _holds(lambda: invariants.controllers_never_go_back(before, after)) is holds


@pytest.mark.parametrize(
    ("seen", "after", "holds"),
    [
        (LIVE, P0, True),
        ({**LIVE, 2: BrokerView(0)}, P0, False),
        ({**LIVE, 2: BrokerView(0)}, replace(P0, isr=(1,)), False),
        ({**LIVE, 2: BrokerView(0)}, replace(P0, isr=(1,), partition_epoch=6), True),
        ({**LIVE, 2: BrokerView(0)}, replace(P0, leader=2, isr=(2,), partition_epoch=6), True),
        ({**LIVE, 3: BrokerView(0)}, P0, True),
        ({**LIVE, 2: BrokerView(0)}, replace(P0, leader=LEADER_DURING_DELETE), True),
        ({1: BrokerView(1), 3: BrokerView(1)}, P0, True),
    ],
)
def test_bc_02_a_new_broker_epoch_is_a_failure(
    seen: dict[int, BrokerView], after: PartitionRegistration, holds: bool
) -> None:
    contexts = [ControllerContext(1, brokers=LIVE, partitions={P0.topic_id_partition: r}) for r in (P0, after)]
    assert _holds(lambda: invariants.a_new_broker_epoch_is_a_failure(seen, *contexts)) is holds


@pytest.mark.parametrize(("adding", "holds"), [((), True), ((3,), False)], ids=["", "it waits for a reassignment"])
def test_td_05_what_is_queued_for_deletion_stays_as_it_is(adding: tuple[int, ...], holds: bool) -> None:
    row = replace(P0, replicas=(1, 2, *adding), adding_replicas=adding)
    known = ControllerContext(
        1, brokers=LIVE, topics={"numbers": Topic("numbers", "t1", 1, deleting=True)},
        partitions={row.topic_id_partition: row},
    )  # fmt: skip
    seen = {**LIVE, 2: BrokerView(0)}
    assert _holds(lambda: invariants.a_new_broker_epoch_is_a_failure(seen, known, known)) is holds


def _holds(check: object) -> bool:
    assert callable(check)
    try:
        check()
    except Violation:
        return False
    return True


def _raise_if(is_swapped: bool) -> None:
    if is_swapped:
        raise ValueError("in between")


def test_a_swapped_rule_is_put_back_whatever_happens() -> None:
    shipped = partition_reassignment.may_complete
    with pytest.raises(ValueError, match="in between"), swapped(partition_reassignment, "may_complete", lambda _: True):
        _raise_if(partition_reassignment.may_complete is not shipped)
    assert partition_reassignment.may_complete is shipped


def test_the_controllers_rules_are_broken_one_at_a_time() -> None:
    decides = [sabotage.rules.decide for sabotage in SABOTAGES.values() if sabotage.rules.decide is not SHIPPED.decide]
    assert len(set(decides)) == len(decides) >= 5


def _run(world: World, names: str | tuple[str, ...], rounds: int) -> None:
    for salt in range(rounds):
        for name in [name for name in world.runnable() if name.startswith(names)]:
            world.apply(Event(name, salt=4 * salt + 1))


def test_td_04_a_deletion_that_brokers_have_carried_out_before_the_failover_ends() -> None:
    """They report it between the claim and the new controller's first poll, and change nothing afterwards."""
    world = World(WorldSettings(producers=0), SHIPPED)
    world.is_calm = True
    _run(world, "broker", 60)
    topic = world.topics.at(0).topics[world.topic]
    world.topics.commit(0, Topics({world.topic: replace(topic, deleting=True)}), world.step)
    deleted = {p: replace(r, leader=LEADER_DURING_DELETE, leader_epoch=1, partition_epoch=r.partition_epoch + 1)
            for p, r in world.metadata.at(world.metadata.newest).partitions.items()}  # fmt: skip
    world.metadata.commit(world.metadata.newest, Metadata(deleted), world.step)
    while world.metadata.at(world.metadata.newest).controller_epoch == 0:
        world.apply(Event("controller-1", salt=1))
    _run(world, "broker", 60)
    _run(world, "controller-1", 60)
    _run(world, ("broker", "controller-1"), 60)
    assert not world.topics.at(world.topics.newest).topics


@pytest.mark.parametrize("is_half_done", [False, True])
def test_td_03_a_deletion_begun_by_a_commit_without_an_answer_ends(is_half_done: bool) -> None:
    """It is decided anew on what it has written itself: brokers are waited for from that version on, not before it.

    Half done: the last controller has marked the topic, and died.
    """
    world = World(WorldSettings(), SHIPPED)
    world.is_calm = True
    _run(world, ("broker", "producer"), 60)
    assert world.records
    if is_half_done:
        topic = world.topics.at(0).topics[world.topic]
        world.topics.commit(0, Topics({world.topic: replace(topic, deleting=True)}), world.step)
    else:
        request = AdminRequest("t2", "delete_topic", {"topic": world.topic})
        world.admin.commit(0, Admin((request,)), world.step)
    while not (world.is_controlled() and world.others["controller-1"].is_about_to_commit is world.metadata
               and world.metadata.at(world.metadata.newest).controller_epoch):  # fmt: skip
        world.apply(Event("controller-1", salt=1))
        _run(world, "broker", 12)
    world.apply(Event("controller-1", STEP, LANDED, salt=1))
    assert [r.leader for r in world.metadata.at(world.metadata.newest).partitions.values()] == [LEADER_DURING_DELETE]
    _run(world, ("broker", "controller-1"), 60)
    assert not world.topics.at(world.topics.newest).topics
    assert world.metadata.at(world.metadata.newest).controller_epoch == 1
