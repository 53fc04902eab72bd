"""Elections on the tables of a cluster; the clock by which brokers die is the test's."""

import logging
from contextlib import nullcontext

import pytest

from replication.config import Config
from replication.controller.active_controller import ActiveController
from replication.controller.controller import Controller
from replication.errors import ControllerMovedException, KafkaStorageException
from replication.protocol.isr import change_to
from replication.protocol.leader_election import new_partition, with_leader
from replication.protocol.partition_registration import NO_LEADER
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.admin_table import AdminRequest
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.commit import last_version, read_commit
from replication.storage.controller_lease import Lease
from replication.storage.delta_log import DeltaLog
from replication.storage.filesystem import StorageRoot
from replication.storage.liveness import Liveness
from replication.storage.topic_table import Topic
from tests.clock import Clock
from tests.processes import wait_until

P = TopicIdPartition("flights-id", 0)
NO_REBALANCE = Config.from_properties({"auto.leader.rebalance.enable": "false"})


class World:
    """Brokers 1 to 3 and the topic flights, whose partition 0 has them all as replicas: 1 leads."""

    def __init__(self, root):
        home = StorageRoot.of(root).child("cluster")
        format_cluster(home, Config())
        self.cluster, self.clock, self.terms = Cluster.open(home.uri), Clock(), 0
        self.liveness = Liveness(6000, self.clock)
        self.beats = {broker: BrokerTable.open_or_create(home, broker) for broker in (1, 2, 3)}
        for broker in self.beats:
            self.register(broker, epoch=1)
        self.add_topic("flights", (1, 2, 3))
        self.fail_over()

    def register(self, broker, epoch):
        self.beats[broker].register(
            lambda _: BrokerRegistration(broker, f"/{broker}", None, epoch, 0, -1, False, None, "log", 0)
        )

    def fail_over(self):
        """Another controller is elected; it has followed the heartbeats all along."""
        self.terms += 1
        before = self.controller.context.brokers if self.terms > 1 else {}
        cluster = Cluster.open(self.cluster.root.uri, NO_REBALANCE)
        self.controller = ActiveController(cluster, self.liveness, Lease("test", self.terms), self.clock)
        self.controller.fail_over(before)

    def add_topic(self, topic, *assignments, live=(1, 2, 3), configs=None):
        row = Topic(topic, f"{topic}-id", len(assignments), configs or {})
        self.cluster.topics.change([row], (), {"who": "test"})
        self.put(*(new_partition(topic, f"{topic}-id", n, ar, live) for n, ar in enumerate(assignments)))

    def put(self, *registrations):
        """The metadata as a controller before this one has left it."""
        self.cluster.metadata.put(registrations, {"who": "test"})
        if self.terms:
            self.fail_over()

    def look(self, *alive, after=7.0):
        """The controller looks again, when these brokers alone have shown life."""
        self.clock.now += after
        for broker in alive:
            self.beats[broker].refresh()
            self.beats[broker].update(self.beats[broker].registration.broker_epoch, "heartbeat")
        self.controller.look()

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
    world.controller.look()
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
    world.controller.look()
    before = world.commits()
    world.look(2, 3)
    assert world.commits() == before + 1
    leaders = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert leaders == {0: (2, (2,)), 1: (2, (2,)), 2: (3, (3, 2)), 3: (NO_LEADER, (1,))}
    assert world.partition() == (2, (2, 3), 1, 1)
    info = read_commit(world.cluster.root.child("metadata"), before + 1).info
    assert (info["who"], info["why"]) == ("controller", "BrokerChange")


def test_bd_01_a_broker_that_shuts_down_is_as_good_as_dead(world):
    world.beats[1].update(1, "shutdown", shutting_down=True)
    world.look(2, 3, after=1.0)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_03_ps_03_a_new_partition_that_found_nobody_alive_gets_its_first_leader(world):
    world.look(1)
    world.put(new_partition("flights", "flights-id", 1, (2, 3), ()))
    assert world.partition(TopicIdPartition("flights-id", 1)) == (NO_LEADER, (), 0, 0)
    world.look(1, 3)
    assert world.partition(TopicIdPartition("flights-id", 1)) == (3, (3,), 1, 1)


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
    world.controller.look()
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


def test_le_04_cs_05_cs_06_who_shuts_down_gives_away_what_it_leads_and_leaves_every_isr(world):
    world.add_topic("more", (1, 2), (2, 1), (1,), (3, 2))
    only = with_leader(world.all()[TopicIdPartition("more-id", 0)], 1, (1,))
    world.put(only)
    before = world.commits()
    world.beats[1].update(1, "shutdown", shutting_down=True)
    world.controller.look()
    assert world.commits() == before + 1
    assert world.partition() == (2, (2, 3), 1, 1)
    more = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert more == {0: (1, (1,)), 1: (2, (2,)), 2: (1, (1,)), 3: (3, (3, 2))}, "nobody else may lead 0 and 2"


def test_bl_12_le_02_an_election_is_logged_with_what_it_may_have_lost(world, caplog):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.put(with_leader(world.all()[TopicIdPartition("loose-id", 0)], 1, (1,)))
    with caplog.at_level(logging.INFO, "state.change.logger"):
        world.look(2, 3)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "controller epoch 3: flights-0: OnlinePartition -> OfflinePartition (BrokerChange)",
        "controller epoch 3: loose-0: OnlinePartition -> OfflinePartition (BrokerChange)",
        "controller epoch 3: flights-0: OfflinePartition -> OnlinePartition (BrokerChange)",
        "controller epoch 3: loose-0: OfflinePartition -> OnlinePartition (BrokerChange)",
        "controller epoch 3: flights-0: leader 1 -> 2, ISR (1, 2, 3) -> (2, 3), leader epoch 1 (BrokerChange)",
        "controller epoch 3: loose-0: leader 1 -> 2, ISR (1,) -> (2,), leader epoch 2 (BrokerChange, unclean)",
    ]


def test_ev_01_it_looks_again_and_again_also_after_an_error(world, monkeypatch):
    real, looks, errors = Cluster.refresh_brokers, [], [KafkaStorageException("later"), OSError("reset")]

    def refresh(cluster):
        looks.append(cluster)
        if errors:
            raise errors.pop()
        return real(cluster)

    monkeypatch.setattr(Cluster, "refresh_brokers", refresh)
    controller = Controller(Cluster.open(world.cluster.root.uri), "another", world.clock)
    controller.start()
    wait_until(lambda: controller.is_active, "the office")
    world.clock.now += 7
    world.beats[2].update(1, "heartbeat")
    wait_until(lambda: world.partition()[0] == 2, "an election by its thread")
    controller.stop()
    assert errors == []
    assert len(looks) >= 3


# --- requests ---


def ask(world, kind, request_id="request", validate_only=False, **arguments):
    """Puts a request, and tells what has become of it."""
    version = world.cluster.metadata.version
    world.cluster.admin.add(AdminRequest(request_id, kind, arguments, validate_only, "test", version))


def outcomes(world, request_id="request"):
    world.cluster.admin.refresh()
    found = world.cluster.admin.request(request_id).outcomes
    return found and {name: outcome.error for name, outcome in found.items()}


def test_pe_01_what_is_asked_is_decided_and_its_outcome_stored(world):
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    ask(world, "elect_leaders", election_type="preferred", partitions=["flights-0", "nowhere-0"])
    world.controller.look()
    assert outcomes(world) == {"flights-0": None, "nowhere-0": "UnknownTopicOrPartitionException"}
    assert world.partition() == (1, (1, 2, 3), 2, 2)


@pytest.mark.parametrize(
    ("kind", "arguments", "error"),
    [
        pytest.param("make_coffee", {}, {"make_coffee": "InvalidRequestException"}, id="unknown"),
        pytest.param("create_topic", {"colour": 1}, {"create_topic": "InvalidRequestException"}, id="unreadable"),
        pytest.param("elect_leaders", {"election_type": "clean", "partitions": None},
                     {"elect_leaders": "InvalidRequestException"}, id="an election of no known type"),
    ],
)  # fmt: skip
def test_ev_01_a_request_that_cannot_be_read_is_refused_and_holds_up_nobody(world, kind, arguments, error):
    ask(world, kind, "bad", **arguments)
    ask(world, "create_topic", "good", topic="t", assignment={"0": [1, 2]})
    world.controller.look()
    assert (outcomes(world, "bad"), outcomes(world, "good")) == (error, {"t": None})


def test_a_request_that_is_only_validated_changes_nothing(world):
    before = world.commits()
    ask(world, "delete_topic", validate_only=True, topic="flights")
    world.controller.look()
    assert (outcomes(world), world.commits()) == ({"flights": None}, before)
    world.cluster.topics.refresh()
    assert not world.cluster.topics.topics["flights"].deleting


class Died(Exception):
    """A controller was killed."""


REQUESTS = {
    "create_topic": {"topic": "t", "assignment": {"0": [1, 2], "1": [2, 3]}},
    "create_partitions": {"topic": "flights", "total": 2, "assignment": {"1": [3, 1]}},
    "alter_configs": {"topic": "flights", "put": {"min.insync.replicas": "2"}, "delete": []},
    "delete_topic": {"topic": "flights"},
    "alter_partition_reassignments": {"reassignments": {"flights-0": [3, 1]}},
    "elect_leaders": {"election_type": "preferred", "partitions": ["flights-0"]},
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_fo_04_a_request_whose_controller_dies_half_way_is_finished_by_the_next(world, monkeypatch, kind, commits):
    """Killed before one of its commits, the last of which stores the outcome: nothing is lost or done twice."""
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    ask(world, kind, **REQUESTS[kind])
    commit, left = DeltaLog.commit, [None] * commits

    def die(log, *args, **options):
        if not left:
            raise Died
        left.pop()
        return commit(log, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "commit", die)
        with pytest.raises(Died) if commits < commits_of(kind) else nullcontext():
            world.controller.look()
    world.fail_over()
    world.controller.look()
    assert set(outcomes(world).values()) == {None}
    expected_of(kind)(world)


def commits_of(kind):
    """How many commits the request takes, its outcome among them."""
    return {"alter_configs": 2, "alter_partition_reassignments": 2, "elect_leaders": 2}.get(kind, 3)


def expected_of(kind):
    def check(world):
        world.cluster.topics.refresh()
        topics, found = world.cluster.topics.topics, world.all()
        told = {(r.topic, r.partition): (r.leader, r.leader_epoch, r.replicas) for r in found.values()}
        assert {
            "create_topic": lambda: told["t", 0] == (1, 0, (1, 2)) and told["t", 1] == (2, 0, (2, 3)),
            "create_partitions": lambda: told["flights", 1] == (3, 0, (3, 1)) and topics["flights"].partitions == 2,
            "alter_configs": lambda: topics["flights"].configs == {"min.insync.replicas": "2"},
            "delete_topic": lambda: topics["flights"].deleting and told["flights", 0][:2] == (-2, 2),
            "alter_partition_reassignments": lambda: told["flights", 0] == (3, 2, (3, 1)),
            "elect_leaders": lambda: told["flights", 0] == (1, 2, (1, 2, 3)),
        }[kind](), told

    return check


def test_td_03_a_topic_is_gone_when_every_broker_has_carried_its_deletion_out(world):
    ask(world, "delete_topic", topic="flights")
    world.controller.look()
    version = world.controller.context.deletions["flights-id"]
    for broker, applied in ((1, version), (2, version + 1), (3, version - 1)):
        world.beats[broker].update(1, "applied", metadata_version=applied)
    world.controller.look()
    assert P in world.all(), "broker 3 has not"
    world.beats[3].update(1, "applied", metadata_version=version)
    world.controller.look()
    world.cluster.topics.refresh()
    assert (world.all(), dict(world.cluster.topics.topics)) == ({}, {})


def test_ce_05_a_deposed_controller_can_write_to_no_table(world):
    deposed = world.controller
    world.fail_over()
    for request in ("create_topic", "make_coffee"):
        ask(world, request, request, topic="t", assignment={"0": [1]})
        with pytest.raises(ControllerMovedException, match="controller epoch 1 is over"):
            deposed.look()
    assert (outcomes(world, "create_topic"), outcomes(world, "make_coffee")) == (None, None)


def test_ar_01_the_balance_is_looked_at_5_s_after_failover_and_then_at_its_interval(world):
    config = Config.from_properties({"leader.imbalance.check.interval.seconds": 60})
    world.cluster.metadata.put([with_leader(world.all()[P], 2, (1, 2, 3))], {"who": "test"})
    cluster = Cluster.open(world.cluster.root.uri, config)
    world.controller = ActiveController(cluster, world.liveness, Lease("test", 2), world.clock)
    world.controller.fail_over(world.controller.context.brokers)
    leaders = {}
    for elapsed in (4, 6, 8, 64, 68):
        if elapsed == 8:
            world.cluster.metadata.refresh()
            world.cluster.metadata.put([with_leader(world.all()[P], 2, (1, 2, 3))], {"who": "test"})
        world.look(1, 2, 3, after=0)
        world.clock.now = 100.0 + elapsed
        world.look(1, 2, 3, after=0)
        leaders[elapsed] = world.partition()[0]
    assert leaders == {4: 2, 6: 1, 8: 2, 64: 2, 68: 1}
