"""The order of a broker's steps when the metadata has changed or a file of its log is broken."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.leadership import host
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.rounds.broker_steps import BrokerState, OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.role_round import (
    CommitRoles,
    DeleteLogs,
    FenceIsrChanges,
    HostPartitions,
    ReadOwnLogs,
    RepairLogs,
    StartFetching,
    StopFetching,
    StopIdleFetchers,
    take_up_roles,
)
from tests.protocol.rounds.driven import Rounds
from tests.protocol.test_leadership import WHOLE, log_to, row

LED = replace(WHOLE, isr_epochs={1: 10})
FOLLOWED = replace(LED, leader=2, isr=(2, 3), isr_epochs={2: 20, 3: 30})
P = LED.topic_id_partition
AS_BEFORE = [ReadOwnLogs, StartFetching, StopIdleFetchers]
TAKEN_UP = [ReadOwnLogs, StopFetching, CommitRoles, HostPartitions, PublishReplicas, StartFetching, StopIdleFetchers]


class World:
    """Broker 1 under broker epoch 10, with the log of one replica."""

    def __init__(self, metadata=LED):
        self.metadata, self.log = {P: metadata}, log_to(50)
        self.own, self.told, self.is_fenced = OwnLogs({P: self.log}), {}, True
        self.memory = BrokerState({}, lambda: self.told, OfflineReplicas(1))
        self.rounds = Rounds(self.answer)

    def run(self):
        self.rounds.run(take_up_roles(1, 10, self.memory, self.metadata))
        return self.rounds.kinds

    def answer(self, step):
        match step:
            case ReadOwnLogs():
                return self.own
            case HostPartitions(registrations, gone):
                self.memory.hosted.update({p: host(None, None, r, self.log, 1, 0.0) for p, r in registrations.items()})
                for partition in gone:
                    del self.memory.hosted[partition]
            case PublishReplicas():
                state = FollowerState.OFFLINE if P in self.memory.offline.faults else FollowerState.FETCHING
                self.told = {P: row(1, 50, state=state)}
            case FenceIsrChanges(partitions):
                return set(partitions) if self.is_fenced else set()
        return None

    def breaks(self):
        self.own = OwnLogs({P: self.log}, {P: "a file is gone"}, True)
        return self


@pytest.fixture
def following():
    made = World(FOLLOWED)
    made.run()
    return made


def test_bl_03_bl_05_a_round_stops_commits_hosts_and_publishes_roles_in_this_order():
    assert World().run() == TAKEN_UP


def test_bl_08_an_unchanged_role_writes_nothing(following):
    before = dict(following.memory.hosted)
    assert (following.run(), following.memory.hosted) == (AS_BEFORE, before)


def test_bl_08_a_newer_registration_of_the_same_role_is_followed_in_memory_alone(following):
    newer = replace(FOLLOWED, partition_epoch=9, isr=(2,))
    following.metadata = {P: newer}
    assert (following.run(), following.memory.hosted[P].registration) == (AS_BEFORE, newer)


def test_bc_01_partitions_that_elected_an_older_process_are_not_led():
    world = World(replace(LED, isr_epochs={1: 9}))
    world.run()
    assert world.memory.hosted[P].registration.leader == -1


@pytest.mark.parametrize("failing", TAKEN_UP)
def test_bl_11_an_error_ends_the_round_and_the_next_one_takes_the_roles_up(failing):
    world = World()
    world.rounds.fails = {failing: KafkaStorageException("503")}
    with pytest.raises(KafkaStorageException):
        world.run()
    steps = TAKEN_UP[: TAKEN_UP.index(failing) + 1]
    assert world.rounds.kinds == steps
    assert (P in world.memory.hosted) == (HostPartitions in steps[:-1])
    world.rounds.fails = {}
    assert world.run() == (AS_BEFORE if HostPartitions in steps[:-1] else TAKEN_UP)


def test_ol_01_a_broken_file_without_assigned_partitions_is_deleted_and_the_log_read_again():
    """The file may have held only stopped replicas. Then no replica is offline."""
    world = World()
    world.run()
    world.own = OwnLogs({P: world.log}, {}, True)
    assert world.run() == [ReadOwnLogs, DeleteLogs, *AS_BEFORE]
    assert world.memory.offline.faults == {}


def test_ol_01_is_05_an_offline_replica_is_published_then_fenced_then_repaired(following):
    """A leader may have seen the replica whole: nothing is dropped before the metadata has it outside of the ISR."""
    broken = [ReadOwnLogs, DeleteLogs, ReadOwnLogs]
    told = [StopFetching, StartFetching, StopIdleFetchers, PublishReplicas]
    assert following.breaks().run() == [*broken, *told, FenceIsrChanges, RepairLogs]
    assert following.rounds.steps[-1] == RepairLogs({P: 5})
    assert following.run() == [*broken, StartFetching, StopIdleFetchers, RepairLogs], "it is fenced once"
    following.own = OwnLogs({P: following.log})
    assert following.run() == [ReadOwnLogs, *told]
    assert following.breaks().run()[-2:] == [FenceIsrChanges, RepairLogs], "each time that it is offline"


def test_ol_01_is_05_a_replica_that_cannot_be_fenced_is_not_repaired(following):
    following.is_fenced = False
    assert following.breaks().run()[-1] == FenceIsrChanges
    following.rounds.fails = {FenceIsrChanges: KafkaStorageException("503")}
    with pytest.raises(KafkaStorageException):
        following.run()
    assert RepairLogs not in following.rounds.kinds


@pytest.mark.parametrize(
    "registration",
    [
        pytest.param(LED, id="it is to lead"),
        pytest.param(replace(FOLLOWED, leader=-1), id="nobody leads"),
        pytest.param(replace(FOLLOWED, isr=(1, 2)), id="the ISR counts on it"),
    ],
)
def test_ol_01_bl_02_a_replica_whose_records_others_may_lack_is_not_repaired(registration):
    world = World(registration).breaks()
    assert not {FenceIsrChanges, RepairLogs} & set(world.run())


def test_bl_02_an_offline_replica_is_not_led():
    assert CommitRoles not in World().breaks().run()


def test_ol_01_a_replica_is_not_repaired_before_its_row_is_offline():
    """Otherwise a leader that reads the old row counts records that are gone."""
    replicas = OfflineReplicas(1)
    replicas.observe({P: "is gone"}, {P: FOLLOWED})
    assert replicas.repairable({}) == {}
    assert replicas.repairable({P: row(1, 50)}) == {}
    assert replicas.repairable({P: row(1, 50, state=FollowerState.OFFLINE)}) == {P: 5}
