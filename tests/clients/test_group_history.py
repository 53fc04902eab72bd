"""Random histories of a group on real tables: members come, go, die, and are stopped anywhere.

All run in one thread, on a clock that the test moves. Before a commit of one member, or after its fetch, others may run
for long, as if its process was stopped there: they may take it for dead, and go on with its partitions.
"""

import random

import pytest

from lakelog.replication.clients import group_consumer
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.group_membership import GroupMembership, HeartbeatThread
from lakelog.replication.storage.delta.delta_log import DeltaLog
from tests.clients.world import World
from tests.storage.logs import P0, P1, TOPIC, fill

SEEDS, STEPS = range(2), 30
SESSION = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 2000}


class History:
    """Consumers under way, what each has got, and what the group has committed."""

    def __init__(self, seed, world, monkeypatch):
        self.rng = random.Random(seed)
        self.world = world
        world.say(0)
        world.say(0, P1)
        self.now = 100.0
        self.consumers = []
        self.got = {}  # record: the incarnations that got it
        self.committed = {}
        self.active = None  # the consumer at work
        self.stopped = None
        self.stops = 0
        commit = DeltaLog.commit
        monkeypatch.setattr(DeltaLog, "commit", lambda *a, **o: self.maybe_stopped() or commit(*a, **o))
        fetch = group_consumer.fetch_records
        monkeypatch.setattr(group_consumer, "fetch_records", lambda *a: [fetch(*a), self.maybe_stopped()][0])
        monkeypatch.setattr(HeartbeatThread, "start", lambda _: None)
        monkeypatch.setattr(GroupMembership.__init__, "__defaults__", (lambda: (self.now, self.now),))

    def maybe_stopped(self):
        """The process that is about to commit is stopped, while others run."""
        if self.active and not self.stopped and self.rng.random() < 0.1:
            self.stopped, self.active, self.stops = self.active, None, self.stops + 1
            for _ in range(self.rng.choice((3, 15, 25))):
                self.step()
            self.active, self.stopped = self.stopped, None

    def step(self):
        self.now += self.rng.choice((0, 0.5, 2))
        act = self.rng.choice((*["poll"] * 10, "come", "close", "die", *["send"] * 3))
        running = [consumer for consumer in self.consumers if consumer is not self.stopped]
        if act == "send":
            self.send(self.rng.choice((P0, P1)))
        elif act == "come" or not running:
            if len(self.consumers) < 4:
                self.come()
        else:
            self.active = self.rng.choice(running)
            getattr(self, act)(self.active)
            self.active = None
        self.check()

    def come(self):
        strategy = self.rng.choice(("range,cooperative-sticky", "cooperative-sticky,range"))
        consumer = Consumer(
            self.world.uri, "g", auto_offset_reset="earliest", auto_commit_interval_ms=self.rng.choice((0, 10**6)),
            partition_assignment_strategy=strategy, **SESSION,
        )  # fmt: skip
        consumer.subscribe([TOPIC])
        self.consumers.append(consumer)

    def poll(self, consumer):
        consumer._member._heartbeat.work()
        records = consumer.poll(0)
        me = consumer._member.membership.member_id
        for partition, offset in zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True):
            for earlier in self.got.setdefault((partition, offset), []):
                assert earlier != me, "twice to one member"
                assert earlier not in self.members(), "a member that is alive has got it before"
            self.got[partition, offset].append(me)

    def close(self, consumer):
        self.consumers.remove(consumer)
        consumer.close()

    def die(self, consumer):
        self.consumers.remove(consumer)

    def send(self, partition):
        fill(self.world.logs[1], partition, 1, producer_id=self.rng.randrange(10**9))
        self.world.say(self.world.logs[1].refresh().partition(partition).log_end_offset, partition)

    def members(self):
        """Members that nobody has removed; those that have died, too, until others notice."""
        group = GroupAccess(self.world.cluster, "g").refresh()
        owned = [partition for member in group.members for partition in member.owned]
        assert len(owned) == len(set(owned)), "two owners"
        return {member.member_id for member in group.members}

    def check(self):
        found = self.world.cluster.groups.committed("g")
        for partition, offset in found.items():
            assert offset >= self.committed.get(partition, 0), "committed offsets go back"
            assert all((partition.partition, before) in self.got for before in range(offset)), "never read"
        self.committed = found


@pytest.mark.parametrize("seed", SEEDS)
def test_ap_04_no_record_goes_to_two_members_that_are_alive(seed, root, monkeypatch):
    history = History(seed, World(root), monkeypatch)
    for _ in range(STEPS):
        history.step()
    assert history.stops
    assert history.got
