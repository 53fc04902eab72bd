"""A file of figures that cannot be written is refused before the work begins."""

import argparse
from pathlib import Path

import pytest

from lakelog.jobs.cli.out_file import out_file


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
