"""A leader's round looks only at what has changed. On random histories it does what a look at everything does."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.isr import AlterIsrOutcome, alter_partition
from lakelog.replication.protocol.leadership import follow_registration, host, observe_followers, still_caught_up
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_log import FENCED, LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import leader_round
from lakelog.replication.protocol.rounds.broker_steps import BrokerState
from lakelog.replication.protocol.rounds.leader_round import (
    LEADER_RULES,
    AlterPartitions,
    ClusterView,
    FollowersSeen,
    IsrChangesSettled,
    LeaderRound,
    LeaderWatch,
    LogsSeen,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
)
from tests.clock import Clock
from tests.protocol.rounds.driven import Rounds
from tests.protocol.rounds.full_leader_round import FullLeaderRound
from tests.protocol.test_leadership import EPOCHS, LAG, WHOLE, log_to, row

PARTITIONS = [TopicIdPartition("id", number) for number in range(3)]
STEPS = (ReadFollowerRows, ReadCluster, ReadLog, AlterPartitions, IsrChangesSettled)
log_of = cache(log_to)


class World:
    """Broker 1 leads three partitions twice: in rounds that look at changes, and in rounds that look at everything."""

    def __init__(self, random, rules=LEADER_RULES):
        self.random, self.clock = random, Clock()
        self.current = {p: replace(WHOLE, partition=p.partition) for p in PARTITIONS}
        self.roles, self.starts, self.ends = (
            dict.fromkeys(PARTITIONS, Role(5, LEADER)),
            {},
            dict.fromkeys(PARTITIONS, 20),
        )
        self.log_changes, self.forgotten = [], 0
        self.epochs, self.alive = dict(EPOCHS), {2: 20, 3: 30}
        self.rows, self.began_at, self.told, self.faults, self.min_isr = {2: {}, 3: {}}, {}, {}, {}, 1
        self.fails = None
        self.memories = [BrokerState({}, lambda: self.told, OfflineReplicas(1)) for _ in range(2)]
        self.leaders = [LeaderRound(1, LAG, LAG / 2, self.clock, rules), FullLeaderRound(LAG, LAG / 2, self.clock)]
        self.hosted = [memory.hosted for memory in self.memories]
        for partition in PARTITIONS:
            self.take_up(partition)
            self.fetch(partition)

    def log(self, partition):
        return log_of(self.ends[partition], self.starts.get(partition, 0), self.roles[partition])

    def take_up(self, partition):
        """A new role, or a newer registration in the same one."""
        now = self.current[partition]
        for hosted in self.hosted:
            before = hosted.get(partition)
            if before is not None and before.registration.leader_epoch == now.leader_epoch:
                hosted[partition] = follow_registration(before, now)
            else:
                hosted[partition] = host(before, None, now, self.log(partition), 1, self.clock.now)

    def answer(self, step):
        if self.fails is not None and isinstance(step, self.fails[0]):
            raise self.fails[1]
        match step:
            case ReadFollowerRows(brokers):
                return FollowersSeen({b: self.rows[b] for b in brokers if b in self.rows}, dict(self.began_at))
            case ReadCluster():
                return ClusterView(self.epochs, self.alive, lambda _: self.min_isr, self.min_isr)
            case ReadLog(since):
                changed = None if since is None or since < self.forgotten else self.log_changes[since:]
                return LogsSeen(self.log, changed, len(self.log_changes))
            case AlterPartitions(changes):
                return {c.topic_id_partition: self.altered(c) for c in changes}

    def altered(self, change):
        return alter_partition(self.current[change.topic_id_partition], change, self.epochs)

    def poll(self):
        """Both looks: they must do the same."""
        done = []
        for leader, memory in zip(self.leaders, self.memories, strict=True):
            rounds = Rounds(self.answer)
            try:
                result = rounds.run(leader.run(memory))
            except (KafkaStorageException, StaleBrokerEpochException) as error:
                result = error
            changes = [step.changes for step in rounds.steps if isinstance(step, AlterPartitions)]
            reads = [step.brokers for step in rounds.steps if isinstance(step, ReadFollowerRows)]
            known = {p: (h.registration, h.high_watermark, h.pending) for p, h in memory.hosted.items()}
            done.append((result, rounds.kinds, reads, changes, known))
        assert done[0] == done[1]
        is_written = self.fails is None or self.fails[0] is not AlterPartitions or self.random.random() < 0.5
        for change in (change for changes in done[0][3] for change in changes if is_written):
            outcome, now = self.altered(change)
            if outcome is AlterIsrOutcome.APPLIED:
                self.current[change.topic_id_partition] = now

    def move(self):
        """One change."""
        moves = (
            self.append, self.append, self.fetch, self.fetch, self.fetch, self.fetch_badly, self.fetch_late,
            self.forget, self.come_or_go, self.start_again, self.hang, self.change_isr, self.elect, self.lose_role,
            self.append_much, self.leave, self.break_file, self.configure, self.delete_records, self.publish,
        )  # fmt: skip
        self.random.choice(moves)(self.random.choice(PARTITIONS))

    def append(self, partition):
        self.ends[partition] = min(95, self.ends[partition] + self.random.randrange(1, 4))
        self.log_changes.append(partition)

    def append_much(self, partition):
        """So many commits that the log does not remember the partitions of all."""
        self.append(partition)
        self.forgotten = len(self.log_changes)
        self.log_changes.clear()
        self.log_changes += [None] * self.forgotten

    def leave(self, partition):
        """The broker hosts the partition no more, and perhaps once more later."""
        if any(hosted.pop(partition, None) is None for hosted in self.hosted):
            self.take_up(partition)

    def fetch(self, partition, **said):
        """The followers, or one of them, have reached the end, or not quite."""
        for broker in self.random.choice(((2, 3), (2, 3), (2,), (3,))):
            low = self.starts.get(partition, 0)
            end = self.random.choice((self.ends[partition], max(low, self.ends[partition] - 2)))
            told = row(broker, end, partition=partition.partition, broker_epoch=self.epochs[broker])
            epoch = self.current[partition].leader_epoch
            self.rows[broker] = {
                **self.rows.get(broker, {}),
                partition: replace(told, **{"leader_epoch": epoch, **said}),
            }

    def fetch_badly(self, partition):
        self.fetch(partition, **self.random.choice(({"state": "Truncating"}, {"chain": "other"}, {"broker_epoch": 1})))

    def fetch_late(self, partition):
        self.fetch(partition, leader_epoch=self.current[partition].leader_epoch - 1)

    def forget(self, partition):
        broker = self.random.choice((2, 3))
        if self.random.random() < 0.5:
            self.rows.pop(broker, None)
        else:
            self.rows[broker] = {p: told for p, told in self.rows.get(broker, {}).items() if p != partition}

    def come_or_go(self, _):
        broker = self.random.choice((2, 3))
        if self.alive.pop(broker, None) is None:
            self.alive[broker] = self.epochs[broker]

    def start_again(self, _):
        self.epochs[self.random.choice((2, 3))] += 1

    def hang(self, _):
        broker = self.random.choice((2, 3))
        self.began_at[broker] = max(self.began_at.get(broker, 0), self.clock.now - self.random.choice((0, 0, 6)))

    def change_isr(self, partition):
        """Another than this leader changes the registration; this broker hears of it, or not yet."""
        before = self.current[partition]
        isr = self.random.choice(((1,), (1, 2), (1, 2, 3)))
        replicas = self.random.choice(((1, 2, 3), (1, 2, 3), (1, 2)))
        now = replace(before, isr=tuple(b for b in isr if b in replicas), replicas=replicas)
        self.current[partition] = replace(now, partition_epoch=before.partition_epoch + 1)
        if self.random.random() < 0.7:
            self.take_up(partition)

    def elect(self, partition):
        leader = self.random.choice((1, 1, 1, 2))
        self.current[partition] = replace(
            self.current[partition], leader=leader, leader_epoch=self.current[partition].leader_epoch + 1
        )
        self.roles[partition] = Role(self.current[partition].leader_epoch, LEADER)
        self.log_changes.append(partition)
        self.take_up(partition)

    def lose_role(self, partition):
        role = self.roles[partition]
        self.roles[partition] = Role(role.leader_epoch, LEADER if role.kind == FENCED else FENCED)
        self.log_changes.append(partition)

    def break_file(self, partition):
        self.faults = {} if self.faults else {partition: "is gone"}
        for memory in self.memories:
            memory.offline.observe(self.faults, self.current)

    def configure(self, _):
        self.min_isr = self.random.choice((1, 2))

    def delete_records(self, partition):
        known = [hosted[partition].high_watermark for hosted in self.hosted if partition in hosted]
        self.starts[partition] = max(self.starts.get(partition, 0), min(known, default=0))
        self.log_changes.append(partition)

    def publish(self, partition):
        start = self.random.choice((0, self.starts.get(partition, 0)))
        self.told = {**self.told, partition: row(2, 5, partition=partition.partition, log_start_offset=start)}


def run(seeds):
    """Raises AssertionError if the two kinds of rounds ever differ."""
    for seed in seeds:
        world = World(Random(seed))
        for _ in range(60):
            for _ in range(world.random.choice((0, 0, 0, 1, 1, 3))):
                world.move()
            world.clock.now += world.random.choice((0, 0.25, 0.25, 1, 4.5, LAG / 2, 6, LAG))
            error = world.random.choice((KafkaStorageException("503"), StaleBrokerEpochException("fenced")))
            world.fails = (world.random.choice(STEPS), error) if world.random.random() < 0.15 else None
            world.poll()
        world.fails = None
        world.alive = {**world.alive, 99: 1}  # so that it looks at everything, and knows when followers were caught up
        world.poll()
        assert world.hosted[0] == world.hosted[1]


@pytest.mark.parametrize("seeds", [range(first, first + 40) for first in range(0, 160, 40)])
def test_fe_03_a_round_of_due_partitions_has_the_result_of_a_full_round(seeds):
    run(seeds)


_EXPECT, _SEE_HOSTED, _SETTLE = LeaderWatch.expect, LeaderWatch.see_hosted, LeaderRound._settle


def _takes_up_no_newer_registration(watch, hosted, *given):
    is_known = hosted.keys() == watch._hosted.keys()
    return {} if is_known else _SEE_HOSTED(watch, hosted, *given)


def _all_have_come(leader, hosted, inputs, changing, cluster):
    _SETTLE(leader, hosted, inputs, changing, cluster._replace(alive={}))


def _goes_on(leader, hosted, last):
    return still_caught_up(hosted, last.followers if last else (), leader._polled_at)


BLIND = {
    "to rows": (LeaderWatch, "see_rows", lambda *_: None),
    "to the log": (LeaderWatch, "see_log", lambda *_: None),
    "to the cluster": (LeaderWatch, "see_cluster", lambda *_: None),
    "to roles": (LeaderWatch, "see_hosted", _takes_up_no_newer_registration),
    "to its own rows": (LeaderWatch, "see_published", lambda *_: []),
    "to lag times": (LeaderWatch, "expect", lambda w, p, _, is_out: _EXPECT(w, p, float("inf"), is_out)),
    "to members out of sync": (LeaderWatch, "expect", lambda w, p, at, _: _EXPECT(w, p, at, False)),
    "to changes that it has lost": (LeaderRound, "_settle", lambda r, h, i, _, c: _SETTLE(r, h, i, (), c)),
    "to old reads": (LeaderRound, "_settle", _all_have_come),
    "to time that has passed": (leader_round, "still_caught_up", lambda hosted, *_: hosted),
    "to a new role": (LeaderRound, "_up_to_date", _goes_on),
}


@pytest.mark.parametrize("to", BLIND)
def test_fe_03_the_comparison_detects_a_watch_that_ignores_a_change(to, monkeypatch):
    monkeypatch.setattr(*BLIND[to])
    with pytest.raises((AssertionError, KeyError)):
        run(range(200))


def test_fe_03_a_round_without_changes_handles_no_partition():
    asked = []

    def observe(hosted, inputs):
        asked.append(hosted.registration.partition)
        return observe_followers(hosted, inputs)

    world = World(Random(1), replace(LEADER_RULES, observe_followers=observe))
    for broker in (2, 3):
        world.rows[broker] = {p: row(broker, 20, partition=p.partition) for p in PARTITIONS}
    world.poll()
    assert asked == [0, 1, 2]
    for _ in range(20):
        world.clock.now += LAG / 3
        world.poll()
    assert asked == [0, 1, 2]
    world.append(PARTITIONS[1])
    world.poll()
    assert asked == [0, 1, 2, 1]
    world.rows[2] = {**world.rows[2], PARTITIONS[2]: row(2, 20, partition=2)}
    world.poll()
    assert asked == [0, 1, 2, 1, 2]


def test_a_partition_that_a_broker_no_longer_leads_is_forgotten():
    world = World(Random(1))
    for broker in (2, 3):
        world.rows[broker] = {p: row(broker, 19, partition=p.partition) for p in PARTITIONS}
    world.poll()
    watch = world.leaders[0]._watch
    watch.expect(PARTITIONS[0], 200.0, is_out_of_sync=True)
    kept = ("led", "since", "caught_up", "_hosted", "_passing", "_out_of_sync")
    assert all(getattr(watch, name) for name in kept)
    for hosted in world.hosted:
        hosted.clear()
    world.poll()
    assert not [name for name in kept if getattr(watch, name)]
    assert watch.followers == ()
