"""Each fault of the store and of the world occurs, and does what it should."""

import random
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.server import broker_server
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_probe import probe_root
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import LOG, REPLICAS
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack import faulty_store, rates
from lakelog.verification.simulation.stack.faulty_store import FaultyStore, tear_commit, tear_end
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.rates import FROZEN, HANGS, Rates, drawn
from lakelog.verification.simulation.stack.stack_history import check
from lakelog.verification.simulation.stack.stack_producers import StackProducer
from lakelog.verification.simulation.stack.stack_world import BROKERS, StackWorld
from tests.registrations import folder_of


class Others:
    """The others: how many seconds they ran, and their work meanwhile."""

    def __init__(self, act=lambda: None):
        self.seconds, self._act = [], act

    def __call__(self, seconds):
        self.seconds.append(seconds)
        self._act()


@pytest.fixture
def store():
    with MemoryStore("faulty").opened() as store:
        yield store


@pytest.fixture
def table(store):
    return StorageRoot.of(f"{store.uri}/cluster/topics")


def faulty(store, others, **faults):
    """A store with these rates and no other faults, used by a producer."""
    none = {"commits": {}, "unavailable": 0.0, "outage": 0.0, "hangs": 0.0, "slow": 0.0}
    made = FaultyStore(random.Random(1), Rates(**{**none, **faults}), lambda: Anybody("p", ""), others)
    made.has_faults, store.faults = True, made
    return made


class Anybody(StackProducer):
    def may_write(self, uri):
        return True


@pytest.mark.parametrize(("luck", "landed_at_once"), [(0.1, True), (0.9, False)])
def test_a_commit_that_hangs_has_landed_or_lands_later(store, table, monkeypatch, luck, landed_at_once):
    """The log itself finds out that the commit has landed."""
    log, others = DeltaLog.create(table, LOG), Others()
    made = faulty(store, others, commits={HANGS: 1.0})
    monkeypatch.setattr(made._rng, "random", lambda: luck)
    if landed_at_once:
        assert log.commit({"who": "test"}) == 1
    else:
        with pytest.raises(CommitUnknown, match="timed out"):
            log.commit({"who": "test"})
    assert (last_version(table) == 1) == landed_at_once
    assert others.seconds == [10.0]
    with monkeypatch.context() as patched:
        patched.setattr(made, "has_faults", False)
        made.land(all_of_them=True)
    assert last_version(table) == 1


def test_a_look_that_hangs_ends_with_an_error_when_others_have_gone_on(store, table):
    log, others = DeltaLog.create(table, LOG), Others()
    faulty(store, others, hangs=1.0)
    with pytest.raises(KafkaStorageException, match="timed out"):
        log.move()
    assert others.seconds == [10.0]


def test_a_process_that_stands_still_before_its_commit_goes_on_as_if_nothing_had_happened(store, table, monkeypatch):
    """It has not seen the commits of others meanwhile, so its own is refused."""
    log = DeltaLog.create(table, LOG)
    other = DeltaLog.open(table)

    def overtake():
        with monkeypatch.context() as patched:
            patched.setattr(made, "has_faults", False)
            other.commit({"who": "other"})

    others = Others(overtake)
    made = faulty(store, others, commits={FROZEN: 1.0})
    with pytest.raises(CommitConflict):
        log.commit({"who": "test"})
    assert others.seconds[0] in faulty_store._FROZEN_SECONDS


def test_a_process_that_writes_what_is_not_its_own_is_found(store, table):
    made = FaultyStore(random.Random(1), Rates(), lambda: StackProducer("p", f"{store.uri}/cluster"), Others())
    store.faults = made
    with pytest.raises(Violation, match="only_owners_write"):
        table.write("a file", b"")


def test_a_step_that_goes_on_for_ever_is_found(store, table, monkeypatch):
    monkeypatch.setattr(faulty_store, "ACCESSES_OF_A_STEP", 10)
    client = StackProducer("p", f"{store.uri}/cluster")
    store.faults = FaultyStore(random.Random(1), Rates(), lambda: client, Others())
    with pytest.raises(Violation, match="every_loop_ends"):
        any(table.exists("what no process writes") for _ in iter(int, 1))


@pytest.fixture
def world():
    with Changes() as changes:
        made = StackWorld(0, changes)
        assert made.clients[0].send({0: 2, 1: 1})
        made.calm()
        yield made


def test_others_go_on_for_as_long_as_a_step_stands_still(world):
    before = {node.name: node.moved_at for node in world.nodes.values()}
    with world.acting(world.clients[0]):
        world.let_others(8)
    assert max(node.moved_at for node in world.nodes.values()) >= max(before.values()) + 7


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_torn_file_has_its_commit_and_a_part_of_its_bytes(world, part):
    root = world.nodes[1].root.child(LOG.name)
    whole = ReplicaLog.open(root).current()
    with world.acting(None):
        world.disasters.kill(world.nodes[1])
        names = tear_end(root, 2, part)
    assert names
    assert root.sizes(names) == [int(whole.segments[name].file.size * part) for name in names]
    assert set(ReplicaLog.open(root).current().broken) == set(names)


def test_a_torn_commit_keeps_its_name(world):
    root = world.nodes[1].root.child(LOG.name)
    newest = commit_name(last_version(root))
    (size,) = root.sizes([newest])
    assert tear_commit(root, 0.5) == [newest]
    assert root.sizes([newest]) == [size // 2]
    with pytest.raises((KafkaStorageException, CorruptRecordException), match="torn"):
        ReplicaLog.open(root)


@pytest.mark.parametrize("table", [LOG.name, REPLICAS.name])
def test_a_broker_begins_before_a_torn_commit_without_an_operator(world, table):
    node = world.nodes[1]
    with world.acting(None):
        world.disasters.damage(node)
        tear_commit(node.root.child(table), 0.5)
    world.calm()
    assert "replaced" not in world.faults.counts
    check(world)


def test_ol_02_a_broker_that_cannot_begin_gives_the_newest_reason(world, monkeypatch):
    """Its root did not answer the first request. Now it does, and a file of its `replicas` is torn."""
    node, looks = world.nodes[1], ["503 Slow Down"]

    def refused_once(*given):
        if looks:
            raise KafkaStorageException(looks.pop())
        probe_root(*given)

    with world.acting(None):
        world.disasters.damage(node)
        assert tear_end(node.root.child(REPLICAS.name), 1, 0.5)
    monkeypatch.setattr(broker_server, "probe_root", refused_once)
    monkeypatch.setattr(broker_server, "recover_root", lambda *_: None)  # otherwise it begins with rows that are whole
    with world.acting(node):
        node.start()
    assert "503 Slow Down" in node.broker._registration.storage_error
    world.clock.now += 5
    with world.acting(node):
        node.broker._run()
    assert "not a parquet file" in node.broker._registration.storage_error
    world.calm()
    assert world.faults.counts["replaced"] == 1
    check(world)


def test_a_broker_whose_spark_has_ended_stops_without_a_word(world):
    node, idle = world.nodes[1], SimpleNamespace(join=lambda: None, stop=lambda: None, is_alive=lambda: True)
    table = BrokerTable.open_or_create(world.cluster.root, 1)
    node.broker._stopping, node.broker._thread, node.broker._heartbeat = threading.Event(), idle, idle
    with world.acting(node):
        node.broker.pause_point.kill()
        node.broker.stop()
    assert not table.refresh()
    assert not table.registration.shutting_down


def test_a_late_commit_in_a_new_table_is_put_aside_without_an_operator(world):
    """The commit was under way when the root was emptied, and lands when the broker is in sync again."""
    node = world.nodes[3]
    with world.acting(None):
        world.disasters.empty_root(node)
    world.calm()
    log = node.root.child(LOG.name)
    log.write(commit_name(last_version(log) + 2), b"{}")
    with world.acting(None):
        world.disasters.kill(node)
    world.calm()
    assert "replaced" not in world.faults.counts
    check(world)


def test_a_power_cut_may_take_the_end_of_the_log_and_leave_the_row_that_tells_of_it(world, monkeypatch):
    """A producer appends to that log before its broker is back."""
    node, (client, other) = world.nodes[1], world.clients
    ends = iter([2, 0])
    monkeypatch.setattr(world.rng, "randrange", lambda *_: next(ends, 0))
    with world.acting(None):
        world.disasters.cut_power(node)
    monkeypatch.undo()
    assert "[2, 0]" in world.trace[-1]
    node.frozen_until = world.clock.now + 5
    other.send({0: 1}, 1000)
    assert client.send({0: 1})
    world.calm()
    check(world)


def test_td_03_what_a_broker_could_not_tell_that_it_has_applied_it_tells_later(world, monkeypatch):
    """A controller waits for it to delete a topic, and the metadata does not change meanwhile."""
    failures, update = [KafkaStorageException("503")], BrokerTable.heartbeat

    def fail_once(table, broker_epoch, why, **changes):
        if failures and why == "metadata applied":
            raise failures.pop()
        return update(table, broker_epoch, why, **changes)

    monkeypatch.setattr(BrokerTable, "heartbeat", fail_once)
    (first, *_) = world.partitions().values()
    world.cluster.metadata.put([replace(first, partition_epoch=first.partition_epoch + 1)], {"who": "test"})
    world.cluster.metadata.refresh()
    for node in world.nodes.values():
        for _ in range(4):
            world.clock.now += 2
            world.run(node)
    told = {number: found.metadata_version for number, found in world.cluster.refresh_brokers().items()}
    assert (failures, told) == ([], dict.fromkeys(BROKERS, world.cluster.metadata.version))


def test_hw_01_a_leader_goes_on_while_it_cannot_tell_what_it_has_applied(world, monkeypatch):
    """Its row in `brokers` cannot be written, but its log and its `replicas` can."""
    update = BrokerTable.heartbeat

    def fail(table, broker_epoch, why, **changes):
        if why == "metadata applied":
            raise KafkaStorageException("503")
        return update(table, broker_epoch, why, **changes)

    monkeypatch.setattr(BrokerTable, "heartbeat", fail)
    moved = [replace(r, partition_epoch=r.partition_epoch + 1) for r in world.partitions().values()]
    world.cluster.metadata.put(moved, {"who": "test"})
    assert world.clients[0].send({0: 1, 1: 1})


def test_bc_01_a_broker_that_begins_anew_registers_above_what_the_metadata_says_now(world):
    """It did not read the metadata while its storage failed."""
    node = world.nodes[1]
    (first, *_) = world.partitions().values()
    told = replace(first, isr_epochs={**first.isr_epochs, 1: 7}, partition_epoch=first.partition_epoch + 1)
    world.cluster.metadata.put([told], {"who": "test"})
    with world.acting(node):
        node.broker._begin()
    assert node.epoch == 8


def test_a_broker_whose_root_and_registration_are_gone_counts_for_nothing(world):
    """With the broker epoch under which it joined the ISR, it would count as in sync with an empty log."""
    node = world.nodes[1]
    with world.acting(None):
        world.disasters.empty_root(node)
        folder_of(world.cluster.root, node.number).delete_folder()
    with world.acting(node):
        node.start()
    assert all(node.epoch > r.isr_epoch(node.number) > 0 for r in world.partitions().values())
    assert world.clients[0].send({0: 1})
    world.calm()
    check(world)


def test_each_seed_has_rates_of_its_own():
    drawings = [drawn(seed) for seed in range(20)]
    assert drawn(7) == drawings[7]
    assert {d.commits[HANGS] for d in drawings} == {0, 0.003, 3 * 0.003}
    assert any(d.brokers[rates.TORN] == 0 for d in drawings)
    assert all(sum(d.commits.values()) < 1 for d in drawings)
