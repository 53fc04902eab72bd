"""Faults of a root's files: which files go, which stay, and when the cluster has repaired them."""

import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakelog.jobs.cli.root_names import DISK, S3
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta import quorum_member
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.schemas import LOG
from lakelog.verification.faults.soak_faults import RootFaults
from lakelog.verification.faults.soak_plan import Fault
from lakelog.verification.roots.one_of_several import described, root_numbered
from lakelog.verification.roots.roots import STORES, LocalRoots
from lakelog.verification.roots.storage_faults import empty, forget_since, rot
from tests.jobs.admin.one_partition import log_of, one_partition, write
from tests.storage.logs import P0, TOPIC, request, send

OLD = 3600.0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Broker 1 has two records from long ago."""
    made = one_partition(tmp_path)
    write(made, 1, 10, 11)
    for path in (tmp_path / "broker-1").rglob("*"):
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_power_cut_takes_what_was_written_last_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "broker-1"
    before = files(root)
    send(log_of(cluster, 1), request(P0, 2, sequence=2))
    (root / "storage-probe").write_text("is in no table")
    assert log_of(cluster, 1).current().partition(P0).log_end_offset == 4
    (root / "log" / "_delta_log" / "_last_checkpoint").write_text("was written last too")
    assert forget_since(root, time.time() - OLD / 2) == 1
    assert files(root) == {**before, "storage-probe": b"is in no table"}
    assert log_of(cluster, 1).current().partition(P0).log_end_offset == 2


def test_a_power_cut_leaves_files_that_are_empty_or_torn_or_whole(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "broker-1"
    before, log = files(root), log_of(cluster, 1)
    for sequence in range(2, 22):
        send(log, request(P0, 1, sequence=sequence))
    written = files(root)
    harmed = forget_since(root, time.time() - OLD / 2, random.Random(1))
    after = files(root)
    parts = {len(after[name]) / len(written[name]) if name in after else None for name in written}
    assert {None, 0.0, 1.0} < parts
    commits = [name for name in written if name.endswith(".json") and after.get(name) != written[name]]
    assert len(commits) == harmed
    assert {name: after[name] for name in before} == before


def test_after_a_power_cut_the_tables_are_there_however_new_they_are(cluster: Cluster, tmp_path: Path) -> None:
    forget_since(tmp_path / "broker-1", 0)
    assert log_of(cluster, 1).current().version == 0


def test_an_emptied_root_is_there_and_holds_nothing(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.broker_root(1).list()
    empty(tmp_path / "broker-1")
    assert (list((tmp_path / "broker-1").iterdir()), list(tmp_path.glob("*.old"))) == ([], [])


@pytest.mark.parametrize("seed", range(10))
def test_rot_flips_one_bit_of_the_records_and_leaves_size_and_age(cluster: Cluster, seed: int) -> None:
    (path,) = Path(cluster.broker_root(1).uri, LOG.name).glob("*.parquet")
    before, max_staleness, footer = path.read_bytes(), path.stat().st_mtime_ns, pq.read_metadata(path).serialized_size
    rot(path, random.Random(seed))
    after = path.read_bytes()
    assert (len(after), path.stat().st_mtime_ns) == (len(before), max_staleness)
    different = [n for n, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert [(before[n] ^ after[n]).bit_count() for n in different] == [1]
    assert 4 <= different[0] < len(before) - footer - 8


@pytest.fixture
def faults(cluster: Cluster) -> RootFaults:
    folders = {broker: Path(cluster.broker_root(broker).uri) for broker in (1, 2)}
    held: Any = SimpleNamespace(
        brokers={}, roots=SimpleNamespace(path=folders.__getitem__, disks=SimpleNamespace(owners=()))
    )
    return RootFaults(held, TOPIC, lambda _: False, lambda _: None)


def fault(broker: int) -> Fault:
    return Fault(0, "rot", 0, (broker, 3 - broker), 0.99, 0.5)


def test_a_rotten_file_is_lacking_until_it_is_whole(faults: RootFaults, tmp_path: Path) -> None:
    (path,) = (tmp_path / "broker-1" / LOG.name).glob("*.parquet")
    whole = path.read_bytes()
    assert faults.rot(fault(1)) == f"{path.name} of broker 1"
    assert (faults.lacks_repairs(), faults.rotted, faults.repaired) == (
        f"{path} has rotted, and is still in the log", 1, 0
    )  # fmt: skip
    path.write_bytes(whole)
    assert (faults.lacks_repairs(), faults.rotted, faults.repaired) == ("", 1, 1)


def test_a_rotten_file_is_lacking_until_it_has_left_the_log(faults: RootFaults, cluster: Cluster) -> None:
    faults.rot(fault(1))
    assert faults.lacks_repairs()
    log = DeltaLog.open(log_of(cluster, 1).root)
    log.commit({"who": "test"}, removes=log.active_files())
    assert (faults.lacks_repairs(), faults.repaired) == ("", 1)


def test_where_there_is_no_file_none_rots(faults: RootFaults) -> None:
    assert faults.rot(fault(2)) == "broker 2 has no file yet"
    assert (faults.lacks_repairs(), faults.rotted) == ("", 0)


def test_files_of_a_topic_whose_records_go_do_not_rot(faults: RootFaults) -> None:
    faults._kept = "another"
    assert faults.rot(fault(1)) == "broker 1 has no file yet"


@pytest.mark.parametrize(
    ("store", "kind", "how"),
    [
        (DISK, "lose-cluster-root", "deleted"),
        (DISK, "new-cluster-root", "emptied"),
        (S3, "lose-cluster-root", "away"),
        (S3, "hang-cluster-root", "hanging"),
        (S3, "new-cluster-root", "emptied"),
    ],
)
@pytest.mark.parametrize("place", [0.0, 0.9])
def test_one_of_several_cluster_roots_is_lost_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, kind: str, how: str, place: float
) -> None:
    monkeypatch.setattr(quorum_member, "_CLEAR_SECONDS", 0.0)  # no other process relies on what it has read
    config, roots = Config(lakelog_storage_timeout_ms=1000), STORES[store](tmp_path, 0, 3)
    with roots.running():
        _is_lost_for_a_while(roots, config, kind, how, place)


def _is_lost_for_a_while(roots: LocalRoots, config: Config, kind: str, how: str, place: float) -> None:
    format_cluster(storage_root(roots.uri("cluster"), "cluster", config), config)
    number, seen = 1 + int(place * 3), list[str | None]()
    servers: Any = SimpleNamespace(roots=roots, uri=roots.uri("cluster"), config=config, brokers={})
    faults = RootFaults(
        servers, TOPIC, lambda _: False, lambda _: seen.append(described(roots, number, config).identity)
    )
    uri, identity = root_numbered(roots, number), described(roots, number, config).identity
    said = getattr(faults, kind.replace("-", "_"))(Fault(0.0, kind, 2.0, (1, 2, 3), place, 0.5))
    assert said.startswith(f"cluster root {number} was {how} for 2.0 s")
    assert (seen, roots.is_away(uri)) == ([None], False)
    status = described(roots, number, config)
    assert (status.has_vote, status.behind) == (True, 0)
    assert (status.identity != identity) == (kind == "new-cluster-root")
