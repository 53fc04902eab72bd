"""Elections on the tables of a cluster; the clock by which brokers die is the test's."""

import logging

import pytest

from replication.config import Config
from replication.controller.elector import PREFERRED, UNCLEAN, Elector
from replication.errors import (
    ElectionNotNeededException,
    EligibleLeadersNotAvailableException,
    InvalidRequestException,
    KafkaStorageException,
    PreferredLeaderNotAvailableException,
    UnknownTopicOrPartitionException,
)
from replication.protocol.isr import change_to
from replication.protocol.leader_election import new_partition, with_leader
from replication.protocol.partition_registration import NO_LEADER
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.commit import last_version, read_commit
from replication.storage.delta_log import DeltaLog
from replication.storage.filesystem import StorageRoot
from replication.storage.liveness import Liveness
from replication.storage.topic_table import Topic
from tests.clock import Clock
from tests.processes import wait_until

P = TopicIdPartition("flights-id", 0)


class World:
    """Brokers 1 to 3 and the topic flights, whose partition 0 has them all as replicas: 1 leads."""

    def __init__(self, root):
        home = StorageRoot.of(root).child("cluster")
        format_cluster(home, Config())
        self.cluster, self.clock = Cluster.open(home.uri), Clock()
        self.beats = {broker: BrokerTable.open_or_create(home, broker) for broker in (1, 2, 3)}
        for broker in self.beats:
            self.register(broker, epoch=1)
        self.add_topic("flights", (1, 2, 3))
        self.elector = Elector(Cluster.open(home.uri), Liveness(6000, self.clock))
        self.elector.look()

    def register(self, broker, epoch):
        self.beats[broker].register(
            lambda _: BrokerRegistration(broker, f"/{broker}", None, epoch, 0, -1, False, None, "log", 0)
        )

    def add_topic(self, topic, *assignments, live=(1, 2, 3), configs=None):
        self.cluster.topics.add(Topic(topic, f"{topic}-id", len(assignments), configs or {}))
        self.put(*(new_partition(topic, f"{topic}-id", n, ar, live) for n, ar in enumerate(assignments)))

    def put(self, *registrations):
        self.cluster.metadata.put(registrations, {"who": "test"})

    def look(self, *alive, after=7.0):
        """The elector looks again, when these brokers alone have shown life."""
        self.clock.now += after
        for broker in alive:
            self.beats[broker].refresh()
            self.beats[broker].update(self.beats[broker].registration.broker_epoch, "heartbeat")
        self.elector.look()

    def all(self):
        self.cluster.metadata.refresh()
        return self.cluster.metadata.partitions

    def partition(self, partition=P):
        found = self.all()[partition]
        return found.leader, found.isr, found.leader_epoch, found.partition_epoch

    def commits(self):
        return last_version(self.cluster.root.child("metadata"))


@pytest.fixture
def world(root):
    return World(root)


def test_ps_03_while_nothing_moves_nothing_is_written(world):
    before = world.commits()
    for _ in range(3):
        world.look(1, 2, 3)
    assert world.commits() == before
    assert world.partition() == (1, (1, 2, 3), 0, 0)


def test_bd_01_le_01_when_a_leader_dies_the_next_of_the_isr_leads(world):
    world.look(2, 3)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_bd_02_when_a_follower_dies_it_leaves_the_isr_and_the_leader_stays(world):
    world.look(1, 3)
    assert world.partition() == (1, (1, 3), 1, 1)


def test_bd_01_a_death_is_acted_upon_once(world):
    world.look(2, 3)
    before = world.commits()
    world.look(2, 3)
    assert world.commits() == before


def test_bd_02_le_01_the_last_member_stays_in_the_isr_and_leads_again_when_it_is_back(world):
    world.look(1, 2)
    world.look(1)
    world.look()
    assert world.partition() == (NO_LEADER, (1,), 3, 3)
    world.look(2, 3)
    assert world.partition() == (NO_LEADER, (1,), 3, 3), "who was not in sync does not lead"
    world.look(1, 2, 3)
    assert world.partition() == (1, (1,), 4, 4)


def test_le_02_outside_the_isr_only_where_the_topic_allows_it(world):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.add_topic("strict", (1, 2))
    world.look(1, 3)
    world.look(3)
    world.look(2, 3)
    assert world.partition(TopicIdPartition("loose-id", 0))[:2] == (2, (2,))
    assert world.partition(TopicIdPartition("strict-id", 0))[:2] == (NO_LEADER, (1,))


@pytest.mark.parametrize(
    ("isr", "leader", "expected"),
    [
        pytest.param((1, 2, 3), 1, (2, (2, 3)), id="a leader: another leads"),
        pytest.param((2, 3, 1), 2, (2, (2, 3)), id="a follower: it leaves the ISR"),
        pytest.param((1,), 1, (1, (1,)), id="the last member: it leads on, under another epoch"),
    ],
)
def test_bc_01_bd_01_a_broker_that_has_begun_anew_has_failed_in_between(world, isr, leader, expected):
    """Also if its heartbeat has never stood still: what it knew in memory is gone."""
    world.put(with_leader(world.all()[P], leader, isr))
    world.elector.look()
    before = world.partition()
    world.register(1, epoch=2)
    world.look(1, 2, 3, after=1.0)
    assert world.partition()[:2] == expected
    assert world.partition()[2] > before[2]
    world.look(1, 2, 3, after=1.0)
    assert world.partition()[:2] == expected, "it has failed once"


def test_bd_01_two_brokers_that_have_begun_anew_at_once_do_not_elect_each_other(world):
    world.register(1, epoch=2)
    world.register(2, epoch=2)
    world.look(1, 2, 3, after=1.0)
    assert world.partition() == (3, (3,), 1, 1)


def test_bd_01_bd_02_ps_04_all_partitions_are_changed_in_one_commit(world):
    world.add_topic("more", (1, 2), (2, 1), (3, 2), (1,))
    world.elector.look()
    before = world.commits()
    world.look(2, 3)
    assert world.commits() == before + 1
    leaders = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert leaders == {0: (2, (2,)), 1: (2, (2,)), 2: (3, (3, 2)), 3: (NO_LEADER, (1,))}
    assert world.partition() == (2, (2, 3), 1, 1)
    info = read_commit(world.cluster.root.child("metadata"), before + 1).info
    assert (info["who"], info["why"]) == ("elector", "brokers")


def test_ps_04_metadata_that_has_moved_is_looked_at_though_no_broker_has(world):
    world.look(2, 3)
    world.add_topic("late", (1, 2), live=(1, 2))
    world.look(2, 3)
    assert world.partition(TopicIdPartition("late-id", 0)) == (2, (2,), 1, 1)


def test_bd_01_a_broker_that_shuts_down_is_as_good_as_dead(world):
    world.beats[1].update(1, "shutdown", shutting_down=True)
    world.look(2, 3, after=1.0)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_03_ps_03_a_new_partition_that_found_nobody_alive_gets_its_first_leader(world):
    world.put(new_partition("flights", "flights-id", 1, (2, 3), ()))
    world.look(1)
    assert world.partition(TopicIdPartition("flights-id", 1)) == (NO_LEADER, (), 0, 0)
    world.look(1, 3)
    assert world.partition(TopicIdPartition("flights-id", 1)) == (3, (3,), 1, 1)


def test_td_05_a_partition_of_a_topic_that_was_made_again_is_left_alone(world):
    older = new_partition("flights", "older-id", 0, (1, 2), (1, 2))
    world.put(older)
    world.look(2, 3)
    assert world.all()[older.topic_id_partition] == older
    assert world.partition()[0] == 2


def test_is_05_is_06_an_isr_that_a_leader_has_changed_is_what_the_next_election_sees(world):
    """The leader tells nobody: the metadata has moved, and that is enough."""
    found = world.all()[P]
    world.cluster.metadata.alter_partitions([change_to(found, (1, 3))], dict, {"who": "broker-1"})
    world.look(2, 3)
    assert world.partition() == (3, (3,), 1, 2)


def test_le_06_an_election_that_loses_to_an_isr_change_is_decided_again(world, monkeypatch):
    """Between the decision and its commit the leader takes the one out who was to lead."""
    found, commit, changes = world.all()[P], DeltaLog.commit, [(1, 3)]

    def interfere(log, *args, **options):
        if changes:
            change = change_to(found, changes.pop())
            world.cluster.metadata.alter_partitions([change], dict, {"who": "broker-1"})
        return commit(log, *args, **options)

    world.beats[2].update(1, "heartbeat")
    world.beats[3].update(1, "heartbeat")
    world.clock.now += 7
    monkeypatch.setattr(DeltaLog, "commit", interfere)
    world.elector.look()
    assert world.partition() == (3, (3,), 1, 2)


def test_le_06_an_answer_that_was_lost_does_not_elect_twice(world, monkeypatch):
    commit, errors = DeltaLog.commit, [KafkaStorageException("timed out")]

    def lose(log, *args, **options):
        version = commit(log, *args, **options)
        if errors and "metadata" in log.root.uri:
            raise errors.pop()
        return version

    monkeypatch.setattr(DeltaLog, "commit", lose)
    with pytest.raises(KafkaStorageException):
        world.look(2, 3)
    world.look(2, 3, after=0.0)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_05_pe_01_the_preferred_replica_is_elected_by_hand(world):
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    world.elector.elect("flights", 0, PREFERRED)
    assert world.partition() == (1, (1, 2, 3), 2, 2)


def test_le_02_the_first_live_replica_is_elected_by_hand_when_nobody_leads(world):
    world.put(with_leader(world.all()[P], NO_LEADER, (1,)))
    world.look(2, 3)
    assert world.partition()[0] == NO_LEADER
    world.elector.elect("flights", 0, UNCLEAN)
    assert world.partition()[:2] == (2, (2,))


@pytest.mark.parametrize(
    ("leader", "isr", "alive", "kind", "error", "text"),
    [
        (1, (1, 2), (1, 2), PREFERRED, ElectionNotNeededException, "flights-0: broker 1 leads already"),
        (2, (1, 2), (1, 2), UNCLEAN, ElectionNotNeededException, "flights-0: broker 2 leads already"),
        (2, (2,), (1, 2), PREFERRED, PreferredLeaderNotAvailableException, r"broker 1 is not alive .* ISR \(2,\)"),
        (2, (1, 2), (2,), PREFERRED, PreferredLeaderNotAvailableException, "broker 1 is not alive"),
        (NO_LEADER, (1,), (), UNCLEAN, EligibleLeadersNotAvailableException, r"none of \(1, 2, 3\) is alive"),
    ],
)
def test_pe_01_le_02_an_election_by_hand_is_refused(world, leader, isr, alive, kind, error, text):
    world.clock.now += 7
    for broker in alive:
        world.beats[broker].update(1, "heartbeat")
    world.put(with_leader(world.all()[P], leader, isr))
    before = world.partition()
    with pytest.raises(error, match=text):
        world.elector.elect("flights", 0, kind)
    assert world.partition() == before


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("flights", 7)])
def test_pe_01_an_unknown_partition_is_named(world, topic, partition):
    with pytest.raises(UnknownTopicOrPartitionException, match=f"no partition {topic}-{partition}"):
        world.elector.elect(topic, partition, PREFERRED)


def test_pe_01_an_election_by_hand_concerns_no_other_partition(world):
    world.add_topic("more", (1, 2))
    more = with_leader(world.all()[TopicIdPartition("more-id", 0)], 2, (1, 2))
    world.put(more, with_leader(world.all()[P], 2, (1, 2, 3)))
    world.elector.elect("flights", 0, PREFERRED)
    assert world.all()[more.topic_id_partition] == more


def test_le_04_cs_05_cs_06_who_shuts_down_gives_away_what_it_leads_and_leaves_every_isr(world):
    world.add_topic("more", (1, 2), (2, 1), (1,), (3, 2))
    only = with_leader(world.all()[TopicIdPartition("more-id", 0)], 1, (1,))
    world.put(only)
    before = world.commits()
    world.elector.controlled_shutdown(1)
    assert world.commits() == before + 1
    assert world.partition() == (2, (2, 3), 1, 1)
    more = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert more == {0: (1, (1,)), 1: (2, (2,)), 2: (1, (1,)), 3: (3, (3, 2))}, "nobody else may lead 0 and 2"


def test_bl_12_le_02_an_election_is_logged_with_what_it_may_have_lost(world, caplog):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.put(with_leader(world.all()[TopicIdPartition("loose-id", 0)], 1, (1,)))
    with caplog.at_level(logging.INFO, "state.change.logger"):
        world.look(2, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "elector: flights-0: leader 1 -> 2, ISR (1, 2, 3) -> (2, 3), leader epoch 1 (brokers)",
        "elector: loose-0: leader 1 -> 2, ISR (1,) -> (2,), leader epoch 2 (brokers, unclean)",
    ]


def test_ev_01_it_looks_again_and_again_also_after_an_error(world, monkeypatch):
    real, looks, errors = Cluster.refresh_brokers, [], [KafkaStorageException("later"), OSError("reset")]

    def refresh(cluster):
        looks.append(cluster)
        if errors:
            raise errors.pop()
        return real(cluster)

    monkeypatch.setattr(Cluster, "refresh_brokers", refresh)
    world.clock.now += 7
    world.beats[2].update(1, "heartbeat")
    world.elector.start()
    wait_until(lambda: world.partition()[0] == 2, "an election by its thread")
    world.elector.stop()
    assert errors == []
    assert len(looks) >= 3


@pytest.mark.parametrize("kind", ["Preferred", "clean", ""])
def test_pe_01_an_election_of_no_known_type_is_refused(world, kind):
    world.put(with_leader(world.all()[P], NO_LEADER, (1,)))
    before = world.partition()
    with pytest.raises(InvalidRequestException, match="it must be preferred or unclean"):
        world.elector.elect("flights", 0, kind)
    assert world.partition() == before
