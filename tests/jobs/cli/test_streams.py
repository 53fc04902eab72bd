"""Standard input and output that are closed, or on a full device: one sentence, and status 1."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakelog.jobs.cli.console import JSON, run
from lakelog.jobs.cli.options import admin_parser

CLOSED, FULL = "Bad file descriptor", "No space left on device"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("completion bash >&-", f"standard output: {CLOSED}"),
        ("completion bash >/dev/full", f"standard output: {FULL}"),
        ("--help >/dev/full", f"standard output: {FULL}"),
        ("topics --help >&-", f"standard output: {CLOSED}"),
        ("console-producer --cluster $0 --topic t <&-", f"InvalidRecordException: standard input: {CLOSED}"),
    ],
)
def test_a_stream_that_fails_is_named(words: str, said: str, cluster: str) -> None:
    shell = f'"{sys.executable}" -m lakelog.jobs {words}'
    done = subprocess.run(["sh", "-c", shell, cluster], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"lakelog: {said}\n")


def test_a_closed_stream_leaves_its_number_to_no_other_file(tmp_path: Path) -> None:
    program = (
        "import sys; from lakelog.jobs.launch.entry import begin; begin(); "
        "sys.exit(open(sys.argv[1], 'w').fileno() < 3)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "file")]
    assert subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], timeout=60, check=False).returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though nothing is left to write when the error arrives."""

    def is_left(_: object) -> int:
        raise BrokenPipeError(32, os.strerror(32))

    assert run(admin_parser("status", None, [JSON]), is_left, ["--cluster", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_is_no_full_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence is of the disk, and JSON has the system's name of the error."""

    def fails(_: object) -> int:
        raise OSError(28, os.strerror(28), str(tmp_path / "figures"))

    assert run(admin_parser("status", None, [JSON]), fails, ["--cluster", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert err == f"lakelog: {tmp_path / 'figures'}: {FULL}\n"
    assert json.loads(out)["error"] == {"code": "ENOSPC", "message": f"{tmp_path / 'figures'}: {FULL}"}
