"""A cluster of processes that is not healthy has a fault as text; a healthy one has none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.verification.faults.cluster_health import ClusterHealth
from tests.jobs.admin.one_partition import one_partition, start_at, write
from tests.storage.logs import TOPIC, TOPIC_ID

P0 = TopicIdPartition(TOPIC_ID, 0)
LEADER = ReplicaStatus(TOPIC, TOPIC_ID, 0, 1, 1, 0, LEADER_ROLE, "Fetching", 1, 3, 3, (), None, 0)
FOLLOWER = replace(LEADER, broker_id=2, role=FOLLOWER_ROLE, high_watermark=2)


def health(cluster: Cluster, active: bool = True, stands: bool = True) -> ClusterHealth:
    controller = SimpleNamespace(name="controller-1", has_said=lambda _: stands)
    processes: Any = SimpleNamespace(
        brokers={1: None, 2: None},
        controllers={"controller-1": controller},
        active=lambda _: controller.name if active else None,
    )
    return ClusterHealth(TopicView(cluster), processes, [TOPIC])


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Three records at broker 1, of which the first is deleted."""
    cluster = one_partition(tmp_path)
    write(cluster, 1, 10, 11, 12)
    start_at(cluster, 1, 1)
    return cluster


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"leader": -1}, "has leader -1", id="a leader"),
        pytest.param({"isr": (1,)}, "ISR (1,)", id="a member of the ISR"),
        pytest.param({"replicas": (1,), "isr": (1,)}, "replicas (1,)", id="a replica"),
        pytest.param({"adding_replicas": (2,)}, "adding (2,)", id="the end of a move"),
    ],
)
def test_every_broker_is_in_sync_and_nothing_moves(cluster: Cluster, change: dict[str, Any], lacking: str) -> None:
    (registration,) = TopicView(cluster).partitions(TOPIC).values()
    cluster.metadata.put([replace(registration, **change)], {"who": "test"})
    found = health(cluster).lacks_members()
    assert lacking in found
    assert bool(lacking) == bool(found)


@pytest.mark.parametrize(("isr", "alone"), [((1,), {1}), ((1, 2), set()), ((2,), {2})])
def test_who_is_the_only_member_of_an_isr(cluster: Cluster, isr: tuple[int, ...], alone: set[int]) -> None:
    (registration,) = TopicView(cluster).partitions(TOPIC).values()
    cluster.metadata.put([replace(registration, isr=isr)], {"who": "test"})
    assert {broker for broker in (1, 2) if health(cluster).is_alone(broker)} == alone


@pytest.mark.parametrize(
    ("active", "stands", "lacking"),
    [(False, True, "no controller is active"), (True, False, "controller-1 does not stand for election")],
)
def test_ce_01_one_controller_is_active_and_all_are_there(
    cluster: Cluster, active: bool, stands: bool, lacking: str
) -> None:
    assert health(cluster, active, stands).lacks_members() == lacking


@pytest.mark.parametrize(
    ("rows", "lacking"),
    [
        pytest.param([LEADER, FOLLOWER], "", id="nothing"),
        pytest.param([LEADER], "broker 2 has no row", id="a replica"),
        pytest.param([LEADER, replace(FOLLOWER, broker_epoch=0)], "broker 2 has no row", id="a start of broker 2"),
        pytest.param([LEADER, replace(FOLLOWER, log_end_offset=2)], "broker 2 does not have", id="the last record"),
        pytest.param([LEADER, replace(FOLLOWER, log_start_offset=0)], "broker 2 does not have", id="a deletion"),
        pytest.param([LEADER, replace(FOLLOWER, state="Delayed")], "broker 2 does not have", id="the fetching"),
        pytest.param([replace(LEADER, high_watermark=2), FOLLOWER], "broker 1 does not have", id="the last commit"),
        pytest.param([LEADER, FOLLOWER, replace(FOLLOWER, partition=1)], "broker 2 still has rows", id="a clean-up"),
    ],
)
def test_dr_02_every_broker_has_it_all(cluster: Cluster, rows: Sequence[ReplicaStatus], lacking: str) -> None:
    for broker in (1, 2):
        own = [row for row in rows if row.broker_id == broker]
        ReplicaTable.open(cluster.broker_root(broker)).publish(own, "test")
    asked = health(cluster)
    assert asked.bounds() == {P0: (1, 3)}
    found = asked.lacks_records({P0: (1, 3)})
    assert lacking in found
    assert bool(lacking) == bool(found)
