"""Sends while every broker compacts its log over and over, compared with the same sends without compaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from lakelog.replication.clients.producer import Producer
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import LOG
from lakelog.verification.bench.data import DataSet
from lakelog.verification.bench.produce import BROKERS, PARTITIONS, TOPIC, ProduceRun, Sends

_WITHOUT: Mapping[str, object] = {"log.cleaner.enable": "false"}
_BESIDE: Mapping[str, object] = {"log.cleaner.min.files": 2, "log.cleaner.backoff.ms": 1}
_ROUNDS, _WARM_UP_SENDS = 2, 5
_DATA = DataSet(1_000, 1_000)


@dataclass
class SendsBeside:
    """Sends without and beside compaction; the number of compactions, of which the first kind must have none; and
    whether the committed records were those that were sent."""

    without: Sends = field(default_factory=lambda: Sends("without compaction", _DATA))
    beside: Sends = field(default_factory=lambda: Sends("beside compaction", _DATA))
    compactions: int = 0
    rows_equal: bool = True


def sends_of(sends: int) -> int:
    """The number of all sends if so many of each kind are measured."""
    return 2 * _ROUNDS * (_WARM_UP_SENDS + sends // _ROUNDS)


def measure_sends_beside_compaction(
    spark: SparkSession, folder: Path, sends: int, on_step: Callable[[str, int], None]
) -> SendsBeside:
    """Sends 1 MB with acks=all, over and over, to two pairs of clusters. Brokers of the second of each pair compact any
    two files of a size, without a pause."""
    found, warm_up = SendsBeside(), Sends("warm-up", _DATA)
    for number in range(_ROUNDS):
        for configs, kind in ((_WITHOUT, found.without), (_BESIDE, found.beside)):
            home = folder / f"{number} {kind.name}"
            home.mkdir(parents=True)
            with LocalCluster(spark, str(home / "lakelog"), BROKERS, configs) as cluster:
                cluster.admin().create_topic(TOPIC, PARTITIONS, BROKERS)
                run = ProduceRun(home, Producer(cluster.cluster_uri, acks="all"), lambda: on_step("sends", 1))
                for each in [warm_up] * _WARM_UP_SENDS + [kind] * (sends // _ROUNDS):
                    run.send(each, run.table(_DATA))
                found.rows_equal &= run.are_committed(spark, cluster)
                found.compactions += sum(_compactions(cluster.broker_uri(b)) for b in range(1, BROKERS + 1))
    return found


def _compactions(broker: str) -> int:
    """The compactions among the commits of a broker's log that are still there."""
    log = StorageRoot.of(broker).child(LOG.name)
    count = 0
    for version in range(last_version(log), -1, -1):
        try:
            count += read_commit(log, version).info.get("why") == "compact"
        except FileNotFoundError:
            break
    return count
