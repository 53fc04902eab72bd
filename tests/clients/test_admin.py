"""The admin client: the controller decides its requests, and it returns the decisions."""

from dataclasses import replace

import pytest

from lakelog.replication.clients import controller_channel
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidReplicaAssignmentException,
    InvalidReplicationFactorException,
    InvalidRequestException,
    InvalidTopicException,
    PolicyViolationException,
    RequestCancelledException,
    TimeoutException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.admin_request import APPLYING, Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.controllers import controller_of
from tests.copied_roots import copied
from tests.processes import wait_until


@pytest.fixture
def cluster_uri(root):
    home = StorageRoot.of(root).child("cluster")
    copied(three_brokers, home)
    return home.uri


def three_brokers(home):
    format_cluster(home, Config())
    for broker_id in (1, 2, 3):
        row = BrokerRegistration(broker_id, f"/{broker_id}", None, 1, -1, False, None, "log", 0)
        BrokerTable.open_or_create(home, broker_id).register(lambda _, row=row: row)


@pytest.fixture
def admin(cluster_uri):
    with controller_of(cluster_uri) as controller:
        wait_until(lambda: controller.is_active, "the controller is active")
        yield AdminClient(cluster_uri)


def test_li_02_a_created_topic_has_a_leader_for_each_partition(admin):
    made = admin.create_topic("t", 4, 3, configs={"min.insync.replicas": 2})
    assert made.topic.configs == {"min.insync.replicas": "2"}
    assert [(p.partition, p.leader, p.isr, p.leader_epoch) for p in made.partitions] == [
        (p.partition, p.replicas[0], p.replicas, 0) for p in made.partitions
    ]
    assert admin.list_topics() == ["t"]


def test_create_topic_with_if_not_exists_describes_an_existing_topic(admin):
    made = admin.create_topic("t", 2, 1, if_not_exists=True)
    assert admin.create_topic("t", 4, 3, if_not_exists=True) == made
    with pytest.raises(TopicExistsException):
        admin.create_topic("t", 2, 1)
    with pytest.raises(InvalidTopicException):
        admin.create_topic("a b", if_not_exists=True)


def test_create_topic_with_if_not_exists_refuses_a_topic_that_is_being_deleted(admin, monkeypatch):
    made = admin.create_topic("t", 1, 1)
    deleted = replace(made, topic=replace(made.topic, deleting=True))
    monkeypatch.setattr(AdminClient, "describe_topic", lambda *_: deleted)
    with pytest.raises(TopicExistsException):
        admin.create_topic("t", 1, 1, if_not_exists=True)


def test_validate_topic_creates_nothing(admin):
    said = admin.validate_topic("t", assignment={0: [3, 1], 1: [1, 2]})
    assert said == "partition 0 on brokers 3,1; partition 1 on brokers 1,2"
    assert admin.list_topics() == []


REFUSED = {
    "a name": (InvalidTopicException, lambda admin: admin.create_topic("a/b")),
    "exists": (TopicExistsException, lambda admin: admin.create_topic("there")),
    "too many replicas": (InvalidReplicationFactorException, lambda admin: admin.create_topic("t", 1, 4)),
    "no partitions": (InvalidPartitionsException, lambda admin: admin.create_topic("t", 0)),
    "unknown broker": (InvalidReplicaAssignmentException, lambda admin: admin.create_topic("t", assignment={0: [9]})),
    "twice": (InvalidReplicaAssignmentException, lambda admin: admin.create_topic("t", assignment={0: [1, 1]})),
    "both": (InvalidPartitionsException, lambda admin: admin.create_topic("t", 1, None, {0: [1]})),
    "unknown key": (InvalidConfigurationException, lambda admin: admin.create_topic("t", configs={"x": 1})),
    "delete: unknown": (UnknownTopicOrPartitionException, lambda admin: admin.delete_topic("t")),
    "fewer partitions": (InvalidPartitionsException, lambda admin: admin.create_partitions("there", 1)),
    "partitions of none": (UnknownTopicOrPartitionException, lambda admin: admin.create_partitions("t", 2)),
    "gap": (InvalidPartitionsException, lambda admin: admin.create_partitions("there", 2, {2: [1]})),
    "bad setting": (InvalidConfigurationException, lambda admin: admin.alter_configs("there", {"retention": "x"})),
    "bad key": (InvalidConfigurationException, lambda admin: admin.alter_configs("there", {}, ["retention"])),
}


@pytest.mark.parametrize(("error", "ask"), REFUSED.values(), ids=REFUSED)
def test_a_refused_change_raises_the_controllers_error_and_changes_nothing(admin, cluster_uri, error, ask):
    admin.create_topic("there", assignment={0: [1, 2]})
    cluster = Cluster.open(cluster_uri)
    before = cluster.metadata.version, cluster.topics.topics
    with pytest.raises(error):
        ask(admin)
    cluster = Cluster.open(cluster_uri)
    assert (cluster.metadata.version, cluster.topics.topics) == before


def test_li_07_partitions_are_added(admin):
    admin.create_topic("t", assignment={0: [1, 2]})
    admin.create_partitions("t", 3, {1: [2, 3], 2: [3, 1]})
    assert [(p.replicas, p.leader) for p in admin.describe_topic("t").partitions] == [
        ((1, 2), 1), ((2, 3), 2), ((3, 1), 3),
    ]  # fmt: skip
    admin.create_partitions("t", 7)
    partitions = admin.describe_topic("t").partitions
    assert [p.partition for p in partitions] == list(range(7))
    assert {len(p.replicas) for p in partitions} == {2}


def test_alter_configs_sets_and_deletes_settings_of_a_topic(admin):
    admin.create_topic("t", configs={"min.insync.replicas": 2})
    admin.alter_configs("t", {"unclean.leader.election.enable": "true"}, ["min.insync.replicas"])
    assert admin.describe_topic("t").topic.configs == {"unclean.leader.election.enable": "true"}


WRONG = {
    "a truth value for a broker": lambda admin: admin.create_topic("t", assignment={0: [True, 2]}),
    "a fraction for a broker": lambda admin: admin.create_topic("t", assignment={0: [1.0]}),
    "a text for brokers": lambda admin: admin.create_topic("t", assignment={0: "12"}),
    "a truth value for a number": lambda admin: admin.create_topic("t", True, 1),
    "a fraction for a factor": lambda admin: admin.create_topic("t", 1, 1.5),
    "a list for a name": lambda admin: admin.delete_topic(["t"]),
    "half a character": lambda admin: admin.delete_topic("\ud800"),
    "a list for settings": lambda admin: admin.create_topic("t", configs=["a"]),
    "a text for partitions": lambda admin: admin.create_partitions("t", "3"),
    "a text for a target": lambda admin: admin.alter_partition_reassignments({("t", 0): "12"}),
    "no type of election": lambda admin: admin.elect_leaders(None),
}


@pytest.mark.parametrize("ask", WRONG.values(), ids=WRONG)
def test_ev_05_an_argument_of_a_wrong_type_is_refused_without_a_request(cluster_uri, ask):
    with pytest.raises(InvalidRequestException, match="must be"):
        ask(AdminClient(cluster_uri))
    assert Cluster.open(cluster_uri).admin.requests == []


TOO_MANY = {
    "partitions": lambda admin: admin.create_topic("t", 6),
    "lists": lambda admin: admin.create_topic("t", assignment={n: [1] for n in range(6)}),
    "of a dry run": lambda admin: admin.validate_topic("t", 6),
    "in all": lambda admin: admin.create_partitions("t", 6),
    "moves": lambda admin: admin.alter_partition_reassignments({("t", n): [1] for n in range(6)}),
    "elections": lambda admin: admin.elect_leaders("preferred", [("t", n) for n in range(6)]),
}


@pytest.mark.parametrize("ask", TOO_MANY.values(), ids=TOO_MANY)
def test_ev_05_too_many_partitions_are_refused_without_a_request(cluster_uri, ask):
    limits = {"lakelog.max.partitions.per.topic": 5, "lakelog.max.partitions.per.request": 5}
    with pytest.raises(PolicyViolationException, match=r"6 partitions exceed lakelog\.max"):
        ask(AdminClient(cluster_uri, Config.from_properties(limits)))
    assert Cluster.open(cluster_uri).admin.requests == []


IMPATIENT = Config.from_properties({"request.timeout.ms": 100})


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_request_that_no_controller_decides_in_time_is_withdrawn(cluster_uri, validate_only):
    lease = Cluster.open(cluster_uri).lease
    slow = lease.elect("slow", None)
    client = AdminClient(cluster_uri, IMPATIENT)
    with pytest.raises(TimeoutException, match=r"no controller has decided request .*; it is withdrawn"):
        client.request("delete_topic", {"topic": "t"}, validate_only=validate_only)
    left = [outcome.error for r in client.list_requests() for outcome in r.outcomes.values()]
    assert left == ([] if validate_only else ["TimeoutException"]), "a dry run leaves nothing behind"
    lease.resign(slow)
    with controller_of(cluster_uri):
        AdminClient(cluster_uri).create_topic("u")
    assert client.list_topics() == ["u"]


def test_a_timeout_after_the_row_was_removed_does_not_claim_that_nothing_was_done(cluster_uri, monkeypatch):
    monkeypatch.setattr(AdminTable, "withdraw", lambda *_: None)
    with pytest.raises(TimeoutException, match="it is not in the table of requests: check whether it was carried out"):
        AdminClient(cluster_uri, IMPATIENT).create_topic("t")


def test_a_request_that_is_being_applied_is_not_withdrawn(cluster_uri, monkeypatch):
    client = AdminClient(cluster_uri, IMPATIENT)
    admin, add = Cluster.open(cluster_uri).admin, AdminTable.add

    def add_and_take_up(table, request, deadline):
        add(table, request, deadline)
        admin.move(request.request_id, APPLYING, 3)

    monkeypatch.setattr(AdminTable, "add", add_and_take_up)
    with pytest.raises(TimeoutException, match="epoch 3 is carrying it out"):
        client.create_topic("t")
    (request,) = client.list_requests()
    assert (request.state, request.outcomes) == (APPLYING, None)
    with pytest.raises(InvalidRequestException, match="epoch 3 carries it out already"):
        client.cancel_request(request.request_id)


def test_a_request_that_is_decided_at_the_timeout_returns_its_outcome(cluster_uri, monkeypatch):
    client = AdminClient(cluster_uri, IMPATIENT)
    admin, withdraw = Cluster.open(cluster_uri).admin, AdminTable.withdraw

    def decide_before(table, request_id, *args):
        admin.decide({request_id: {"t": Outcome(None, "is being deleted")}}, 1)
        return withdraw(table, request_id, *args)

    monkeypatch.setattr(AdminTable, "withdraw", decide_before)
    assert client.delete_topic("t") == "is being deleted"


def test_a_client_that_is_interrupted_withdraws_its_request(cluster_uri, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(controller_channel, "pause", interrupt)
    client = AdminClient(cluster_uri)
    with pytest.raises(KeyboardInterrupt):
        client.create_topic("t")
    (request,) = client.list_requests()
    assert request.outcomes == {"create_topic": Outcome("TimeoutException", "its client was interrupted")}


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_client_whose_request_is_cancelled_raises_request_cancelled(cluster_uri, monkeypatch, validate_only):
    Cluster.open(cluster_uri).lease.elect("slow", None)
    client, other = AdminClient(cluster_uri), AdminClient(cluster_uri, requested_by="somebody")
    monkeypatch.setattr(
        controller_channel, "pause", lambda *_: [other.cancel_request(r.request_id) for r in other.list_requests()]
    )
    said = "was removed from the table of requests" if validate_only else "cancelled by somebody"
    with pytest.raises(RequestCancelledException, match=said):
        client.delete_topic("t", validate_only=validate_only)


def test_a_dry_run_removes_its_row_after_the_answer(admin):
    admin.validate_topic("t", 3)
    with pytest.raises(UnknownTopicOrPartitionException):
        admin.delete_topic("t", validate_only=True)
    assert admin.list_requests() == []
