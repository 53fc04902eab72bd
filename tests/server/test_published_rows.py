"""Rows that a broker publishes: built from what has changed, and the same as if all were built anew."""

from dataclasses import replace
from random import Random

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.replica_manager import ReplicaStatusBuilder, RowInputs
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import log_state
from lakelog.replication.storage.log.log_state import LogMark, RecentChanges
from tests.storage.logs import fill, lead, new_log, start_at

PARTITIONS = [TopicIdPartition("flights-id", number) for number in range(4)]


class World:
    """Broker 1 hosts some partitions and follows others; `published` are the rows of its table."""

    def __init__(self, root, random):
        self.random, self.log = random, new_log(StorageRoot.of(root).child("log"))
        self.hosted, self.fetched, self.faults, self.published = {}, {}, {}, {}
        self.rows = ReplicaStatusBuilder(1, 7)
        for partition in PARTITIONS:
            lead(self.log, partition, epoch=0)

    def move(self):
        """One change of one partition."""
        partition = self.random.choice(PARTITIONS)
        lag, error = self.random.randrange(9), self.random.choice((None, "503"))
        fetch = PartitionFetchState(*partition, 0, 0, FollowerState.FETCHING, lag=lag, error=error)
        leader, epoch = self.random.choices(((1, 0), (2, 0), (2, 1)), (2, 4, 1))[0]
        registration = PartitionRegistration("flights", *partition, (1, 2), leader, epoch, (1, 2))
        moves = {
            "append": lambda: fill(self.log, partition, 1),
            "delete": lambda: self.delete(partition),
            "host": lambda: self.hosted.update({partition: HostedPartition(registration, self.random.randrange(9))}),
            "leave": lambda: self.hosted.pop(partition, None),
            "fetch": lambda: self.fetched.update({partition: fetch}),
            "stop": lambda: self.fetched.pop(partition, None),
            "break": lambda: self.faults.update({partition: "is gone"}),
            "heal": self.faults.clear,
            "lose": lambda: self.log._rebuild(),
            "foreign": lambda: self.tell({p: replace(row, lag=99) for p, row in self.published.items()}),
        }
        rare = {"break", "lose", "foreign"}  # after these, all rows are built anew
        moves[self.random.choices(list(moves), [2 if name in rare else 9 for name in moves])[0]]()

    def delete(self, partition):
        start_at(self.log, partition, self.log.refresh().known(partition).log_end_offset)

    def build(self, rows):
        inputs = RowInputs(dict(self.hosted), dict(self.fetched), dict(self.faults))
        return {row.topic_id_partition: row for row in rows.build(inputs, self.log.refresh(), self.published)}

    def tell(self, rows):
        self.published = rows

    def publish(self):
        built = self.build(self.rows)
        if self.random.random() < 0.8:  # else the commit has failed
            self.tell(built)
            self.rows.have_landed(self.published)
        return built


def facts(rows):
    return {partition: replace(row, log_version=0) for partition, row in rows.items()}


def run(root, *seeds):
    """Raises AssertionError if a row differs from the one that is built anew."""
    for seed in seeds:
        world = World(f"{root}/{seed}", Random(seed))
        for _ in range(40):
            for _ in range(world.random.randrange(3)):
                world.move()
            anew = world.build(ReplicaStatusBuilder(1, 7))
            assert facts(world.publish()) == facts(anew)


@pytest.mark.parametrize("seed", range(8))
def test_hw_02_rows_equal_those_built_anew_from_all_inputs(root, seed):
    run(root, seed)


@pytest.mark.parametrize("blind", ["log", "hosted", "fetched"])
def test_hw_02_the_comparison_detects_an_ignored_change(root, blind, monkeypatch):
    if blind == "log":
        monkeypatch.setattr(LogMark, "changed", lambda *_: ())
    else:
        build = ReplicaStatusBuilder.build

        def without(rows, inputs, *given):
            if rows._published is not None:
                last, *rest = rows._published
                rows._published = (last._replace(**{blind: getattr(inputs, blind)}), *rest)
            return build(rows, inputs, *given)

        monkeypatch.setattr(ReplicaStatusBuilder, "build", without)
    with pytest.raises((AssertionError, KeyError)):
        run(root, *range(8))


def test_rows_that_have_not_changed_are_the_same_objects(root):
    world = World(root, Random(1))
    for number, partition in enumerate(PARTITIONS):
        registration = PartitionRegistration("flights", *partition, (1, 2), 1, 0, (1, 2))
        world.hosted[partition] = HostedPartition(registration, number)
    world.tell(world.build(world.rows))
    world.rows.have_landed(world.published)
    fill(world.log, PARTITIONS[2], 1)
    before, after = world.published, world.build(world.rows)
    assert [p for p in PARTITIONS if after[p] is not before[p]] == [PARTITIONS[2]]
    start_at(world.log, PARTITIONS[1], 0)
    assert world.build(world.rows)[PARTITIONS[1]].log_version == world.log.current().version, "its log was looked at"


def test_the_row_of_a_replica_without_a_fetcher_has_no_error(root):
    world, partition = World(root, Random(1)), PARTITIONS[0]
    world.hosted[partition] = HostedPartition(PartitionRegistration("flights", *partition, (1, 2), 2, 0, (1, 2)), 0)
    world.fetched[partition] = PartitionFetchState(*partition, 0, 0, FollowerState.FETCHING, error="503")
    world.tell(world.build(world.rows))
    world.rows.have_landed(world.published)
    assert world.published[partition].error == "503"
    world.fetched.clear()
    assert world.build(world.rows)[partition].error is None


def test_all_rows_are_built_anew_after_a_log_was_rebuilt(root):
    world = World(root, Random(1))
    before = LogMark.of(world.log.current())
    fill(world.log, PARTITIONS[0], 1)
    assert before.changed(LogMark.of(world.log.current())) == {PARTITIONS[0]}
    world.log._rebuild()
    assert before.changed(LogMark.of(world.log.current())) is None


def test_all_partitions_count_as_changed_for_a_reader_that_is_far_behind(monkeypatch):
    monkeypatch.setattr(log_state, "_COMMITS", 3)
    changes = RecentChanges()
    assert changes.after(5) == set()
    for version in range(6, 11):
        changes.note(version, PARTITIONS[version % 2 :: 2])
    assert (changes.after(10), changes.after(9)) == (set(), set(PARTITIONS[0::2]))
    assert (changes.after(7), changes.after(6)) == (set(PARTITIONS), None)
