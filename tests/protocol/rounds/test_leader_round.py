"""The order of a leader's reads, decisions and writes, and the effect of an error at each step."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.isr import AlterIsrOutcome, alter_partition
from lakelog.replication.protocol.leadership import host
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_log import FENCED, LEADER, Role
from lakelog.replication.protocol.rounds.broker_steps import BrokerState
from lakelog.replication.protocol.rounds.leader_round import (
    AlterPartitions,
    ClusterView,
    FollowersSeen,
    IsrChangesSettled,
    LeaderRound,
    LogsSeen,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
)
from tests.clock import Clock
from tests.protocol.rounds.driven import Rounds
from tests.protocol.test_leadership import EPOCHS, LAG, WHOLE, log_to, row

P = WHOLE.topic_id_partition
READS = [ReadFollowerRows, ReadCluster, ReadLog]


class World:
    """Broker 1 leads a log of 50 records and answers its rounds' steps."""

    def __init__(self, registration=WHOLE, ends=(50, 50)):
        self.clock, self.rounds = Clock(), Rounds(self.answer)
        self.log, self.current = log_to(50), registration
        self.alive = {b: EPOCHS[b] for b in (2, 3)}
        self.rows = {b: {P: row(b, end)} for b, end in zip((2, 3), ends, strict=True)}
        self.began_at, self.told = {}, {}
        self.memory = BrokerState(
            {P: host(None, None, registration, self.log, 1, self.clock.now)}, lambda: self.told, OfflineReplicas(1)
        )
        self.round = LeaderRound(1, LAG, LAG / 2, self.clock)

    @property
    def hosted(self):
        return self.memory.hosted[P]

    @property
    def steps(self):
        return self.rounds.kinds

    def run(self):
        return self.rounds.run(self.round.run(self.memory))

    def answer(self, step):
        match step:
            case ReadFollowerRows(brokers):
                return FollowersSeen({b: self.rows[b] for b in brokers if b in self.rows}, dict(self.began_at))
            case ReadCluster():
                return ClusterView(EPOCHS, self.alive, lambda _: 1)
            case ReadLog():
                return LogsSeen(lambda _: self.log, None, None)
            case AlterPartitions((change,)):
                outcome, now = alter_partition(self.current, change, EPOCHS)
                self.current = now if outcome is AlterIsrOutcome.APPLIED else self.current
                return {change.topic_id_partition: (outcome, now)}

    def later(self, seconds):
        self.clock.now += seconds
        return self


@pytest.fixture
def alone():
    """The followers have all records, but are not in the ISR."""
    return World(replace(WHOLE, isr=(1,)))


def test_hw_01_is_01_a_round_reads_then_changes_the_isr_then_raises_the_hw(alone):
    assert alone.run()
    assert alone.steps == [*READS, AlterPartitions, IsrChangesSettled]
    assert (alone.hosted.registration.isr, alone.hosted.pending) == ((1, 2, 3), None)
    assert alone.hosted.high_watermark == 50


def test_is_01_a_round_without_a_change_writes_nothing():
    world = World()
    assert (world.run(), world.steps) == (True, [*READS, IsrChangesSettled])
    assert (world.run(), world.steps) == (False, [*READS, IsrChangesSettled]), "the HW has been told"


@pytest.mark.parametrize("leader", [2, -1])
def test_fe_03_a_broker_that_leads_nothing_reads_nothing(leader):
    world = World(replace(WHOLE, leader=leader))
    assert (world.run(), world.steps) == (False, [])


def test_ol_01_a_partition_with_a_broken_file_is_not_led():
    world = World()
    world.memory.offline.observe({P: "is gone"}, {P: WHOLE})
    assert (world.run(), world.steps, world.hosted.high_watermark) == (False, [], 0)


@pytest.mark.parametrize("step", READS)
@pytest.mark.parametrize("error", [KafkaStorageException("503"), StaleBrokerEpochException("fenced")])
def test_bc_01_a_read_that_fails_ends_the_round_and_leaves_everything_as_it_was(alone, step, error):
    before, alone.rounds.fails = alone.hosted, {step: error}
    with pytest.raises(type(error)):
        alone.run()
    assert alone.hosted == before


def test_is_05_hw_01_a_change_without_an_answer_stays_pending_and_the_hw_waits_for_both_sets():
    world = World(ends=(50, 20)).later(LAG * 2)
    world.rounds.fails = {AlterPartitions: KafkaStorageException("503")}
    assert world.run()
    assert (world.hosted.pending.isr, world.hosted.high_watermark) == ((1, 2), 20)
    world.rounds.fails = {}
    world.run()
    assert (world.hosted.pending, world.hosted.registration.isr, world.hosted.high_watermark) == (None, (1, 2), 50)


def test_is_05_a_change_that_is_fenced_ends_the_round():
    world = World(ends=(50, 20)).later(LAG * 2)
    world.rounds.fails = {AlterPartitions: StaleBrokerEpochException("fenced")}
    with pytest.raises(StaleBrokerEpochException):
        world.run()
    assert (world.hosted.pending.isr, world.hosted.high_watermark) == ((1, 2), 0)


def test_br_03_is_01_lags_are_checked_every_half_lag_time():
    """So a follower is out after 1 to 1.5 times the lag time, as in Kafka."""
    world, wanted = World(ends=(50, 20)), {}
    for seconds in (4.9, 6.0, 10.5, 11.0):
        world.clock.now = 100 + seconds
        world.run()
        wanted[seconds] = AlterPartitions in world.steps
    assert wanted == {4.9: False, 6.0: False, 10.5: False, 11.0: True}, "at 10.5 s only 4.5 s after the last poll"


def test_is_04_ol_01_a_follower_joins_only_by_rows_read_under_the_current_registration(alone):
    """The registration may have moved because the broker has given up what its row still tells of."""
    alone.began_at = {2: alone.clock.now - 1, 3: alone.clock.now}
    alone.run()
    assert alone.hosted.registration.isr == (1, 3)
    alone.began_at = {2: alone.clock.now + 1}
    alone.later(2).run()
    assert AlterPartitions not in alone.steps, "its row was read before this registration was seen"
    alone.began_at = {2: alone.clock.now}
    alone.run()
    assert alone.hosted.registration.isr == (1, 2, 3)


@pytest.mark.parametrize("missing", ["row", "life"])
def test_is_04_a_follower_without_a_row_or_heartbeat_does_not_join(alone, missing):
    del {"row": alone.rows, "life": alone.alive}[missing][2]
    alone.run()
    assert alone.hosted.registration.isr == (1, 3)


def test_dr_01_others_wait_for_a_log_start_that_a_client_has_raised():
    world = World()
    world.run()
    told = row(2, 50, broker_id=1, high_watermark=50)
    world.told = {P: told}
    assert not world.run()
    world.log = log_to(50, start=10)
    assert world.run()
    world.told = {P: replace(told, log_start_offset=10)}
    assert not world.run()


def test_bc_01_a_log_claimed_by_another_process_is_not_led(alone):
    """Its role shows it: another epoch, or a newer process has fenced this one."""
    for role in (Role(4, LEADER), Role(5, FENCED), Role(6, LEADER)):
        alone.log = log_to(50, role=role)
        assert not alone.run()
        assert (alone.steps, alone.hosted.high_watermark) == ([*READS, IsrChangesSettled], 0)
