"""A folder that is not empty, and a file of figures that cannot be written, are refused before the work begins."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.jobs import quickstart
from lakelog.jobs.cli.output_paths import check_empty, empty_folder, out_file
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.verbs import soak


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """The folder of a cluster."""
    format_cluster(StorageRoot.of(str(tmp_path / "of a cluster" / "cluster")), Config())
    return tmp_path / "of a cluster"


def _status(main: Callable[[list[str]], int], words: list[str]) -> object:
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("verb", [quickstart, soak], ids=lambda verb: verb.__name__)
def test_the_folder_of_a_cluster_is_refused(verb: object, running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(running.rglob("*"))
    assert _status(verb.main, ["--keep", str(running)]) == 2  # type: ignore[attr-defined]
    told = f"--keep: {running}: must be empty, as a new cluster is made there; it holds cluster"
    assert told in capsys.readouterr().err
    assert sorted(running.rglob("*")) == before


def test_an_empty_folder_and_one_to_be_made_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert empty_folder(str(tmp_path)) == tmp_path
    assert empty_folder("~/not/there/yet") == tmp_path / "not/there/yet"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("do not lose")
    with pytest.raises(InvalidConfigurationException, match="file: Not a directory; name an empty folder"):
        check_empty(tmp_path / "file")


def test_a_file_that_is_there_or_can_be_made_is_taken(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert out_file(str(tmp_path / "there")) == tmp_path / "there"
    assert out_file(str(tmp_path / "new")) == tmp_path / "new"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["there", "new"])
def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "there").touch()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written; name a file that can"):
        out_file(str(tmp_path / name))
