"""The effect of each fault on processes, roots and the controller: one broker is away at a time, and all return."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.replication.errors import InconsistentClusterIdException, TimeoutException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.verification.faults import soak_faults
from lakelog.verification.faults.soak_faults import RootFaults, SoakFaults
from lakelog.verification.faults.soak_plan import KINDS, Fault, plan_faults
from lakelog.verification.roots.storage_faults import bring_back, is_away, take_away

ALL, FEW = (2, 3, 1), (2, 3)


class FakeProcess:
    """A process that only records its calls."""

    def __init__(self, name: str, root: Path, status: int = 0) -> None:
        self.name = name
        self.root = str(root)
        self.state = "running"
        self.done: list[str] = []
        self.broker_id = -1
        self._status = status

    def _become(self, deed: str, before: str, state: str) -> None:
        assert self.state == before, f"{deed} of {self.name}, which is {self.state}"
        self.state = state
        self.done.append(deed)

    def is_running(self) -> bool:
        return self.state == "running"

    def has_said(self, _: str) -> bool:
        return True

    def start_copy(self) -> "FakeProcess":
        """The newer process of a broker fences this one, which ends by itself."""
        self._become("fenced", "running", "ended")
        return FakeProcess(self.name, Path(self.root))

    def kill(self) -> None:
        if self.state != "ended":  # one that has ended by itself is cleaned up
            self._become("kill", "running", "ended")

    def start(self) -> None:
        self._become("start", "ended", "running")

    def pause(self) -> None:
        self._become("pause", "running", "paused")

    def resume(self) -> None:
        self._become("resume", "paused", "running")

    def stop(self) -> int:
        self._become("stop", "running", "ended")
        return self._status


def registration(topic: str, partition: int, replicas: tuple[int, ...]) -> PartitionRegistration:
    return PartitionRegistration(topic, f"id-{topic}", partition, replicas, 2, 1, replicas)


class FakeCluster:
    """Processes, their health, and a controller that carries requests out at once, except those that it `refuses`."""

    def __init__(self, folder: Path, status: int = 0) -> None:
        self.brokers = {i: FakeProcess(f"broker {i}", folder / f"broker-{i}", status) for i in ALL}
        for i, broker in self.brokers.items():
            broker.broker_id = i
        self.controllers = {"controller-1": FakeProcess("controller-1", folder, status)}
        self.store = FakeProcess("store", folder)
        self.folders = {i: Path(process.root) for i, process in self.brokers.items()}
        for root in self.folders.values():
            (root / "log").mkdir(parents=True)
        self.found = [
            PartitionRegistration(t, f"id-{t}", p, ALL, 2, 1, ALL) for t in ("kept", "trimmed") for p in (0, 1)
        ]
        self.refuses: list[Exception | str] = []
        self.lacks: list[str] = []
        self.alone: set[int] = set()
        self.strangers: list[str] = []
        self.waited_for: list[str] = []
        self.most_away = 0
        self.asked: list[Any] = []
        self.has_disks = False
        self.without_power: list[list[Any]] = []
        self.cluster_root = ["right"]
        self.measured: list[tuple[str, set[int]]] = []

    def faults(self) -> SoakFaults:
        health: Any = SimpleNamespace(
            active=lambda: self.controllers["controller-1"],
            partitions=lambda: self.found,
            lacks_members=lambda: "",
            lacks_records=lambda _: self.lacks.pop() if self.lacks else "",
            bounds=lambda: {r.topic_id_partition: (100, 200) for r in self.found},
        )
        admin: Any = self
        cluster: Any = SimpleNamespace(
            brokers=self.brokers,
            controllers=self.controllers,
            all=lambda: [*self.brokers.values(), *self.controllers.values()],
            format_root=self._format_root,
            uri="cluster",
            roots=SimpleNamespace(
                path=self.folders.__getitem__,
                uri=lambda broker: str(self.folders[broker]),
                take_away=take_away,
                hang=lambda _: self.store.pause(),
                bring_back=self._bring_back,
                disks=SimpleNamespace(
                    owners=["cluster", 1, 2, 3] * self.has_disks, lose_power=self.without_power.append
                ),
            ),
        )
        self.roots = RootFaults(cluster, "kept", lambda broker: broker in self.alone, self._let)
        meter: Any = SimpleNamespace(topic="kept", kill=self._kill)
        return SoakFaults(cluster, self.roots, health, meter, admin, "trimmed", self._wait, self._let)

    def _bring_back(self, uri: str) -> None:
        if self.store.state == "paused":
            self.store.resume()
        elif uri == "cluster":
            self.cluster_root.append("right")
        else:
            bring_back(uri)

    def _kill(self, kind: str, killed: list[FakeProcess], partitions: set[int], *_: object) -> None:
        self.measured.append((kind, partitions))
        for process in killed:
            process.kill()

    def _wait(self, lacks: Callable[[], str], what: str) -> None:
        self.waited_for.append(what)
        if any(lacks() == "" for _ in range(3)):
            return
        raise TimeoutException(what)

    def _format_root(self, broker: int) -> None:
        if self.strangers:
            (self.folders[broker] / self.strangers.pop()).write_text("of a client that has noticed nothing")
            raise InconsistentClusterIdException("must be empty")
        (self.folders[broker] / "formatted").touch()

    def _let(self, seconds: float) -> None:
        away = [b for b in self.brokers.values() if b.state != "running" or is_away(b.root)]
        self.most_away = max(self.most_away, len(away) + (self.store.state != "running"))

    def are_at_work(self) -> bool:
        processes = [*self.brokers.values(), *self.controllers.values(), self.store]
        is_whole = not any(is_away(broker.root) for broker in self.brokers.values())
        return (
            is_whole and self.cluster_root[-1] == "right" and all(process.state == "running" for process in processes)
        )

    def alter_partition_reassignments(self, wanted: dict[tuple[str, int], tuple[int, ...]]) -> dict[str, Outcome]:
        (((topic, partition), target),) = wanted.items()
        self.asked.append(target)
        error = self.refuses.pop() if self.refuses else None
        if isinstance(error, Exception):
            raise error
        if error is None:
            others = [r for r in self.found if (r.topic, r.partition) != (topic, partition)]
            self.found = sorted([*others, registration(topic, partition, target)], key=lambda r: (r.topic, r.partition))
        return {f"{topic}-{partition}": Outcome(error, "no")}

    def elect_leaders(self, kind: str) -> dict[str, Outcome]:
        self.asked.append(kind)
        return {"kept-0": Outcome(None, ""), "kept-1": Outcome("ElectionNotNeededException", "leads")}

    def delete_records(self, before: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        self.asked.append(before)
        return dict(before)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(tmp_path)
    monkeypatch.setattr(soak_faults, "copy_cluster_root", lambda _: made.cluster_root.append("copied"))
    monkeypatch.setattr(soak_faults, "replace_cluster_root", lambda *told: made.cluster_root.append(told[1]))
    return made


def fault(kind: str, place: float = 0.0, extent: float = 0.5) -> Fault:
    return Fault(0.0, kind, 3.0, ALL, place, extent)


@pytest.mark.parametrize(
    ("kind", "broker", "controller"),
    [
        ("kill-broker", ["kill", "start"], []),
        ("kill-controller", [], ["kill", "start"]),
        ("kill-both", ["kill", "start"], ["kill", "start"]),
        ("freeze-broker", ["pause", "resume"], []),
        ("expire-broker", ["pause", "resume"], []),
        ("freeze-controller", [], ["pause", "resume"]),
        ("expire-controller", [], ["pause", "resume"]),
        ("stop-broker", ["stop", "start"], []),
        ("stop-controller", [], ["stop", "start"]),
        ("unwritable-root", [], []),
        ("cut-power", ["kill", "start"], []),
        ("empty-root", ["kill", "start"], []),
        ("hang-store", [], []),
        ("fail-store", [], []),
    ],
)
def test_what_is_done_to_processes(cluster: FakeCluster, kind: str, broker: list[str], controller: list[str]) -> None:
    """A broker's store is a process, too. A frozen one hangs."""
    done = cluster.faults().carry_out(fault(kind))
    assert cluster.brokers[2].done == broker
    assert cluster.controllers["controller-1"].done == controller
    assert ("broker 2" in done, "controller-1" in done) == (KINDS[kind].takes_broker, bool(controller))


@pytest.mark.parametrize(
    ("kind", "leader", "dead"),
    [
        ("kill-broker", 2, 2),
        ("kill-both", 2, 2),
        ("kill-broker", 3, 3),  # the fault's first broker, 2, leads nothing
        ("kill-both", -1, 2),
        ("kill-controller", 3, None),  # every leader lives: the outage is that of a send
    ],
)
def test_the_outage_of_a_kill_is_that_of_the_partitions_that_the_dead_broker_led(
    cluster: FakeCluster, kind: str, leader: int, dead: int | None
) -> None:
    cluster.found = [replace(found, leader=leader) for found in cluster.found]
    cluster.faults().carry_out(fault(kind))
    killed = {number for number, broker in cluster.brokers.items() if "kill" in broker.done}
    assert killed == ({dead} if dead else set())
    assert cluster.measured == [(kind, {0, 1} if leader in (2, 3) else set())]


@pytest.mark.parametrize(("extent", "is_deleted"), [(0.49, True), (0.5, False)])
def test_half_of_the_killed_brokers_begin_without_their_checkpoints(
    cluster: FakeCluster, extent: float, is_deleted: bool
) -> None:
    checkpoints = cluster.folders[2] / "checkpoints"
    checkpoints.mkdir()
    faults = cluster.faults()
    faults.carry_out(replace(fault("kill-broker"), extent=extent))
    assert (checkpoints.exists(), faults.checkpoints_deleted) == (not is_deleted, int(is_deleted))


@pytest.mark.parametrize("seed", range(5))
def test_one_broker_is_away_at_a_time_and_all_come_back(cluster: FakeCluster, seed: int) -> None:
    faults = cluster.faults()
    kinds = [kind for kind in KINDS if kind != "rot"]  # files must exist for this fault
    for planned in plan_faults(seed, 100, len(kinds), ALL, [3], kinds):
        cluster.most_away = 0
        faults.carry_out(planned)
        assert cluster.most_away == planned.takes_broker
        assert cluster.are_at_work()


@pytest.mark.parametrize("kind", KINDS)
def test_all_are_in_sync_before_a_replica_goes(cluster: FakeCluster, kind: str) -> None:
    cluster.lacks = ["broker 1 does not have offset 100"] * 2
    cluster.faults().prepare(fault(kind))
    waited = [
        f"before {kind}: all replicas are in sync", f"before {kind}: rotten files are repaired",
        "the leaders' logs can be read", f"before {kind}: all replicas have everything",
    ]  # fmt: skip
    assert cluster.waited_for == (waited if KINDS[kind].takes_replica else [])
    assert bool(cluster.lacks) != KINDS[kind].takes_replica


@pytest.mark.parametrize(
    "kind",
    [
        *("freeze-broker", "expire-controller", "unwritable-root", "hang-store", "fail-store"),
        *("empty-cluster-root", "other-cluster-root"),
    ],
)
def test_what_is_interrupted_is_undone(cluster: FakeCluster, kind: str) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    cluster._let = interrupt
    with pytest.raises(KeyboardInterrupt):
        cluster.faults().carry_out(fault(kind))
    assert cluster.are_at_work()


def test_who_does_not_stop_in_order_is_counted(tmp_path: Path) -> None:
    faults = FakeCluster(tmp_path, status=-signal.SIGKILL).faults()
    assert faults.carry_out(fault("stop-broker")) == "broker 2, status -9: killed, because it did not stop in time"
    assert faults.not_in_order == 1


@pytest.mark.parametrize(
    "refusals",
    [[], ["InvalidReplicaAssignmentException"], [TimeoutException("no controller has decided it")]],
    ids=["at once", "refused at first", "no controller at first"],
)
def test_ra_01_a_partition_goes_to_two_brokers_and_to_all_again(cluster: FakeCluster, refusals: list[Any]) -> None:
    cluster.refuses = list(refusals)
    assert cluster.faults().carry_out(fault("reassign", place=0.6)) == "trimmed-0 to (2, 3) and to (2, 3, 1)"
    assert cluster.asked == [*[FEW] * len(refusals), FEW, ALL]
    assert {r.replicas for r in cluster.found} == {ALL}


def test_ra_01_a_move_that_is_never_allowed_fails(cluster: FakeCluster) -> None:
    cluster.refuses = ["InvalidReplicaAssignmentException"] * 3
    with pytest.raises(TimeoutException, match=r"kept-0 may be moved to \(2, 3\)"):
        cluster.faults().carry_out(fault("reassign"))


@pytest.mark.parametrize(("extent", "before"), [(0.0, 100), (0.5, 125), (0.95, -1)])
def test_dr_01_records_are_deleted_of_the_second_topic_only(cluster: FakeCluster, extent: float, before: int) -> None:
    done = cluster.faults().carry_out(fault("delete-records", place=0.99, extent=extent))
    assert cluster.asked == [{("trimmed", 1): before}]
    assert done == f"trimmed-1 before {before}: {before}"


def test_pe_01_an_election_tells_its_outcomes(cluster: FakeCluster) -> None:
    assert cluster.faults().carry_out(fault("preferred-election")) == "1 ElectionNotNeededException, 1 elected"


def test_a_store_hangs_for_a_while(cluster: FakeCluster) -> None:
    assert cluster.faults().carry_out(fault("hang-store")) == "root of broker 2"
    assert cluster.store.done == ["pause", "resume"]


@pytest.mark.parametrize(
    ("extent", "owners", "dead"),
    [(0.1, ["cluster", 1, 2, 3], {"broker 1", "broker 2", "broker 3", "controller-1"}), (0.9, [2], {"broker 2"})],
)
def test_disks_lose_their_power_alone_or_all_at_once(
    cluster: FakeCluster, extent: float, owners: list[Any], dead: set[str]
) -> None:
    """The processes are dead before that, and start again. The only member of an ISR loses nothing, either."""
    cluster.has_disks, cluster.alone = True, {2}
    cluster.faults().carry_out(Fault(0.0, "cut-power", 3.0, ALL, 0.0, extent))
    assert cluster.without_power == [owners]
    everyone = [*cluster.brokers.values(), *cluster.controllers.values()]
    assert {process.name for process in everyone if process.done == ["kill", "start"]} == dead


@pytest.mark.parametrize(
    ("kind", "extent", "roots"),
    [
        ("empty-cluster-root", 0.0, ["deleted"]),
        ("empty-cluster-root", 0.5, ["emptied"]),
        ("empty-cluster-root", 0.99, ["formatted"]),
        ("older-cluster-root", 0.5, ["copied", "older"]),
        ("other-cluster-root", 0.5, ["another"]),
    ],
)
def test_a_wrong_cluster_root_takes_the_place_of_the_right_one(
    cluster: FakeCluster, kind: str, extent: float, roots: list[str]
) -> None:
    cluster.faults().carry_out(fault(kind, extent=extent))
    assert cluster.cluster_root == ["right", *roots, "right"]
    assert cluster.are_at_work()


def test_a_copied_broker_goes_on_and_the_first_process_is_gone(cluster: FakeCluster) -> None:
    first = cluster.brokers[2]
    assert cluster.faults().carry_out(fault("copy-broker")) == "broker 2 twice: the first one is fenced"
    assert (first.state, cluster.brokers[2] is first) == ("ended", False)
    assert cluster.are_at_work()


@pytest.mark.parametrize("kind", ["cut-power", "empty-root"])
def test_nothing_is_taken_from_the_only_member_of_an_isr(cluster: FakeCluster, kind: str) -> None:
    """No broker could lead without an unclean election. `is_alone` is called once the broker is dead, because a dead
    broker cannot shrink the ISR to itself."""
    faults, file = cluster.faults(), cluster.folders[2] / "log" / "segment"
    file.write_text("records")
    cluster.alone = {2}
    assert faults.carry_out(fault(kind)) == "broker 2: only killed, because it is alone in an ISR"
    assert (file.read_text(), cluster.brokers[2].done) == ("records", ["kill", "start"])
    cluster.alone = {3}
    faults.carry_out(Fault(0.0, kind, 3.0, ALL, 0.0, 1.0))
    assert not file.exists() or file.read_text() != "records"


def test_an_emptied_root_is_formatted_even_if_a_client_writes_into_it(cluster: FakeCluster) -> None:
    cluster.strangers = ["one", "another"]
    cluster.faults().carry_out(fault("empty-root"))
    assert [path.name for path in cluster.folders[2].iterdir()] == ["formatted"]
    assert cluster.brokers[2].done == ["kill", "start"]
