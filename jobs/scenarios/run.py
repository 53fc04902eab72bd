"""Runs a script on a cluster of its own, step by step."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.scenarios.embedded import EmbeddedCluster
from lakelog.jobs.scenarios.processes import ProcessCluster
from lakelog.jobs.scenarios.result import ScriptResult, StepResult
from lakelog.jobs.scenarios.scene import Scene
from lakelog.jobs.scenarios.script import Script, Step
from lakelog.jobs.scenarios.script_cluster import MakeCluster
from lakelog.jobs.scenarios.steps import carry_out
from lakelog.replication.clients.producer import Producer

PROCESSES, SIMULATED = "processes", "simulated"

_WARM_UP_MS = 60_000


def run_script(
    make: MakeCluster, script: Script, keep: Path | None = None, tell: Callable[[StepResult], object] = lambda _: None
) -> ScriptResult:
    """Runs a script, up to the first step that comes out otherwise than it says; `tell` hears of each step.

    Its cluster lies in `keep`, which must not be there yet, or in a folder that is removed.
    """
    results: list[StepResult] = []
    with _folder(keep) as folder, make(folder, script.brokers) as cluster:
        scene, started = Scene(cluster), time.monotonic()
        for step in script.steps:
            results.append(_timed(scene, step, started))
            tell(results[-1])
            if not results[-1].ok:
                break
        return ScriptResult(script, tuple(results), cluster.history())


@contextmanager
def clusters_of(mode: str) -> Iterator[MakeCluster]:
    """What makes the cluster of each script: in one Spark session, which ends with this, in processes, or in memory."""
    if mode == PROCESSES:
        yield ProcessCluster
        return
    if mode == SIMULATED:
        from lakelog.jobs.scenarios.simulated import (
            SimulatedCluster,  # what it stands on serves tests, not real clusters
        )

        yield lambda _, brokers: SimulatedCluster(brokers)
        return
    from lakelog.jobs.launch.session import spark_session  # processes have sessions of their own

    spark = spark_session("lakelog-scenario")
    try:
        warm_up(spark)
        yield partial(EmbeddedCluster, spark)
    finally:
        spark.stop()


def warm_up(spark: SparkSession) -> None:
    """Sends a record through a cluster of its own. Followers are slow as long as the session is new: the first
    micro-batches take longer than the scripts' short times allow a follower to be away."""
    with _folder(None) as folder, EmbeddedCluster(spark, folder, 2) as cluster:
        cluster.admin().create_topic("warm-up", assignment={0: [1, 2]}, configs={"min.insync.replicas": 2})
        Producer(cluster.uri).send("warm-up", pa.table({"value": [b"warm"]}), _WARM_UP_MS)


def _timed(scene: Scene, step: Step, started: float) -> StepResult:
    before = time.monotonic()
    outcome = carry_out(scene, step)
    after = time.monotonic()
    return StepResult(step, outcome, round((after - started) * 1000), round((after - before) * 1000))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep:
        keep.mkdir(parents=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="lakelog-scenario-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
