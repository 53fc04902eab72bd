"""Runs a script on a new cluster, step by step."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import FAILED, OK
from lakelog.jobs.demo.root_names import DISK
from lakelog.replication.clients.producer import Producer
from lakelog.verification.roots.roots import STORES, DiskRoots
from lakelog.verification.scenarios.report import Report, ScriptResult, StepResult, write_json
from lakelog.verification.scenarios.scene import Scene
from lakelog.verification.scenarios.script import Script, Step
from lakelog.verification.scenarios.script_cluster import EmbeddedCluster, MakeCluster, ProcessCluster
from lakelog.verification.scenarios.script_steps import carry_out

PROCESSES, SIMULATED = "processes", "simulated"

_WARM_UP_MS = 60_000


def run_script(
    make: MakeCluster, script: Script, keep: Path | None = None, tell: Callable[[StepResult], object] = lambda _: None
) -> ScriptResult:
    """Runs a script up to its first failed step, and calls `tell` after each step.

    The cluster is in the folder `keep`, which must not exist yet, or in a temporary folder.
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
def clusters_of(mode: str, store: str = DISK) -> Iterator[MakeCluster]:
    """Yields the maker of each script's cluster: in one Spark session (ended afterwards), in processes, or in
    memory."""
    if mode == PROCESSES:
        yield lambda folder, brokers: ProcessCluster(STORES[store](folder, brokers), folder, brokers)
        return
    if mode == SIMULATED:
        from lakelog.verification.scenarios.script_cluster import (
            SimulatedCluster,  # imported late, because its modules serve tests and not real clusters
        )

        yield lambda _, brokers: SimulatedCluster(brokers)
        return
    from lakelog.jobs.launch.session import job_session  # imported late, because processes have their own sessions

    spark = job_session("lakelog-scenario")
    try:
        warm_up(spark)
        yield lambda folder, brokers: EmbeddedCluster(spark, STORES[store](folder, brokers), folder, brokers)
    finally:
        spark.stop()


def warm_up(spark: SparkSession) -> None:
    """Sends a record through a cluster of its own. In a new session the first micro-batches of followers take longer
    than the scripts' short time-outs allow."""
    with _folder(None) as folder, EmbeddedCluster(spark, DiskRoots(folder), folder, 2) as cluster:
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


def run_all(scripts: Iterable[Script], args: argparse.Namespace) -> int:
    """FAILED if a step of any script came out otherwise than it says."""
    report, results = Report(), []
    with clusters_of(args.mode, args.store) as make:
        for script in scripts:
            report.begins(script)
            keep = args.keep and args.keep / Path(script.path).stem
            results.append(run_script(make, script, keep, report.step))
    report.ends(results)
    if args.out:
        write_json(args.out, results)
    return OK if all(result.ok for result in results) else FAILED
