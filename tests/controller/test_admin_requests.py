"""Clients' requests: the controller decides and stores them; if it dies midway, the next one finishes."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.controller.active_controller import ActiveController
from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.elections import with_leader
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from tests.controller.world import P, World
from tests.storage.delta.answers import lose_an_answer


@pytest.fixture
def world(root):
    return World(root)


def ask(world, kind, request_id="request", validate_only=False, **arguments):
    """Sends a request and returns its outcome."""
    version = world.cluster.metadata.version
    world.cluster.admin.add(AdminRequest(request_id, kind, arguments, validate_only, "test", version))


def outcomes(world, request_id="request"):
    world.cluster.admin.refresh()
    found = world.cluster.admin.request(request_id).outcomes
    return found and {name: outcome.error for name, outcome in found.items()}


def test_pe_01_a_request_is_decided_and_its_outcome_stored(world):
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    ask(world, "elect_leaders", election_type="preferred", partitions=["flights-0", "nowhere-0"])
    world.controller.poll()
    assert outcomes(world) == {"flights-0": None, "nowhere-0": "UnknownTopicOrPartitionException"}
    assert world.partition() == (1, (1, 2, 3), 2, 2)
    info = read_commit(world.cluster.root.child("metadata"), world.commits()).info
    assert (info["requested_by"], "brokers" in info) == ("test", False)


@pytest.mark.parametrize(
    ("kind", "arguments", "error"),
    [
        pytest.param("make_coffee", {}, {"make_coffee": "InvalidRequestException"}, id="unknown"),
        pytest.param("create_topic", {"colour": 1}, {"create_topic": "InvalidRequestException"}, id="unreadable"),
        pytest.param("elect_leaders", {"election_type": "clean", "partitions": None},
                     {"elect_leaders": "InvalidRequestException"}, id="an election of no known type"),
    ],
)  # fmt: skip
def test_ev_01_an_unreadable_request_is_refused_and_delays_no_other(world, kind, arguments, error):
    ask(world, kind, "bad", **arguments)
    ask(world, "create_topic", "good", topic="t", assignment={"0": [1, 2]})
    world.controller.poll()
    assert (outcomes(world, "bad"), outcomes(world, "good")) == (error, {"t": None})


def test_a_dry_run_changes_nothing(world):
    before = world.commits()
    ask(world, "delete_topic", validate_only=True, topic="flights")
    world.controller.poll()
    assert (outcomes(world), world.commits()) == ({"flights": None}, before)
    world.cluster.topics.refresh()
    assert not world.cluster.topics.topics["flights"].deleting


class Died(BaseException):
    """A controller was killed. Its code must not catch this."""


REQUESTS = {
    "create_topic": {"topic": "t", "assignment": {"0": [1, 2], "1": [2, 3]}},
    "create_partitions": {"topic": "flights", "total": 2, "assignment": {"1": [3, 1]}},
    "alter_configs": {"topic": "flights", "put": {"min.insync.replicas": "2"}, "delete": []},
    "alter_broker_configs": {"broker": "2", "put": {"leader.replication.throttled.rate": 5}, "delete": []},
    "delete_topic": {"topic": "flights"},
    "alter_partition_reassignments": {"reassignments": {"flights-0": [3, 1]}},
    "elect_leaders": {"election_type": "preferred", "partitions": ["flights-0"]},
}


@contextmanager
def killed_before_commit(monkeypatch, number, must_die=True):
    """The controller dies after this number of commits, instead of the next one."""
    commit, left = DeltaLog.commit, [None] * number

    def die(log, *args, **options):
        if not left:
            raise Died
        left.pop()
        return commit(log, *args, **options)

    with monkeypatch.context() as patched, pytest.raises(Died) if must_die else nullcontext():
        patched.setattr(DeltaLog, "commit", die)
        yield


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("commits", [0, 2, 3, 4])
def test_fo_04_a_request_whose_controller_dies_half_way_is_finished_by_the_next(world, monkeypatch, kind, commits):
    """Killed before any one of its commits. The last one stores the outcome. Nothing is lost or done twice."""
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    ask(world, kind, **REQUESTS[kind])
    with killed_before_commit(monkeypatch, commits, commits < commits_of(kind)):
        world.controller.poll()
    world.fail_over()
    world.controller.poll()
    assert set(outcomes(world).values()) == {None}
    expected_of(kind)(world)


def commits_of(kind):
    """The number of commits of a request: it is taken up, begun, written and answered."""
    return 5 if kind in ("create_topic", "create_partitions", "delete_topic") else 4


@pytest.mark.parametrize("kind", REQUESTS)
def test_li_06_a_request_over_whose_decision_a_controller_has_ended_is_decided_by_no_other(world, monkeypatch, kind):
    """It could end every controller. It was not begun, so nothing of it is written. Other requests are decided."""
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    before = tables(world)
    ask(world, kind, **REQUESTS[kind])
    with killed_before_commit(monkeypatch, 1):
        world.controller.poll()
    ask(world, "alter_configs", "other", topic="flights", put={"retention.ms": "5"}, delete=[])
    world.fail_over()
    assert tables(world) == before
    world.controller.poll()
    assert (outcomes(world), outcomes(world, "other")) == ({kind: "InvalidRequestException"}, {"flights": None})
    message = world.cluster.admin.request("request").outcomes[kind].message
    assert f"the controller of epoch {world.terms - 1} ended while it decided this request" in message


def tables(world):
    """The content of all tables that requests change."""
    for table in (world.cluster.topics, world.cluster.configs):
        table.refresh()
    return world.all(), world.cluster.topics.topics, world.cluster.configs.configs


def expected_of(kind):
    def check(world):
        world.cluster.topics.refresh()
        world.cluster.configs.refresh()
        topics, found = world.cluster.topics.topics, world.all()
        told = {(r.topic, r.partition): (r.leader, r.leader_epoch, r.replicas) for r in found.values()}
        assert {
            "create_topic": lambda: told["t", 0] == (1, 0, (1, 2)) and told["t", 1] == (2, 0, (2, 3)),
            "create_partitions": lambda: told["flights", 1] == (3, 0, (3, 1)) and topics["flights"].partitions == 2,
            "alter_configs": lambda: topics["flights"].configs == {"min.insync.replicas": "2"},
            "alter_broker_configs": lambda: (
                world.cluster.configs.of_broker(2) == {"leader.replication.throttled.rate": "5"}
            ),
            "delete_topic": lambda: topics["flights"].deleting and told["flights", 0][:2] == (-2, 2),
            "alter_partition_reassignments": lambda: told["flights", 0] == (3, 2, (3, 1)),
            "elect_leaders": lambda: told["flights", 0] == (1, 2, (1, 2, 3)),
        }[kind](), told

    return check


@pytest.mark.parametrize("kind", REQUESTS)
def test_le_06_a_request_whose_answer_is_lost_is_carried_out_once(world, monkeypatch, kind):
    """The commit on the metadata has landed without an answer. The controller finds the request in it."""
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    ask(world, kind, **REQUESTS[kind])
    lost = lose_an_answer(monkeypatch, lambda log, _: log.root.uri.endswith("metadata"))
    world.controller.poll()
    touches_metadata = kind not in ("alter_configs", "alter_broker_configs")
    assert (set(outcomes(world).values()), len(lost)) == ({None}, int(touches_metadata))
    known = world.controller.context
    world.fail_over()
    found = world.controller.context
    assert known.deletions.keys() == found.deletions.keys()
    rest = {"controller_epoch": known.controller_epoch, "deletions": known.deletions}
    assert known == replace(found, **rest), "it knows what the next controller finds"
    expected_of(kind)(world)


def test_ra_01_a_request_that_is_malformed_in_one_part_is_refused_whole(world):
    before = world.commits()
    ask(world, "alter_partition_reassignments", reassignments={"flights-0": [1, 2], "flights-1": "1,2"})
    world.controller.poll()
    assert outcomes(world) == {"alter_partition_reassignments": "InvalidRequestException"}
    assert world.commits() == before


def test_td_03_a_topic_is_dropped_once_every_broker_has_deleted_its_replicas(world):
    ask(world, "delete_topic", topic="flights")
    world.controller.poll()
    version = world.controller.context.deletions["flights-id"]
    for broker, applied in ((1, version), (2, version + 1), (3, version - 1)):
        world.beats[broker].heartbeat(1, "applied", metadata_version=applied)
    world.controller.poll()
    assert P in world.all(), "broker 3 has not"
    world.beats[3].heartbeat(1, "applied", metadata_version=version)
    world.controller.poll()
    world.cluster.topics.refresh()
    assert (world.all(), dict(world.cluster.topics.topics)) == ({}, {})


def test_ce_05_a_deposed_controller_can_write_to_no_table(world):
    deposed = world.controller
    world.fail_over()
    for request in ("create_topic", "make_coffee"):
        ask(world, request, request, topic="t", assignment={"0": [1]})
        with pytest.raises(ControllerMovedException, match="controller epoch 1 is over"):
            deposed.poll()
    assert (outcomes(world, "create_topic"), outcomes(world, "make_coffee")) == (None, None)


def test_ar_01_the_balance_is_checked_5_s_after_failover_and_then_at_its_interval(world):
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
        world.poll(1, 2, 3, after=0)
        world.clock.now = 100.0 + elapsed
        world.poll(1, 2, 3, after=0)
        leaders[elapsed] = world.partition()[0]
    assert leaders == {4: 2, 6: 1, 8: 2, 64: 2, 68: 1}
