"""`bench idle`: the cores that an idle cluster uses, beside those of a Spark session without brokers."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import Row
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.cpu import cores_while_idle
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.produce import BROKERS, PARTITIONS, TOPIC
from lakelog.verification.bench.replication import circumstances


@dataclass(frozen=True)
class Idle:
    """The cores that a session used, alone and with three brokers and a controller, each over `seconds`."""

    seconds: float
    session_cores: float
    cluster_cores: float


def measure_idle(spark: SparkSession, seconds: float) -> Idle:
    """Measures each for `seconds`, after as many seconds without a count: a session is busy after each start."""
    alone = cores_while_idle(seconds)
    with bench_folder() as folder, LocalCluster(spark, str(folder), BROKERS) as cluster:
        cluster.admin().create_topic(TOPIC, PARTITIONS, BROKERS)
        raise_first_error(Producer(cluster.cluster_uri).send(TOPIC, ["a record"], timeout_ms=120_000))
        return Idle(seconds, alone, cores_while_idle(seconds))


def idle_figures(found: Idle) -> dict[str, object]:
    """All figures."""
    return {
        "seconds": found.seconds,
        "session_cores": round(found.session_cores, 3),
        "cluster_cores": round(found.cluster_cores, 3),
        "brokers_cores": round(found.cluster_cores - found.session_cores, 3),
        **circumstances(),
    }


def idle_rows(found: Idle) -> list[Row]:
    """One row for what was idle."""
    return [
        {"idle": "a Spark session", "cores": f"{found.session_cores:.3f}"},
        {"idle": f"with {BROKERS} brokers, {PARTITIONS} partitions", "cores": f"{found.cluster_cores:.3f}"},
    ]
