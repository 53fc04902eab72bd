"""Controller processes: one that was frozen for too long is fenced and stands by; one that gets SIGTERM resigns at
once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import UnknownTopicOrPartitionException
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.clusters.process_cluster import ControllerProcess
from tests.processes import wait_until

Pair = tuple[ControllerProcess, ControllerProcess]


@pytest.fixture
def start(tmp_path: Path, cluster: Cluster) -> Iterator[Callable[[int], Pair]]:
    """Starts a controller that becomes active, and one that stands by, with this session time-out."""
    properties = tmp_path / "server.properties"
    both = [
        ControllerProcess(cluster.root.uri, name, tmp_path / f"{name}.log", properties) for name in ("first", "second")
    ]

    def start(session_timeout_ms: int) -> Pair:
        properties.write_text(f"controller.session.timeout.ms={session_timeout_ms}\n")
        both[0].start()
        wait_for(cluster, both[0])
        both[1].start()
        return both[0], both[1]

    yield start
    for controller in both:
        controller.kill()


def wait_for(cluster: Cluster, controller: ControllerProcess) -> Lease:
    """The lease, once it is this controller's."""

    def held() -> Lease | None:
        controller.check()
        lease = cluster.lease.read()
        return lease if lease is not None and not lease.resigned and controller.has_id(lease.controller_id) else None

    found: Lease = wait_until(held, f"the controller {controller.name} is active")
    return found


def test_ce_05_a_controller_that_was_frozen_for_too_long_is_refused_and_stands_by(
    cluster: Cluster, start: Callable[[int], Pair]
) -> None:
    frozen, other = start(1500)
    frozen.pause()
    assert wait_for(cluster, other).controller_epoch == 2
    with pytest.raises(UnknownTopicOrPartitionException):
        AdminClient(cluster.root.uri).delete_topic("none")
    frozen.resume()
    wait_until(lambda: "stands by: " in frozen.log.read_text(), "the frozen controller finds out")
    frozen.check()
    assert "controller epoch 1 is over" in frozen.log.read_text()
    assert wait_for(cluster, other).controller_epoch == 2
    assert {request.controller_epoch for request in decided(cluster)} == {2}
    other.kill()
    assert wait_for(cluster, frozen).controller_epoch == 3, "it stands by, so it may be elected again"


def decided(cluster: Cluster) -> list[object]:
    cluster.admin.refresh()
    return [request for request in cluster.admin.requests if request.outcomes is not None]


def test_ce_06_a_controller_that_is_told_to_stop_resigns_and_the_next_takes_over_at_once(
    cluster: Cluster, start: Callable[[int], Pair]
) -> None:
    """Its session would last for ten minutes."""
    first, second = start(600_000)
    assert first.stop() == 0
    assert wait_for(cluster, second).controller_epoch == 2
    assert second.stop() == 0
    lease = cluster.lease.read()
    assert lease is not None
    assert lease.resigned
    assert "Traceback" not in first.log.read_text() + second.log.read_text()
