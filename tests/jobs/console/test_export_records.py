"""`lakelog export-records` on real tables without brokers: each form, and a file that is whole or not there."""

import csv
import io
import json
import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.jobs import export_records
from tests.jobs.console.two_topics import TwoTopics, append, filled, record
from tests.storage.logs import P0, P1, TOPIC

Run = Any  # what a verb has answered: (status, stdout, stderr)


@pytest.fixture
def world(tmp_path: Path) -> TwoTopics:
    world = filled(tmp_path)
    world.publish({})
    return world


@pytest.fixture
def export(lakelog: Run, world: TwoTopics) -> Run:
    return lambda *words: lakelog(export_records, "--cluster", world.uri, "--topic", TOPIC, *words)


def test_json_lines_have_all_columns_of_all_records(export: Run) -> None:
    status, out, err = export("--partitions", "0", "--offset", 3)
    assert (status, err) == (0, "2 records of topic flights were written\n")
    place = {"topic": TOPIC, "partition": 0, "leader_epoch": 0}
    headers = [{"key": "h", "value": "d"}, {"key": "none", "value": None}]
    assert [json.loads(line) for line in out.splitlines()] == [
        {**place, "offset": 3, "timestamp": "2026-01-01T12:03:00.000007Z", "headers": headers, "key": "other",
         "value": "d"},
        {**place, "offset": 4, "timestamp": "2026-01-01T12:04:00.000007Z", "headers": [], "key": None, "value": None},
    ]  # fmt: skip


def test_parquet_has_the_records_as_they_are(export: Run, world: TwoTopics, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert export("--format", "parquet", "--out", out) == (0, "", f"7 records of topic flights were written to {out}\n")
    rows = pq.read_table(out).to_pylist()
    for partition in (P0, P1):
        ours = [row for row in rows if row["partition"] == partition.partition]
        assert [row["offset"] for row in ours] == list(range(world.end(partition)))
        assert [{name: row[name] for name in ("key", "value", "headers", "timestamp")} for row in ours] == world.kept(
            partition
        )


def test_csv_tells_null_from_an_empty_text(export: Run, world: TwoTopics) -> None:
    append(world, P1, [{**record('a "b",\n', key=""), "headers": None}])
    world.publish({})
    status, out, _ = export("--format", "csv", "--partitions", 1, "--offset", 2)
    assert status == 0
    assert out.splitlines()[0] == '"topic","partition","offset","timestamp","leader_epoch","headers","key","value"'
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["offset"], row["key"], row["value"], row["headers"]) == ("2", "", 'a "b",\n', "[]")
    assert ',"[]","","a' in out
    nulls = export("--format", "csv", "--partitions", 0, "--offset", 4)[1]
    assert nulls.endswith(',"[]",,\n')


@pytest.mark.parametrize("form", ["json", "csv"])
def test_bytes_that_are_no_text_need_base64(export: Run, world: TwoTopics, form: str, tmp_path: Path) -> None:
    append(world, P1, [{**record("x"), "value": b"\xff\x00", "headers": None}])
    world.publish({})
    out = tmp_path / "out"
    status, _, err = export("--format", form, "--out", out)
    assert (status, [path for path in tmp_path.iterdir() if "out" in path.name]) == (1, [])
    assert "InvalidRecordException: flights-1, offset 2: the value is not UTF-8: give --encoding base64" in err
    assert export("--format", form, "--encoding", "base64", "--out", out)[0] == 0
    assert b64encode(b"\xff\x00").decode() in out.read_text()
    assert b64encode(b"k").decode() in out.read_text()


def test_a_file_that_is_there_is_overwritten_only_if_it_is_told_so(export: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("kept")
    status, _, err = export("--out", out)
    assert (status, out.read_text()) == (1, "kept")
    assert f"InvalidRequestException: {out}: is there already; give another name, or --overwrite" in err
    assert export("--out", out, "--overwrite", "--key", "other")[0] == 0
    assert [json.loads(line)["value"] for line in out.read_text().splitlines()] == ["d", "y"]


def test_a_file_that_comes_meanwhile_is_kept(export: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, link = tmp_path / "out.json", os.link

    def late(*given: Any) -> None:
        out.write_text("of another process")
        link(*given)

    monkeypatch.setattr(export_records.os, "link", late)
    status, _, err = export("--out", out)
    assert (status, out.read_text()) == (1, "of another process")
    assert "is there already" in err
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.json"]


class Killed(BaseException):
    """The process is dead."""


def _dies(*_: Any) -> None:
    raise Killed


def _is_told(*_: Any) -> bytes:
    os.kill(os.getpid(), signal.SIGTERM)
    return b""


@contextmanager
def _dies_at_the_end(file: BinaryIO, _: str) -> Iterator[Callable[[pa.Table], object]]:
    yield lambda records: file.write(b"{}\n" * records.num_rows)
    raise Killed


# Where it dies, and how.
ENDS: dict[str, tuple[str, object]] = {
    "at a write": ("json_lines", _dies),
    "at the end": ("FORMATS", {"json": _dies_at_the_end}),
    "at the sync": ("os.fsync", _dies),
    "at the name": ("os.link", _dies),
    "by a signal": ("json_lines", _is_told),
}


@pytest.mark.parametrize(("place", "end"), ENDS.values(), ids=ENDS)
def test_no_half_file_gets_the_name(
    export: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, end: object
) -> None:
    monkeypatch.setattr(f"lakelog.jobs.export_records.{place}", end)
    monkeypatch.setattr(export_records, "_MAX_BYTES", 1)  # several writes
    out = tmp_path / "out.json"
    if end is _is_told:
        assert export("--out", out) == (130, "", f"lakelog: stopped before the end; {out} was not written\n")
    else:
        with pytest.raises(Killed):
            export("--out", out)
    assert not out.exists()


def test_a_range_without_records_is_an_empty_file(export: Run, tmp_path: Path) -> None:
    for form, content in (("json", b""), ("csv", b'"topic","partition","offset"'), ("parquet", b"PAR1")):
        out = tmp_path / f"out.{form}"
        assert export("--format", form, "--out", out, "--since", "2026-01-02")[0] == 0
        assert out.read_bytes().startswith(content)
        assert bool(content) == bool(out.read_bytes())
