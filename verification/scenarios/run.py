"""Runs a script on a new cluster, step by step."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import FAILED, OK
from lakelog.jobs.cli.root_names import DISK
from lakelog.verification.clusters.embedded_cluster import EmbeddedCluster
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.roots.roots import STORES, LocalRoots
from lakelog.verification.scenarios.predictions import Predictions
from lakelog.verification.scenarios.report import ScenarioReport, ScriptResult, StepResult, write_json
from lakelog.verification.scenarios.scene import Scene
from lakelog.verification.scenarios.script import Script, Step
from lakelog.verification.scenarios.script_cluster import SETTINGS, ScriptCluster
from lakelog.verification.scenarios.script_steps import carry_out

MakeCluster = Callable[[Path, Script], AbstractContextManager[ScriptCluster]]

PROCESSES, SIMULATED = "processes", "simulated"


def run_script(
    make: MakeCluster, script: Script, keep: Path | None = None, tell: Callable[[StepResult], object] = lambda _: None
) -> ScriptResult:
    """Runs a script up to its first failed step, and calls `tell` after each step. Before each kill and stop of a
    broker it predicts the outcome: see `Predictions`.

    The cluster is in the folder `keep`, which must not exist yet, or in a temporary folder.
    """
    results: list[StepResult] = []
    with _folder(keep) as folder, make(folder, script) as cluster:
        scene, predictions, started = Scene(cluster), Predictions(cluster), time.monotonic()
        for step in script.steps:
            predictions.before(step)
            results.append(_timed(scene, step, started))
            tell(results[-1])
            if not results[-1].ok:
                break
        else:
            predictions.after_all()
        return ScriptResult(script, tuple(results), cluster.history(), tuple(predictions.outcomes))


@contextmanager
def clusters_of(mode: str, store: str = DISK, cluster_roots: int = 1) -> Iterator[MakeCluster]:
    """Yields the maker of each script's cluster: in one Spark session (ended afterwards), in processes, or in memory.
    `store` and `cluster_roots`: where its roots are and how many it has, if the script does not say."""
    if mode == PROCESSES:

        def in_processes(folder: Path, script: Script) -> ScriptCluster:
            roots = _roots(folder, script, store, cluster_roots)
            return ScriptCluster(ProcessCluster(roots, folder, range(1, script.brokers + 1), SETTINGS), is_cold=True)

        yield in_processes
        return
    if mode == SIMULATED:
        # imported late, because its modules serve tests and not real clusters
        from lakelog.verification.clusters.simulated_cluster import SimulatedCluster

        yield lambda _, script: ScriptCluster(SimulatedCluster(range(1, script.brokers + 1), SETTINGS))
        return
    from lakelog.jobs.launch.session import job_session  # imported late, because processes have their own sessions

    spark = job_session("lakelog-scenario")
    try:
        warm_up(spark)
        yield clusters_in(spark, store, cluster_roots=cluster_roots)
    finally:
        spark.stop()


def clusters_in(
    spark: SparkSession, store: str = DISK, is_cold: bool = False, cluster_roots: int = 1
) -> MakeCluster:  # fmt: skip
    """The maker of clusters in one Spark session. `is_cold`: the session has had none yet. `store` and
    `cluster_roots`: where a cluster's roots are and how many it has, if its script does not say."""

    def make(folder: Path, script: Script) -> ScriptCluster:
        roots = _roots(folder, script, store, cluster_roots)
        return ScriptCluster(EmbeddedCluster(spark, roots, folder, script.brokers, SETTINGS), is_cold)

    return make


def _roots(folder: Path, script: Script, store: str, cluster_roots: int) -> LocalRoots:
    return STORES[script.store or store](folder, script.brokers, script.cluster_roots or cluster_roots)


def warm_up(spark: SparkSession) -> None:
    """Sends records through a cluster of its own. In a new session the first micro-batches of followers take longer
    than the scripts' short time-outs allow."""
    with _folder(None) as folder, clusters_in(spark, is_cold=True)(folder, Script("", "warm-up", 2, ())):
        pass


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
    """FAILED if a step of any script had another outcome than the script expects."""
    report, results = ScenarioReport(), []
    with clusters_of(args.mode, args.store or DISK, args.cluster_roots) as make:
        for script in scripts:
            report.begins(script)
            keep = args.keep and args.keep / Path(script.path).stem
            results.append(run_script(make, script, keep, report.step))
    report.ends(results)
    if args.out:
        write_json(args.out, results)
    return OK if all(result.ok for result in results) else FAILED
