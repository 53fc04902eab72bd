"""The replica manager carries out steps in order, and may be killed between any two."""

import contextlib
import dataclasses
import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import KafkaStorageException, NotLeaderOrFollowerException
from lakelog.replication.protocol import fetch_state
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.fetch_state import InitialFetchState, PartitionFetchState
from lakelog.replication.protocol.isr import fence_isr_changes
from lakelog.replication.protocol.log_retention import retention_offset
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, STOPPED, Role
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import FollowHighWatermarks
from lakelog.replication.protocol.rounds.role_round import HostPartitions, StopIdleFetchers
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_stray_logs, truncate_logs
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.clock import Clock
from tests.processes import wait_until
from tests.registrations import joined
from tests.storage.logs import P0, P1, fill, lead, new_log, request, send, truncate

LED = PartitionRegistration("flights", "flights-id", 0, (1, 2), 1, 0, (1,))
FOLLOWED = PartitionRegistration("flights", "flights-id", 1, (1, 2), 2, 0, (2,))


class Fetchers:
    """Records its calls, and may end the broker at one of its steps."""

    def __init__(self):
        self.told = []

    def remove_fetcher_for_partitions(self, partitions):
        self.told.append(("stop", tuple(partitions)))

    def add_fetcher_for_partitions(self, partitions):
        self.told.append(("start", dict(partitions)))

    def shutdown_idle_fetchers(self):
        self.told.append(("idle",))

    def fetch_states(self):
        return {}


class World:
    """Broker 1 with its log and its `replicas`. The test gives the metadata."""

    def __init__(self, root, pause_point=None):
        self.storage = StorageRoot.of(root)
        self.log = new_log(self.storage.child("log"))
        self.table = ReplicaTable.create(self.storage)
        self.fetchers, self.pause_point, self.clock = Fetchers(), pause_point or PausePoint(), Clock()
        self.wanted = []
        self.cache = SimpleNamespace(
            version=7, brokers=dict, alive_brokers=set, min_isr=lambda _: 1, topics={},
            listener=SimpleNamespace(wake=lambda: None),
            replica_table=self.unreachable, alter_partitions=self.alter_partitions,
            fence_isr_changes=self.fence_isr_changes,
        )  # fmt: skip
        self.fenced = []
        self.before_fence = lambda: None
        self.tell(LED, FOLLOWED)
        self.manager = ReplicaManager(
            1, 10, self.log, self.table, self.cache, self.fetchers, 10_000, self.pause_point, self.clock
        )  # fmt: skip

    def tell(self, *registrations, broker_epoch=10):
        """The metadata that a controller has written when the process with this broker epoch was registered."""
        self.cache.partitions = {r.topic_id_partition: joined(r, broker_epoch) for r in registrations}

    def unreachable(self, broker):
        raise KafkaStorageException(f"the root of broker {broker} cannot be reached")

    def alter_partitions(self, changes, _who):
        self.wanted += [change.isr for change in changes]
        return {}

    def fence_isr_changes(self, partitions, broker):
        self.fenced.append(list(partitions))
        self.before_fence()
        after = {p: fence_isr_changes(self.cache.partitions.get(p), broker) for p in partitions}
        return {p for p, registration in after.items() if registration is not None}

    def new_process(self):
        """A new process of the same broker, with what it finds in the tables."""
        self.log, self.table = ReplicaLog.open(self.log.root), ReplicaTable.open(self.storage)
        return ReplicaManager(1, 11, self.log, self.table, self.cache, Fetchers(), 10_000, PausePoint(), self.clock)

    def role(self, partition):
        return self.log.refresh().partition(partition).role


@pytest.fixture
def world(root):
    return World(root)


def test_bl_03_bl_05_bl_06_roles_are_taken_up_in_the_log_in_the_rows_and_by_fetchers(world):
    world.manager.apply()
    assert (world.role(P0), world.role(P1)) == (Role(0, LEADER), Role(0, FOLLOWER))
    rows = world.table.replicas
    assert {p: (row.role, row.state) for p, row in rows.items()} == {
        P0: ("leader", "Fetching"),
        P1: ("follower", "Truncating"),
    }
    assert world.fetchers.told == [
        ("stop", (P0, P1)),
        ("start", {P1: InitialFetchState("flights", 2, 0, 0)}),
        ("idle",),
    ]


def carry_out(manager, *steps):
    """Carries out the steps, as the broker's own round does."""
    manager._carry_out(step for step in steps)


class KilledAtStep(PausePoint):
    """Ends the broker at the step with that number."""

    def __init__(self, number):
        super().__init__()
        self._left = number

    def pass_through(self):
        if self._left == 0:
            self.kill()
        self._left -= 1
        super().pass_through()


@pytest.mark.parametrize("number", range(9))
def test_bl_03_a_broker_may_be_ended_before_each_step_and_begins_again_where_it_was(root, number):
    """Read, stop, roles, host, publish, start, idle: what comes after is not done; a new process that is elected comes
    to the same end."""
    world = World(root, KilledAtStep(number))
    if number < 8:
        with pytest.raises(BrokerKilled):
            world.manager.apply()
    else:
        world.manager.apply()
    assert world.role(P0) == (Role(0, LEADER) if number > 2 else Role(-1, STOPPED))
    assert (P0 in world.table.replicas) == (number > 4)
    assert [told[0] for told in world.fetchers.told] == ["stop", "start", "idle"][: (number > 1) + max(0, number - 5)]
    world.tell(dataclasses.replace(LED, leader_epoch=1), FOLLOWED, broker_epoch=11)
    world.new_process().apply()
    assert {p: (row.role, row.broker_epoch) for p, row in world.table.replicas.items()} == {
        P0: ("leader", 11),
        P1: ("follower", 11),
    }


@pytest.mark.parametrize("has_its_log", [True, False])
def test_bc_01_a_new_process_does_not_lead_on_before_a_controller_has_elected_it_again(world, has_its_log):
    """Its log accepts nothing under the former process's epoch, and its row does not say leader."""
    if has_its_log:
        world.manager.apply()
        fill(world.log, P0, 5)
        world.manager.lead()
        world.manager.publish("test")
    again = world.new_process()
    for _ in range(2):
        again.apply()
        assert (again.leads(), again.lead()) == ([], False)
        (refused,) = send(world.log, request(P0, 1, epoch=0))
        assert isinstance(refused, NotLeaderOrFollowerException)
    row = world.table.replicas[P0]
    assert (row.role, row.leader_epoch, row.broker_epoch) == ("follower", 0, 11)
    assert world.role(P0) == Role(0, FENCED if has_its_log else FOLLOWER)
    world.tell(dataclasses.replace(LED, leader_epoch=1), FOLLOWED, broker_epoch=11)
    again.apply()
    fill(world.log, P0, 1, epoch=1)
    again.lead()
    again.publish("test")
    row = world.table.replicas[P0]
    assert (row.role, row.leader_epoch, row.high_watermark) == ("leader", 1, 1 + 5 * has_its_log)


def test_bl_08_an_unchanged_role_writes_nothing(world):
    world.manager.apply()
    version, told = world.log.refresh().version, len(world.fetchers.told)
    world.manager.apply()
    assert world.log.refresh().version == version
    assert [name for name, *_ in world.fetchers.told[told:]] == ["start", "idle"]


def test_bl_09_a_broker_that_shuts_down_takes_up_roles_but_fetches_nothing_new(world):
    world.manager.shutting_down()
    world.manager.apply()
    assert (world.role(P0), world.role(P1)) == (Role(0, LEADER), Role(0, FOLLOWER))
    assert [told[0] for told in world.fetchers.told] == ["stop", "idle"]


def test_bl_11_after_a_failed_commit_of_roles_the_next_round_takes_them_up(world, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise KafkaStorageException("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ReplicaLog, "become", refuse)
        with pytest.raises(KafkaStorageException, match="full"):
            world.manager.apply()
    assert (world.table.replicas, world.manager.leads()) == ({}, [])
    world.manager.apply()
    assert world.manager.leads() == [joined(LED, 10)]


def test_bl_12_every_change_of_a_role_is_logged(world, caplog):
    with caplog.at_level(logging.INFO, "state.change.logger"):
        world.manager.apply()
        world.tell(LED, dataclasses.replace(FOLLOWED, replicas=(2,), leader_epoch=1))
        world.manager.apply()
        world.tell()
        world.manager.apply()
    assert [record.getMessage() for record in caplog.records if record.name == "state.change.logger"] == [
        "broker 1: flights-0 is leader under leader epoch 0 (controller epoch 0, leader 1)",
        "broker 1: flights-1 is follower under leader epoch 0 (controller epoch 0, leader 2)",
        "broker 1: flights-1 is stopped under leader epoch 1 (controller epoch 0, leader 2)",
        f"broker 1: {P0} is stray under leader epoch 0 (controller epoch -, leader -)",
    ]


def stray(world):
    """The world in which the cluster's tables were replaced by empty ones while broker 1 led P0 and followed P1."""
    world.manager.apply()
    fill(world.log, P0, 3)
    world.manager.lead()
    world.manager.publish("test")
    assert world.table.replicas[P0].high_watermark == 3
    world.tell()
    world.manager.apply()
    return world.log.refresh()


def shown(world):
    return {p: (row.role, row.state, row.log_end_offset, row.high_watermark) for p, row in world.table.replicas.items()}


STRAY = {P0: ("follower", "Stray", 3, 3), P1: ("follower", "Stray", 0, 0)}


def test_sr_02_a_stray_replica_takes_no_records_keeps_its_own_and_is_published(world, caplog):
    state = stray(world)
    assert [state.known(p).role.name for p in (P0, P1)] == ["stray", "stray"]
    assert shown(world) == STRAY
    assert (world.manager.led(), world.manager.is_due()) == ({}, False)
    (refused,) = send(world.log, request(P0, 1, 3))
    assert isinstance(refused, NotLeaderOrFollowerException)
    version = state.version
    for _ in range(2):
        world.manager.apply()
    raise_log_starts(world.log, {P0: lambda log: retention_offset(log, 0, 10**18, 0, 0)}, "test", "retention")
    assert delete_old_segments(world.log, 10**18, "test") is None
    assert world.log.refresh().version == version
    (said,) = [r.getMessage() for r in caplog.records if "no metadata explain" in r.getMessage()]
    assert "no metadata explain 2 replicas any more" in said
    assert "flights-0, flights-1" in said


@pytest.mark.parametrize("restarts", [False, True])
def test_sr_02_a_stray_replica_is_taken_back_when_the_metadata_explain_it_again(world, restarts):
    """The same process leads on at the same epoch; a new one waits for a controller."""
    stray(world)
    manager = world.new_process() if restarts else world.manager
    if restarts:
        manager.apply()
    assert shown(world) == STRAY
    world.tell(LED, FOLLOWED)
    manager.apply()
    state = world.log.refresh()
    assert state.known(P0).role == Role(0, FENCED if restarts else LEADER)
    assert state.known(P1).role == Role(0, FOLLOWER)
    assert (state.known(P0).log_end_offset, state.known(P0).epoch_start) == (3, 0)
    assert (shown(world)[P0][0], shown(world)[P0][2:]) == ("follower" if restarts else "leader", (3, 3))
    if not restarts:
        fill(world.log, P0, 1)


def test_sr_02_an_empty_cluster_takes_no_file_even_from_a_broken_log(world):
    stray(world)
    (segment,) = world.log.refresh().segments
    file = Path(world.log.root.path(segment))
    content = file.read_bytes()
    file.write_bytes(content[:-8] + b"xxxxxxxx")
    world.log.report_broken(segment, "test")
    for manager in (world.manager, world.new_process()):
        manager.apply()
        assert segment in world.log.refresh().segments
    file.write_bytes(content)


def test_sr_03_a_stray_replica_that_was_deleted_by_hand_leaves_the_isr_before_it_is_used_again(world):
    stray(world)
    assert delete_stray_logs(world.log, [P0], "test") == [P0]
    assert delete_stray_logs(world.log, [P0], "test") == []
    assert world.manager.is_due()
    world.manager.apply()
    world.manager.publish("test")
    assert (world.manager.is_due(), shown(world), world.log.refresh().segments) == (False, {P1: STRAY[P1]}, {})
    world.tell(dataclasses.replace(LED, leader_epoch=1), FOLLOWED)
    world.manager.apply()
    assert world.manager.offline.names() == ("flights-id/0",)
    assert (world.manager.led(), world.log.refresh().known(P0).role) == ({}, Role(0, STOPPED))
    world.tell(dataclasses.replace(LED, leader_epoch=2, leader=2, isr=(2,)), FOLLOWED)
    world.manager.apply()
    assert (world.manager.offline.names(), world.role(P0)) == ((), Role(2, FOLLOWER))


def test_sr_03_nothing_is_deleted_by_hand_that_the_metadata_have_explained_meanwhile(world):
    stray(world)
    world.tell(LED, FOLLOWED)
    world.manager.apply()
    version = world.log.refresh().version
    assert delete_stray_logs(world.log, [P0, P1], "test") == []
    assert world.log.refresh().version == version


def test_a_broker_carries_out_steps_in_their_order(world):
    carry_out(world.manager, StopIdleFetchers(), PublishReplicas("test"), StopIdleFetchers())
    assert world.fetchers.told == [("idle",), ("idle",)]


def test_tr_05_hw_03_after_a_truncation_no_hw_is_above_its_log(world):
    """Otherwise the follower's next appends would count as committed too early."""
    lead(world.log, P1, epoch=0)
    fill(world.log, P1, 3, 2)
    world.tell(dataclasses.replace(FOLLOWED, leader_epoch=1))
    world.manager.apply()
    world.manager.follow_high_watermarks(FollowHighWatermarks({P1: 5}, {P1: 5}))
    truncate(world.log, {P1: 3})
    world.manager.follow_high_watermarks(
        FollowHighWatermarks({P1: 3, dataclasses.replace(FOLLOWED, topic_id="gone").topic_id_partition: 0})
    )
    lead(world.log, P1, epoch=2)
    fill(world.log, P1, 4, epoch=2)
    world.log.refresh()
    world.manager.publish("test")
    assert world.table.replicas[P1].high_watermark == 3


def test_is_05_an_isr_change_of_unknown_outcome_stays_pending_and_others_continue(world, caplog):
    """The HW of flights-0 waits for both ISRs. That of flights-1 is still raised."""
    world.tell(dataclasses.replace(LED, isr=(1, 2)), dataclasses.replace(FOLLOWED, leader=1, isr=(1,)))
    world.manager.apply()
    fill(world.log, P0, 2)
    fill(world.log, P1, 3)
    world.cache.alter_partitions = lambda *_: world.unreachable("metadata")
    world.clock.now += 20.0
    assert world.manager.lead()
    assert "the outcome of an ISR change is unknown" in caplog.text
    world.manager.publish("test")
    assert {p: (r.log_end_offset, r.high_watermark) for p, r in world.table.replicas.items()} == {
        P0: (2, 0),
        P1: (3, 3),
    }


def test_a_broker_that_is_paused_goes_on_where_it_was(world):
    world.pause_point.pause()
    thread = threading.Thread(target=world.manager.apply, daemon=True)
    thread.start()
    assert world.role(P0) == Role(-1, STOPPED)
    world.pause_point.resume()
    wait_until(lambda: P0 in world.table.replicas, "roles taken up")
    thread.join(30)
    assert world.role(P0) == Role(0, LEADER)


def test_fe_03_a_follower_whose_rows_cannot_be_read_is_logged_once(world, caplog):
    """A root may be away for many looks, but one log line is enough."""
    world.manager.apply()
    for _ in range(3):
        world.manager.lead()
    assert [r.getMessage() for r in caplog.records if "replicas of broker 2 cannot be read" in r.getMessage()] == [
        "broker 1: replicas of broker 2 cannot be read: the root of broker 2 cannot be reached"
    ]


class WatchedLock:
    """The manager's lock. It signals when a thread waits for it."""

    def __init__(self, lock):
        self._lock, self.wanted = lock, threading.Event()

    def __enter__(self):
        self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@contextlib.contextmanager
def published_after(world, why):
    """The block runs after another thread has called `publish` and before it gets the lock."""
    world.manager._lock.acquire()
    watched = world.manager._lock = WatchedLock(world.manager._lock)
    thread = threading.Thread(target=world.manager.publish, args=(why,), daemon=True)
    thread.start()
    assert watched.wanted.wait(30)
    try:
        yield
    finally:
        watched._lock.release()
    thread.join(30)
    assert not thread.is_alive()


def finish_truncation(world, offset):
    """Truncates and then changes the fetch state, as a fetcher does, without waiting for the manager."""
    truncate_logs(world.log, {P1: Truncation(1, offset)}, "fetcher")
    world.fetchers.fetch_states = lambda: {P1: fetch_state.truncated(TRUNCATING, offset)}


TRUNCATING = PartitionFetchState("flights-id", 1, 1, 9)


@pytest.fixture
def truncating(world):
    """Broker 1 follows P1 at epoch 1 with nine records, of which five are its new leader's."""
    lead(world.log, P1, epoch=0)
    fill(world.log, P1, 5, 4)
    world.tell(dataclasses.replace(FOLLOWED, leader_epoch=1))
    world.manager.apply()
    world.fetchers.fetch_states = lambda: {P1: TRUNCATING}
    world.manager.publish("test")
    assert (world.table.replicas[P1].state, world.table.replicas[P1].log_end_offset) == ("Truncating", 9)
    return world


def is_true_of(row, log):
    own = log.current().partition(row.topic_id_partition)
    return (row.log_end_offset, row.chain, row.epochs) == (*own.log_end, own.lineage)


def test_hw_02_a_row_never_is_fetching_with_a_log_end_from_before_its_truncation(truncating):
    """The truncation happens while a publish waits for its turn."""
    with published_after(truncating, "kept up"):
        finish_truncation(truncating, 5)
    row = truncating.table.replicas[P1]
    assert (row.state, row.log_end_offset) == ("Fetching", 5)
    assert is_true_of(row, truncating.log)


def test_hw_02_a_fetch_state_is_read_before_the_log(truncating):
    """The truncation happens during a publish, which reads the log last."""
    fetchers = truncating.fetchers

    def asked_for():
        fetcher = threading.Thread(target=finish_truncation, args=(truncating, 5), daemon=True)
        fetcher.start()
        fetcher.join(30)
        return fetchers.fetch_states()

    fetchers.fetch_states = asked_for
    truncating.manager.publish("kept up")
    row = truncating.table.replicas[P1]
    assert (row.state, row.log_end_offset) == ("Fetching", 5)
    assert is_true_of(row, truncating.log)


def test_hw_02_ep_05_the_row_of_a_leader_has_the_start_of_its_epoch(world):
    """The role is committed and hosted while a publish of another thread waits for its turn."""
    world.manager.apply()
    fill(world.log, P0, 8)
    later = dataclasses.replace(LED, leader_epoch=7, partition_epoch=1)
    with published_after(world, "fetched"):
        world.log.become({P0: Role(7, LEADER)}, "test")
        carry_out(world.manager, HostPartitions({P0: later}, ()))
    row = world.table.replicas[P0]
    assert (row.role, row.leader_epoch) == ("leader", 7)
    assert [(entry.leader_epoch, entry.start_offset) for entry in row.epochs] == [(0, 0), (7, 8)]
    assert is_true_of(row, world.log)


def test_tr_08_a_row_has_the_chain_of_its_log(world):
    world.manager.apply()
    assert world.table.replicas[P0].chain == genesis(P0)
    fill(world.log, P0, 3)
    world.manager.publish("test")
    assert is_true_of(world.table.replicas[P0], world.log)


def test_sr_02_a_deleted_topic_leaves_the_memory_of_its_broker(world):
    world.manager.apply()
    fill(world.log, P0, 2)
    deleting = dataclasses.replace(LED, leader=LEADER_DURING_DELETE, leader_epoch=1)
    world.tell(deleting, FOLLOWED)
    for _ in range(2):
        world.manager.apply()
    assert world.role(P0) == Role(1, STOPPED)
    world.tell(FOLLOWED)
    world.manager.apply()
    assert world.log.current().partitions() == [P1]
    assert world.role(P0) == Role(1, STOPPED), "known again when somebody asks"
