"""A broker with a broken file: that replica is offline, and the others go on unaffected."""

from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, Role
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.replication.protocol.rounds.role_round import DeleteLogs
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.storage.log.repair import note_repairs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.server.test_replica_manager import FOLLOWED, LED, Fetchers, World, carry_out
from tests.storage.logs import P0, P1, fill, lead, request, send

OTHER = replace(LED, partition=2)
P2 = OTHER.topic_id_partition


@pytest.fixture
def world(root):
    """Broker 1 leads flights-0 and flights-2, and follows flights-1; each has two records in a file of its own."""
    made = World(root)
    lead(made.log, P1, epoch=0)
    fill(made.log, P1, 2)
    made.tell(LED, replace(FOLLOWED, leader_epoch=1, isr=(1, 2)), OTHER)
    made.manager.apply()
    for partition in (P0, P2):
        fill(made.log, partition, 2)
    made.manager.lead()
    made.manager.publish("test")
    made.fetchers.told.clear()
    return made


def file_of(world, partition):
    (batch,) = world.log.refresh().known(partition).batches
    return Path(world.log.root.path(batch.segment))


def harm(world, partition):
    """Removes a file, and lets the broker find out. Returns a function that puts it back."""
    file = file_of(world, partition)
    content = file.read_bytes()
    file.unlink()
    assert world.log.scrub()
    assert world.manager.is_due()
    world.manager.apply()
    assert not world.manager.is_due()
    return lambda: heal(world, file, content)


def heal(world, file, content):
    file.write_bytes(content)
    assert world.log.scrub()
    world.manager.apply()


def shown(world):
    return {p: (row.role, row.state) for p, row in world.table.replicas.items()}


def again(world):
    """The same broker in a new process that a controller has elected again."""
    elected = (replace(r, leader_epoch=r.leader_epoch + 1) for r in world.cache.partitions.values())
    world.tell(*elected, broker_epoch=11)
    log = ReplicaLog.open(world.log.root)
    manager = ReplicaManager(1, 11, log, world.table, world.cache, Fetchers(), 10_000, PausePoint(), world.clock)
    manager.apply()
    return manager


WELL = {P0: ("leader", "Fetching"), P1: ("follower", "Truncating"), P2: ("leader", "Fetching")}


@pytest.mark.parametrize("partition", [P0, P1])
@pytest.mark.parametrize("restarts", [False, True])
def test_ol_01_one_replica_is_offline_and_the_others_go_on(world, partition, restarts):
    name = file_of(world, partition).name
    harm(world, partition)
    manager = again(world) if restarts else world.manager
    assert shown(world) == {**WELL, partition: ("follower", "Offline")}
    error = world.table.replicas[partition].error
    assert error.startswith("KAFKA_STORAGE_ERROR: ")
    assert name in error
    assert manager.offline.names() == (f"flights-id/{partition.partition}",)
    assert {*manager.led()} == {P0, P2} - {partition}
    fill(world.log, P2, 3, epoch=int(restarts))
    assert manager.lead()
    manager.publish("test")
    assert world.table.replicas[P2].log_end_offset == 5


@pytest.mark.parametrize("partition", [P0, P1])
def test_ol_01_a_file_that_is_put_back_brings_its_replica_back(world, partition):
    put_back = harm(world, partition)
    put_back()
    assert shown(world) == WELL
    assert world.table.replicas[partition].error is None
    assert (world.manager.offline.names(), {*world.manager.led()}) == ((), {P0, P2})
    assert world.table.replicas[partition].log_end_offset == 2


def test_ol_01_fm_10_an_offline_replica_is_not_fetched(world):
    put_back = harm(world, P1)
    assert world.fetchers.told == [("stop", (P1,)), ("start", {}), ("idle",)]
    world.fetchers.told.clear()
    put_back()
    started = [what for kind, *what in world.fetchers.told if kind == "start"]
    assert [{*partitions} for (partitions,) in started] == [{P1}]


def test_bl_02_an_offline_replica_takes_up_no_leadership_and_gives_up_its_own(world):
    """The end of a leadership is recorded, to fence producers. A new leadership waits for the file."""
    put_back = harm(world, P0)
    world.tell(replace(LED, leader=2, leader_epoch=1), replace(FOLLOWED, leader_epoch=1), OTHER)
    world.manager.apply()
    assert world.log.refresh().known(P0).role == Role(1, FOLLOWER)
    world.tell(replace(LED, leader_epoch=2), replace(FOLLOWED, leader_epoch=1), OTHER)
    world.manager.apply()
    assert world.log.refresh().known(P0).role == Role(1, FOLLOWER)
    assert shown(world)[P0] == ("follower", "Offline")
    put_back()
    assert world.log.refresh().known(P0).role == Role(2, LEADER)
    assert shown(world) == WELL


@pytest.mark.parametrize("partition", [P0, P1])
@pytest.mark.parametrize("told", ["deleted", "moved away"])
@pytest.mark.parametrize("restarts", [False, True])
def test_sr_02_sr_03_an_offline_replica_can_be_deleted_without_an_error_of_its_broker(world, partition, told, restarts):
    name = file_of(world, partition).name
    harm(world, partition)
    rows = {r.topic_id_partition: r for r in world.cache.partitions.values()}
    row = rows.pop(partition)
    after = {
        "deleted": [replace(row, leader=LEADER_DURING_DELETE, leader_epoch=7)],
        "moved away": [replace(row, replicas=(2, 3), leader=2, leader_epoch=7)],
    }[told]
    world.tell(*rows.values(), *after)
    manager = again(world) if restarts else world.manager
    if not restarts:
        manager.apply()
    state = world.log.refresh()
    assert shown(world) == {p: found for p, found in WELL.items() if p != partition}
    assert (manager.offline.names(), name in state.segments, state.broken) == ((), False, {})
    assert {*manager.led()} == {P0, P2} - {partition}
    assert state.known(partition).role.kind == STOPPED


@pytest.mark.parametrize("restarts", [False, True])
def test_sr_03_a_recreated_topic_is_not_affected_by_the_broken_file_of_the_old_one(world, restarts):
    """The new topic has the same name and another id."""
    harm(world, P0)
    world.tell(replace(LED, leader=LEADER_DURING_DELETE, leader_epoch=7), replace(FOLLOWED, leader_epoch=1), OTHER)
    world.manager.apply()
    made = replace(LED, topic_id="another-id")
    world.tell(made, replace(FOLLOWED, leader_epoch=1), OTHER)
    manager = again(world) if restarts else world.manager
    for _ in range(2):
        manager.apply()
        assert manager.offline.names() == ()
    assert {*manager.led()} == {made.topic_id_partition, P2}


def test_ft_13_sr_02_a_corrupt_page_does_not_stop_a_leader_when_a_replica_is_deleted(world):
    """The rewrite of the file meets it. Only the partitions in that file suffer."""
    lead(world.log, P1, epoch=2)
    send(world.log, request(P0, 2, 2), request(P1, 2, 2, epoch=2))
    file = Path(world.log.root.path(world.log.refresh().known(P1).batches[-1].segment))
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"x" * 600 + content[604:])
    world.tell(LED, replace(FOLLOWED, replicas=(2, 3), leader_epoch=7), OTHER)
    world.manager.apply()
    assert world.log.refresh().known(P1).role.kind == STOPPED
    assert world.manager.is_due()
    world.manager.apply()
    assert set(world.manager.offline.names()) == {f"{P0.topic_id}/{P0.partition}"}
    fill(world.log, P2, 3)
    world.manager.lead()
    world.manager.publish("test")
    assert set(world.manager.led()) == {P2}
    assert world.table.replicas[P2].log_end_offset == 5
    file.write_bytes(content)
    assert world.log.scrub()
    world.manager.apply()
    assert (world.manager.offline.names(), world.log.refresh().known(P1).batches) == ((), [])
    assert {*world.manager.led()} == {P0, P2}


def test_ol_01_a_broken_follower_is_repaired_once_it_is_outside_the_isr(world):
    """In the ISR it may have records that nobody else has. Outside, it fetches again from where its log is whole."""
    name = file_of(world, P1).name
    harm(world, P1)
    assert name in world.log.refresh().segments
    world.fetchers.told.clear()
    world.tell(LED, replace(FOLLOWED, leader_epoch=1, isr=(2,)), OTHER)
    world.manager.apply()
    assert (name in world.log.refresh().segments, world.log.refresh().fault(P1)) == (False, None)
    assert shown(world)[P1] == ("follower", "Offline"), "it counts for nothing until it fetches"
    assert world.manager.is_due()
    world.manager.apply()
    assert shown(world) == WELL
    assert world.table.replicas[P1].log_end_offset == 0
    started = [what for kind, *what in world.fetchers.told if kind == "start"]
    assert P1 in started[-1][0]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"leader": 2, "isr": (1, 2)}, id="it is in the ISR"),
        pytest.param({"leader": -1, "isr": (2,)}, id="nobody leads"),
        pytest.param({"leader": 1, "isr": (2,)}, id="it is to lead"),
        pytest.param({"leader": LEADER_DURING_DELETE, "isr": (2,)}, id="its topic is being deleted"),
    ],
)
def test_ol_01_a_broken_replica_that_may_be_the_last_copy_is_not_truncated(world, changes):
    name = file_of(world, P1).name
    harm(world, P1)
    world.tell(LED, replace(FOLLOWED, leader_epoch=2, **changes), OTHER)
    world.manager.apply()
    world.manager.apply()
    assert name in world.log.refresh().segments or changes["leader"] == LEADER_DURING_DELETE


def test_ol_01_is_05_a_broken_replica_that_joins_the_isr_meanwhile_is_not_truncated(world):
    """The broker has old metadata. The metadata at the commit that keeps it out of the ISR decides."""
    name = file_of(world, P1).name
    followed = replace(FOLLOWED, leader_epoch=1)
    harm(world, P1)
    world.tell(LED, replace(followed, isr=(2,)), OTHER)
    world.before_fence = lambda: world.tell(LED, replace(followed, isr=(1, 2), partition_epoch=1), OTHER)
    world.manager.apply()
    assert world.fenced == [[P1]]
    assert name in world.log.refresh().segments
    world.manager.apply()
    assert (world.fenced, name in world.log.refresh().segments) == ([[P1]], True), "it is known now"


def test_ol_01_is_05_isr_changes_are_fenced_once_each_time_a_replica_goes_offline(world):
    """A file that another replica still needs cannot be dropped yet. The metadata must not change each time."""
    followed = replace(FOLLOWED, leader_epoch=1, isr=(2,))
    send(world.log, request(P0, 2, 2), request(P2, 2, 2))
    world.tell(replace(LED, leader=2, leader_epoch=1, isr=(2,)), followed, replace(OTHER, leader_epoch=1))
    world.manager.apply()
    file = Path(world.log.root.path(world.log.refresh().known(P0).batches[-1].segment))
    content = file.read_bytes()
    for times in (1, 2):
        file.unlink()
        assert world.log.scrub()
        for _ in range(3):
            world.manager.apply()
        assert world.fenced == [[P0]] * times
        heal(world, file, content)


@pytest.fixture
def shared(world):
    """Broker 1 follows all three, P1 outside of the ISR and the others in it. Nobody has read the headers of a broken
    file that P1 shares with P2. The file, and a process that has just started."""
    lead(world.log, P1, epoch=2)
    send(world.log, request(P2, 2, 2), request(P1, 2, 2, epoch=2))
    world.tell(*(replace(r, leader=2, leader_epoch=3) for r in (LED, replace(FOLLOWED, isr=(2,)), OTHER)))
    world.cache.partitions = {p: replace(r, isr=(2,) if p == P1 else (1, 2)) for p, r in world.cache.partitions.items()}
    world.manager.apply()
    name = world.log.refresh().known(P1).batches[-1].segment
    Path(world.log.root.path(name)).unlink()
    log = ReplicaLog.open(world.log.root)
    return (
        name,
        log,
        ReplicaManager(1, 10, log, world.table, world.cache, Fetchers(), 10_000, PausePoint(), world.clock),
    )


def forget(log):
    """Makes the log state forget the partitions that it was asked about."""
    log.current()._partitions.pop(P2, None)


def test_ol_01_broken_files_of_a_partition_in_the_metadata_are_not_deleted(world, shared):
    name, log, manager = shared
    world.before_fence = lambda: forget(log)
    manager.apply()
    assert world.fenced == [[P1]]
    assert name in log.refresh().segments


def test_sr_03_a_broken_file_is_deleted_only_if_the_metadata_assign_none_of_its_partitions(shared):
    name, log, manager = shared
    log.become({P1: Role(3, STOPPED)}, "test")
    forget(log)
    carry_out(manager, DeleteLogs(()))
    assert name in log.refresh().segments


@pytest.mark.parametrize("restarts", [False, True])
def test_ol_01_a_follower_with_noted_records_is_repaired_outside_the_isr(world, restarts):
    """Each step is one commit, and the next process goes on after each."""
    note_repairs(ReplicaLog.open(world.log.root), {P1: (1, 0)}, "an operator")
    world.log.refresh()
    assert world.manager.is_due()
    manager = again(world) if restarts else world.manager
    epoch = 1 + restarts
    manager.apply()
    assert shown(world)[P1] == ("follower", "Offline")
    assert "wrong records from offset 0 on" in world.table.replicas[P1].error
    assert (manager.offline.names(), len(world.log.refresh().known(P1).batches)) == (("flights-id/1",), 1)
    world.tell(*_led_again(restarts), replace(FOLLOWED, leader_epoch=epoch + 1, isr=(2,)), broker_epoch=10 + restarts)
    manager.apply()
    assert world.log.refresh().known(P1).batches == []
    manager.apply()
    assert (shown(world)[P1], manager.offline.names()) == (("follower", "Truncating"), ())


def _led_again(restarts):
    return (replace(each, leader_epoch=each.leader_epoch + restarts) for each in (LED, OTHER))


@pytest.mark.parametrize("leader", [-1, 1])
def test_ol_01_noted_records_do_not_take_a_replica_offline_that_nobody_else_leads(world, leader):
    """It may be the only one that is left: it can be elected, and then keeps what it has."""
    note_repairs(world.log, {P1: (1, 0)}, "an operator")
    world.tell(LED, replace(FOLLOWED, leader=leader, leader_epoch=2, isr=(1,)), OTHER)
    world.manager.apply()
    assert (world.manager.offline.names(), len(world.log.refresh().known(P1).batches)) == ((), 1)
    world.tell(LED, replace(FOLLOWED, leader=1, leader_epoch=3, isr=(1,)), OTHER)
    world.manager.apply()
    assert (P1 in world.manager.led(), world.log.refresh().to_repair) == (True, frozenset())
