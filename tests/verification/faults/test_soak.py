"""The verb `soak`, and a soak that cannot run: it reports the error, and leaves no process behind."""

import json
import os
from pathlib import Path

import pytest

from lakelog.replication.errors import TimeoutException
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.faults import soak_run
from lakelog.verification.faults.soak_plan import BROKERS
from lakelog.verification.faults.soak_run import Soak, SoakPlan, run_soak
from lakelog.verification.roots.roots import LocalRoots
from lakelog.verification.s3.server import StoreProcess
from lakelog.verification.server_process import ServerProcess
from lakelog.verification.verbs import soak

SERVERS = [*(f"broker {i}" for i in BROKERS), *CONTROLLERS]


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes", "0"], ["--faults", "many"], ["--faults", "-1"], ["--seed", "x"], ["--kinds", "flood"],
        ["--store", "tape"], ["--kinds", "cut-power", "--store", "s3"],
        ["--kinds", "hang-cluster-root", "--store", "disks", "--cluster-roots", "3"],
    ],
)  # fmt: skip
def test_a_wrong_word_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(words) == 2
    assert words[0] in capsys.readouterr().err


def _use(monkeypatch: pytest.MonkeyPatch, program: str) -> list[int]:
    """Replaces every server but the store by this program. Returns the list to which the process ids are added."""
    pids: list[int] = []
    start = ServerProcess.start

    def started(process: ServerProcess) -> None:
        if not isinstance(process, StoreProcess):
            process.program = ("/bin/sh", "-c", program)
        start(process)
        pids.append(process.pid or 0)

    monkeypatch.setattr(ServerProcess, "start", started)
    return pids


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_brokers_that_do_not_start_are_told_and_nothing_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = _use(monkeypatch, "exit 3")
    out = tmp_path / "out.json"
    status = soak.main(["--minutes", "1", "--faults", "1", "--keep", str(tmp_path / "kept"), "--out", str(out)])
    figures = json.loads(out.read_text())
    assert (status, figures["ok"], figures["lost"], figures["faults"]) == (1, False, None, 0)
    assert "BrokerNotAvailableException: " in figures["failures"][0]
    assert "has ended with status 3: see " in figures["failures"][0]
    assert len(pids) == 6
    assert all(map(_is_gone, pids))


def test_what_does_not_happen_in_time_is_told_with_what_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = _use(monkeypatch, "exec sleep 600")
    monkeypatch.setattr(soak_run, "PATIENCE", 0.1)
    figures = run_soak(tmp_path, SoakPlan(60, 1, 7), lambda **_: None)
    assert figures["failures"] == [
        f"TimeoutException: not within 0 s: all servers start; missing: {', '.join(SERVERS)}"
    ]
    assert all(map(_is_gone, pids))


def test_who_interrupts_it_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        if len(pids) == 6:
            raise KeyboardInterrupt

    pids = _use(monkeypatch, "exec sleep 600")
    with pytest.raises(KeyboardInterrupt):
        run_soak(tmp_path, SoakPlan(60, 1, 7), interrupt)
    assert all(map(_is_gone, pids))


def test_however_slow_the_cluster_is_a_soak_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ProcessCluster(LocalRoots(tmp_path), tmp_path, BROKERS)
    cluster.format()
    soak = Soak(cluster, SoakPlan(60, 1, 7), lambda **_: None)
    monkeypatch.setattr(SoakPlan, "latest_end_s", -1.0)
    soak._is_loaded = True
    with pytest.raises(TimeoutException, match="only 0 of 1 faults have begun within 0 s"):
        soak._let(600)
