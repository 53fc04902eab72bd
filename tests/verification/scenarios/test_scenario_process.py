"""`lakelog scenario` as a process: all processes that it started end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from lakelog.jobs.launch.spark_submit import SOURCES
from tests.processes import wait_until

SCRIPT = """
name: waits
steps:
- sleep: {seconds: 600}
"""


def processes_of(folder: Path) -> set[int]:
    """The processes that have the folder in their command lines."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            is_one = entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if is_one:
            found.add(int(entry.name))
    return found


def logs_of(folder: Path) -> int:
    """How many processes have said something."""
    return sum(log.stat().st_size > 0 for log in folder.glob("*/*.log"))


def test_a_script_that_is_told_to_stop_leaves_no_process_behind(tmp_path: Path) -> None:
    script, clusters = tmp_path / "waits.yaml", tmp_path / "clusters"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "lakelog.jobs",
        "scenario",
        str(script),
        "--mode",
        "processes",
        "--keep",
        str(clusters),
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as verb:
        wait_until(lambda: logs_of(clusters) == 5, "three brokers and two controllers have begun", 60)
        for _ in range(2):
            verb.send_signal(signal.SIGTERM)
        assert verb.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not processes_of(clusters), "all have ended")
