"""One small run of `bench processes` with real processes."""

import json
import subprocess
import sys
from pathlib import Path


def test_what_is_sent_to_processes_is_committed(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "lakelog.jobs", "bench", "processes", "--sends", "1", "--seconds", "1"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["rows_equal"] is True
    assert [word in done.stdout for word in ("start of all processes", "acknowledged send", "idle")] == [True] * 3
