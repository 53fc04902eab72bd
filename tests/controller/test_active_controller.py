"""Elections on a cluster's tables. The test's clock decides when brokers die."""

import logging
from dataclasses import replace

import pytest

from lakelog.replication.controller import active_controller
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.elections import new_partition, with_leader
from lakelog.replication.protocol.isr import change_to
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from tests.controller.world import P, World
from tests.processes import wait_until
from tests.storage.delta.answers import lose_an_answer


@pytest.fixture
def world(root):
    return World(root)


def test_ps_03_a_controller_writes_nothing_while_nothing_changes(world):
    before = world.commits()
    for _ in range(3):
        world.poll(1, 2, 3)
    assert world.commits() == before
    assert world.partition() == (1, (1, 2, 3), 0, 0)


def test_bd_01_le_01_when_a_leader_dies_the_next_of_the_isr_leads(world):
    world.poll(2, 3)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_bd_02_when_a_follower_dies_it_leaves_the_isr_and_the_leader_stays(world):
    world.poll(1, 3)
    assert world.partition() == (1, (1, 3), 1, 1)


def cause(world):
    return read_commit(world.cluster.root.child("metadata"), world.commits()).info


def test_bd_01_the_commit_names_the_brokers_that_were_lost(world):
    world.poll(2, 3)
    assert cause(world)["brokers"] == {"1": ["BrokerLost", "is lost (no heartbeat for 6 s)"]}
    world.poll(2)
    assert cause(world)["brokers"] == {"3": ["BrokerLost", "is lost (no heartbeat for 6 s)"]}, "each is named once"


def test_cs_05_a_broker_that_stops_is_named_though_its_first_event_has_no_commit(world):
    """A leader has changed an ISR as well, which the controller takes note of first, without a commit."""
    world.cluster.metadata.put([replace(world.all()[P], isr=(1, 2), partition_epoch=1)], {"who": "a leader"})
    world.beats[1].heartbeat(1, "shutdown", shutting_down=True)
    world.controller.poll()
    assert cause(world)["brokers"] == {"1": ["BrokerStopping", "is shutting down"]}


def test_bd_01_a_request_that_comes_with_the_loss_of_a_broker_does_not_hide_it(world, monkeypatch):
    """In an object store the controller reads the brokers once more then, and the loss is the second event."""
    moved = replace(world.all()[P], isr=(1, 2), partition_epoch=1)
    world.cluster.metadata.put([moved], {"who": "a leader"})
    reads, read = [], active_controller.ActiveController._read_brokers

    def first_stale(controller, newest):
        reads.append(newest)
        found = read(controller, newest)
        live = world.controller.context.brokers if len(reads) == 1 else found.live
        return found._replace(live=live, is_newest=newest)

    monkeypatch.setattr(active_controller.ActiveController, "_read_brokers", first_stale)
    world.cluster.admin.add(
        AdminRequest("request", "elect_leaders", {"election_type": "preferred", "partitions": []}, False, "test", 0)
    )
    world.poll(2, 3)
    assert reads == [False, True]
    assert cause(world)["brokers"] == {"1": ["BrokerLost", "is lost (no heartbeat for 6 s)"]}


def test_bd_01_of_two_commits_of_a_poll_only_the_first_names_a_broker(world):
    world.put(with_leader(world.all()[P], 2, (1, 2, 3)))
    before = world.commits()
    election = {"election_type": "preferred", "partitions": ["flights-0"]}
    world.cluster.admin.add(AdminRequest("request", "elect_leaders", election, False, "test", 0))
    world.poll(1, 2)
    assert (world.commits(), world.partition()[:2]) == (before + 2, (1, (1, 2)))
    root = world.cluster.root.child("metadata")
    assert ["brokers" in read_commit(root, before + n).info for n in (1, 2)] == [True, False]


def test_le_02_the_commit_names_unclean_elections_also_of_a_broker_that_lost_its_log(world):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.put(with_leader(world.all()[TopicIdPartition("loose-id", 0)], 1, (1,)))
    world.poll(2, 3)
    assert cause(world)["unclean"] == ["loose-0"]


def test_bd_01_fo_05_a_broker_that_was_lost_between_two_controllers_is_named(world):
    world.clock.now += 7
    for broker in (2, 3):
        world.beats[broker].heartbeat(1, "heartbeat")
    world.fail_over()
    world.controller.poll()
    assert world.partition()[0] == 2
    assert cause(world)["brokers"] == {"1": ["BrokerLost", "is lost (no heartbeat for 6 s)"]}


def test_bd_01_a_controller_handles_a_failure_once(world):
    world.poll(2, 3)
    before = world.commits()
    world.poll(2, 3)
    assert world.commits() == before


def test_bd_02_le_01_the_last_member_stays_in_the_isr_and_leads_again_when_it_is_back(world):
    world.poll(1, 2)
    world.poll(1)
    world.poll()
    assert world.partition() == (NO_LEADER, (1,), 3, 3)
    world.poll(2, 3)
    assert world.partition() == (NO_LEADER, (1,), 3, 3), "who was not in sync does not lead"
    world.poll(1, 2, 3)
    assert world.partition() == (1, (1,), 4, 4)


def test_le_02_outside_the_isr_only_where_the_topic_allows_it(world):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.add_topic("strict", (1, 2))
    world.poll(1, 3)
    world.poll(3)
    world.poll(2, 3)
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
def test_bc_01_bd_01_a_restarted_broker_is_handled_as_failed_in_between(world, isr, leader, expected):
    """Also if its heartbeat never stood still: it has lost its memory."""
    world.put(with_leader(world.all()[P], leader, isr))
    world.controller.poll()
    before = world.partition()
    world.register(1, epoch=2)
    world.poll(1, 2, 3, after=1.0)
    assert world.partition()[:2] == expected
    assert world.partition()[2] > before[2]
    world.poll(1, 2, 3, after=1.0)
    assert world.partition()[:2] == expected, "it has failed once"


def test_bd_01_two_brokers_restarted_at_once_do_not_elect_each_other(world):
    world.register(1, epoch=2)
    world.register(2, epoch=2)
    world.poll(1, 2, 3, after=1.0)
    assert world.partition() == (3, (3,), 1, 1)


def test_bd_01_bd_02_ps_04_ch_01_ch_02_all_partitions_are_changed_in_one_commit(world):
    world.add_topic("more", (1, 2), (2, 1), (3, 2), (1,))
    world.controller.poll()
    before = world.commits()
    world.poll(2, 3)
    assert world.commits() == before + 1
    leaders = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert leaders == {0: (2, (2,)), 1: (2, (2,)), 2: (3, (3, 2)), 3: (NO_LEADER, (1,))}
    assert world.partition() == (2, (2, 3), 1, 1)
    info = read_commit(world.cluster.root.child("metadata"), before + 1).info
    assert (info["who"], info["why"]) == ("controller", "BrokerChange")


def test_is_05_is_06_an_isr_that_changes_right_after_a_commit_of_the_controller_is_found(world, monkeypatch):
    """A leader commits before the controller has read its own commit, so its handle is already at the leader's."""
    change = MetadataTable.change

    def overtaken(table, *args):
        written = change(table, *args)
        monkeypatch.undo()
        other = Cluster.open(world.cluster.root.uri)
        other.metadata.alter_partitions([change_to(other.metadata.partitions[P], (2,))], lambda: {2: 1, 3: 1}, {})
        table.refresh()
        return written

    monkeypatch.setattr(MetadataTable, "change", overtaken)
    world.poll(2, 3)
    assert world.partition()[:2] == (2, (2,))
    world.poll(2, 3)
    assert world.controller.context.partitions == world.all()


def test_bd_01_a_broker_that_shuts_down_is_treated_as_failed(world):
    world.beats[1].heartbeat(1, "shutdown", shutting_down=True)
    world.poll(2, 3, after=1.0)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_03_ps_03_a_new_partition_without_live_replicas_gets_its_leader_once_one_starts(world):
    world.poll(1)
    world.put(new_partition("flights", "flights-id", 1, (2, 3), ()))
    assert world.partition(TopicIdPartition("flights-id", 1)) == (NO_LEADER, (), 0, 0)
    world.poll(1, 3)
    assert world.partition(TopicIdPartition("flights-id", 1)) == (3, (3,), 1, 1)


def test_is_05_is_06_an_isr_that_a_leader_has_changed_is_what_the_next_election_sees(world):
    """The leader notifies nobody. The controller sees the new version of the metadata."""
    found = world.all()[P]
    world.cluster.metadata.alter_partitions([change_to(found, (1, 3))], dict, {"who": "broker-1"})
    world.poll(2, 3)
    assert world.partition() == (3, (3,), 1, 2)


def test_le_06_an_election_that_loses_to_an_isr_change_is_decided_again(world, monkeypatch):
    """Between the decision and its commit, the leader removes the chosen broker from the ISR."""
    found, commit, changes = world.all()[P], DeltaLog.commit, [(1, 3)]

    def interfere(log, *args, **options):
        if changes:
            change = change_to(found, changes.pop())
            world.cluster.metadata.alter_partitions([change], dict, {"who": "broker-1"})
        return commit(log, *args, **options)

    world.beats[2].heartbeat(1, "heartbeat")
    world.beats[3].heartbeat(1, "heartbeat")
    world.clock.now += 7
    monkeypatch.setattr(DeltaLog, "commit", interfere)
    world.controller.poll()
    assert world.partition() == (3, (3,), 1, 2)


def test_an_event_is_decided_once_if_the_partitions_are_the_same_when_it_is_written(world, monkeypatch):
    decided, decide = [], active_controller.decide
    monkeypatch.setattr(active_controller, "decide", lambda *given: decided.append(given[1]) or decide(*given))
    world.poll(2, 3)
    assert [type(event).__name__ for event in decided] == ["BrokerChange"]
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_06_an_answer_that_was_lost_does_not_elect_twice(world, monkeypatch):
    commit, errors = DeltaLog.commit, [KafkaStorageException("timed out")]

    def lose(log, *args, **options):
        version = commit(log, *args, **options)
        if errors and "metadata" in log.root.uri:
            raise errors.pop()
        return version

    monkeypatch.setattr(DeltaLog, "commit", lose)
    with pytest.raises(KafkaStorageException):
        world.poll(2, 3)
    world.poll(2, 3, after=0.0)
    assert world.partition() == (2, (2, 3), 1, 1)


def test_le_06_bd_02_a_partition_whose_last_leader_died_gets_it_back_also_if_the_answer_was_lost(world, monkeypatch):
    """The commit has landed, so the second decision sees its result: there the dead broker leads nothing."""
    world.poll(1)
    lost = lose_an_answer(monkeypatch, lambda log, _: "metadata" in log.root.uri)
    world.poll()
    assert lost
    assert world.partition()[:2] == (NO_LEADER, (1,))
    world.poll(1, 2, 3)
    assert world.partition()[:2] == (1, (1,))


def test_le_04_cs_05_cs_06_a_controlled_shutdown_moves_leaderships_and_leaves_every_isr(world):
    world.add_topic("more", (1, 2), (2, 1), (1,), (3, 2))
    only = with_leader(world.all()[TopicIdPartition("more-id", 0)], 1, (1,))
    world.put(only)
    before = world.commits()
    world.beats[1].heartbeat(1, "shutdown", shutting_down=True)
    world.controller.poll()
    assert world.commits() == before + 1
    assert world.partition() == (2, (2, 3), 1, 1)
    more = {p.partition: (r.leader, r.isr) for p, r in world.all().items() if p.topic_id == "more-id"}
    assert more == {0: (1, (1,)), 1: (2, (2,)), 2: (1, (1,)), 3: (3, (3, 2))}, "nobody else may lead 0 and 2"


def test_bl_12_le_02_an_election_is_logged_with_what_it_may_have_lost(world, caplog):
    world.add_topic("loose", (1, 2), configs={"unclean.leader.election.enable": "true"})
    world.put(with_leader(world.all()[TopicIdPartition("loose-id", 0)], 1, (1,)))
    with caplog.at_level(logging.INFO, "state.change.logger"):
        world.poll(2, 3)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "controller epoch 3: flights-0: OnlinePartition -> OfflinePartition (BrokerChange)",
        "controller epoch 3: loose-0: OnlinePartition -> OfflinePartition (BrokerChange)",
        "controller epoch 3: flights-0: OfflinePartition -> OnlinePartition (BrokerChange)",
        "controller epoch 3: loose-0: OfflinePartition -> OnlinePartition (BrokerChange)",
        "controller epoch 3: flights-0: leader 1 -> 2, ISR (1, 2, 3) -> (2, 3), leader epoch 1 (BrokerChange)",
        "controller epoch 3: loose-0: leader 1 -> 2, ISR (1,) -> (2,), leader epoch 2 (BrokerChange, unclean)",
    ]


def test_ev_01_a_controller_polls_again_after_an_error(world, monkeypatch):
    real, looks, errors = Cluster.poll_brokers, [], [KafkaStorageException("later"), KafkaStorageException("reset")]

    def refresh(cluster):
        looks.append(cluster)
        if errors:
            raise errors.pop()
        return real(cluster)

    monkeypatch.setattr(Cluster, "poll_brokers", refresh)
    controller = Controller(Cluster.open(world.cluster.root.uri), "another", world.clock)
    controller.start()
    wait_until(lambda: controller.is_active, "it is active")
    world.clock.now += 7
    world.beats[2].heartbeat(1, "heartbeat")
    wait_until(lambda: world.partition()[0] == 2, "an election by its thread")
    controller.stop()
    assert errors == []
    assert len(looks) >= 3
