"""`lakelog dump-log` on real logs: its output, and the files that it reports as broken."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakelog.jobs import dump_log
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.producer_state import ProducerEntry, SequenceRun
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment, record_bytes, write_segment, write_snapshot
from tests.odd_names import NO_PATTERN
from tests.storage.logs import (
    NOON,
    P0,
    P1,
    PRODUCER,
    TOPIC,
    TOPIC_ID,
    chain,
    fill,
    lead,
    log_rows,
    new_log,
    records,
    request,
    send,
)

Run = Any  # what a verb has answered: (status, stdout, stderr)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root whose name a library may read as a pattern or an escape."""
    return tmp_path / NO_PATTERN


@pytest.fixture
def log(folder: Path) -> ReplicaLog:
    """A file with three records of flights-0 and one, a tombstone, of flights-1; another with two of flights-0."""
    log = new_log(str(folder), P0, P1)
    tables = {P0: records(b"a", b"b\xff", b""), P1: records(None)}
    send(log, request(P0, 3), request(P1, 1), tables=tables)
    lead(log, P0, epoch=2)
    fill(log, P0, 2, epoch=2)
    return log


@pytest.fixture
def dump(lakelog: Run, log: ReplicaLog, folder: Path) -> Run:
    """Runs the verb on the log."""
    assert log.root.uri == str(folder / "log")
    return lambda *words: lakelog(dump_log, "--root", folder, *words)


def without_hashes(text: str) -> str:
    """Lines without the digests and chains at their ends."""
    return re.sub(r" digest: [0-9a-f]{32} chain: [0-9a-f]{32}$", "", text, flags=re.M)


def names(log: ReplicaLog) -> list[str]:
    """Files of the log by their first offset of flights-0."""
    segments = (segment for segment in log.refresh().segments.values() if segment.headers)
    return [s.name for s in sorted(segments, key=lambda segment: segment.headers[0].base_offset)]


def add(log: ReplicaLog, *segments: Segment) -> None:
    log.transact({"why": "test"}, lambda _: LogChange(adds=segments))


FIRST = (
    f"partition: {TOPIC}-0 baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 0 lastSequence: 2 producerId: {PRODUCER} "
    f"producerEpoch: 0 partitionLeaderEpoch: 0 CreateTime: {NOON_MS + 2} size: 6"
)
TOMBSTONE = (
    f"partition: {TOPIC}-1 baseOffset: 0 lastOffset: 0 count: 1 baseSequence: 0 lastSequence: 0 producerId: {PRODUCER} "
    f"producerEpoch: 0 partitionLeaderEpoch: 0 CreateTime: {NOON_MS} size: 1"
)
SECOND = (
    f"partition: {TOPIC}-0 baseOffset: 3 lastOffset: 4 count: 2 baseSequence: 3 lastSequence: 4 producerId: {PRODUCER} "
    f"producerEpoch: 0 partitionLeaderEpoch: 2 CreateTime: {NOON_MS + 1} size: 4"
)


def test_batches_are_shown_file_by_file_as_kafka_prints_them(dump: Run, log: ReplicaLog) -> None:
    first, second = (log.root.path(name) for name in names(log))
    lines = [f"Dumping {first}", FIRST, TOMBSTONE, f"Dumping {second}", SECOND]
    status, out, err = dump()
    assert (status, without_hashes(out), err) == (0, "".join(f"{line}\n" for line in lines), "")
    (header,) = log.refresh().segments[names(log)[1]].headers
    assert out.endswith(f" digest: {header.digest} chain: {header.chain}\n")


def test_records_are_shown_under_their_batches(dump: Run) -> None:
    status, out, _ = dump("--print-data-log", "--offsets", ":3")
    head, key = f"| offset: 0 CreateTime: {NOON_MS} keySize: 1", "headerKeys: [] key: k"
    assert status == 0
    assert without_hashes(out).splitlines()[1:] == [
        FIRST,
        f"{head} valueSize: 1 sequence: 0 {key} payload: a",
        f"| offset: 1 CreateTime: {NOON_MS + 1} keySize: 1 valueSize: 2 sequence: 1 {key} payload: b\\xff",
        f"| offset: 2 CreateTime: {NOON_MS + 2} keySize: 1 valueSize: 0 sequence: 2 {key} payload: ",
        TOMBSTONE,
        f"{head} valueSize: -1 sequence: 0 {key}",
    ]


CHOSEN = {
    "all": ([], [(0, 0), (1, 0), (0, 3)]),
    "topic": (["--topic", TOPIC], [(0, 0), (1, 0), (0, 3)]),
    "partition": (["--partition", "1"], [(1, 0)]),
    "from on": (["--offsets", "3:"], [(0, 3)]),
    "from on, within a batch": (["--offsets", "2:"], [(0, 0), (0, 3)]),
    "before": (["--offsets", ":3"], [(0, 0), (1, 0)]),
    "before, within a batch": (["--offsets", ":4"], [(0, 0), (1, 0), (0, 3)]),
    "both": (["--offsets", "1:3", "--partition", "0"], [(0, 0)]),
    "nothing": (["--offsets", "5:10"], []),
}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--topic", "planes"], f"no batches of topic planes; there are: {TOPIC}"),
        (["--partition", "7"], "no batches of partition 7; there are: 0, 1"),
        (["--topic", TOPIC, "--partition", "7"], "no batches of partition 7; there are: 0, 1"),
    ],
)
def test_a_topic_or_partition_without_batches_is_an_error(
    dump: Run, folder: Path, words: list[str], error: str
) -> None:
    message = f"{folder}: {error}"
    status, out, err = dump(*words, "-o", "json")
    assert (status, err) == (1, f"lakelog: UnknownTopicOrPartitionException: {message}\n")
    assert json.loads(out) == {"error": {"code": "UnknownTopicOrPartitionException", "message": message}}


@pytest.mark.parametrize(("words", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_topic_partition_and_offsets_choose_the_batches_shown(
    dump: Run, words: list[str], expected: list[tuple[int, int]]
) -> None:
    files = json.loads(dump(*words, "-o", "json")[1])["files"]
    batches = [batch for file in files for batch in file["batches"]]
    assert [(batch["partition"], batch["base_offset"]) for batch in batches] == expected
    assert all(file["batches"] for file in files)


def test_records_of_a_batch_are_chosen(dump: Run) -> None:
    files = json.loads(dump("--print-data-log", "--partition", 0, "--offsets", "2:4", "-o", "json")[1])["files"]
    found = [record for file in files for batch in file["batches"] for record in batch["records"]]
    assert [(record["offset"], record["value"], record["value_size"]) for record in found] == [(2, "", 0), (3, "0", 1)]


def test_ap_06_what_is_remembered_of_producers_is_shown(dump: Run, log: ReplicaLog) -> None:
    entry = ProducerEntry(3, (SequenceRun(0, 4, 10), SequenceRun(7, 8, 20)))
    remembered = [RememberedProducer(p, 9, entry, NOON_MS * 1000) for p in (P0, P1)]
    add(log, write_snapshot(log.root, remembered))
    status, out, _ = dump("--offsets", "9:", "--partition", 0, "--verify")
    head = f"partition: {TOPIC}-0 producerId: 9 producerEpoch: 3 lastTimestamp: {NOON_MS}"
    assert status == 0
    assert without_hashes(out).splitlines()[1:] == [
        f"{head} firstSequence: 0 lastSequence: 4 baseOffset: 10",
        f"{head} firstSequence: 7 lastSequence: 8 baseOffset: 20",
    ]


def test_a_log_that_is_whole_is_verified(dump: Run) -> None:
    status, out, err = dump("--verify", "-o", "json")
    assert (status, err) == (0, "files: 2, broken: 0, gaps between batches: 0\n")
    assert [file["fault"] for file in json.loads(out)["files"]] == [None, None]


def header_of(rows: pa.Table) -> BatchHeader:
    """The header of a batch of these rows."""
    (first,), last = rows.slice(0, 1).to_pylist(), rows["offset"][-1].as_py()
    return BatchHeader(
        first["topic"], first["topic_id"], first["partition"], first["leader_epoch"], first["offset"], last,
        pc.max(rows["timestamp"]).value, pc.sum(record_bytes(rows)).as_py(), digest=record_digest(rows),
    )  # fmt: skip


def at_the_end(log: ReplicaLog, header: BatchHeader) -> BatchHeader:
    """The header, linked to the log's end."""
    return linked(header, chain(log, header.topic_id_partition))


def wrong(rows: pa.Table, *headers: BatchHeader, **changes: Any) -> Callable[[ReplicaLog], None]:
    """Adds a file whose first header does not match its rows."""
    first, *others = headers or [header_of(rows)]
    told = [replace(first, **changes), *others]
    return lambda log: add(log, write_segment(log.root, 1, rows, [at_the_end(log, header) for header in told]))


def rows_of_offsets(offsets: Sequence[int]) -> pa.Table:
    rows = log_rows(P0, 5, len(offsets), epoch=2)
    return rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offsets, pa.int64()))


FOUR = log_rows(P0, 5, 4, epoch=2)
OTHER = log_rows(P1, 1, 2, epoch=2)
OF_FOUR, OF_OTHER = header_of(FOUR), header_of(OTHER)

WRONG = {
    # A wrong file at the log's end, and words of the error.
    "an offset twice": (wrong(rows_of_offsets([5, 6, 6, 8]), OF_FOUR), "[5, 8, 3] in its rows"),
    "another topic id": (wrong(FOUR, topic_id="z"), "topic_id is ['z'] in its header"),
    "another size": (wrong(FOUR, bytes=1), "bytes is [1] in its header, [8] in its rows"),
    "another time": (wrong(FOUR, max_timestamp=1), "max_timestamp is [1] in its header"),
    "another value": (wrong(FOUR, digest="0" * 32), "digest is ['00000000000000000000000000000000'] in its header"),
    "the second batch": (wrong(pa.concat_tables([FOUR, OTHER]), OF_FOUR, replace(OF_OTHER, bytes=1)), f"{TOPIC}-1"),
}


IMPOSSIBLE = {
    # A file that no writer makes: only its footer shows it.
    "records missing": (wrong(FOUR.slice(0, 3), OF_FOUR), "its headers describe 4 records, but it has 3 rows"),
    "records too many": (wrong(FOUR, header_of(FOUR.slice(0, 3))), "its headers describe 3 records, but it has 4 rows"),
    "a header that ends before it begins": (wrong(FOUR, last_offset=3), "a header has offsets 5 to 3"),
    "an offset missing": (wrong(rows_of_offsets([5, 6, 8, 9]), OF_FOUR), "offset from 5 to 9, its headers 5 to 8"),
    "another epoch": (wrong(FOUR, leader_epoch=3), "leader_epoch from 2 to 2, its headers 3 to 3"),
    "another topic": (wrong(FOUR, topic="planes"), "its headers 'planes' to 'planes'"),
    "no batch in the headers": (wrong(FOUR, OF_FOUR, last_offset=4, bytes=0), "a header has offsets 5 to 4"),
}


@pytest.mark.parametrize(("happens", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_file_whose_footer_contradicts_itself_is_named_without_reading_its_rows(
    dump: Run, log: ReplicaLog, happens: Any, words: str
) -> None:
    before = set(names(log))
    happens(log)
    (third,) = {file.name for file in log.current().segments.values()} - before
    status, out, err = dump()
    assert status == 1
    assert err.startswith(f"lakelog: CorruptRecordException: {log.root.path(third)}: its footer cannot be read: ")
    assert words in err
    assert {FIRST, TOMBSTONE, SECOND} <= set(without_hashes(out).splitlines())
    assert dump("--topic", "planes") == (1, "", err), "it may hold that topic"


@pytest.mark.parametrize(("happens", "words"), WRONG.values(), ids=WRONG)
def test_a_file_whose_rows_are_not_what_its_headers_say_is_named(
    dump: Run, log: ReplicaLog, happens: Any, words: str
) -> None:
    happens(log)
    *_, third = names(log)
    assert dump()[0] == 0
    status, out, err = dump("--verify", "--topic", TOPIC, "--offsets", ":5")
    broken, *others = err.splitlines()
    assert status == 1
    assert broken.startswith(f"lakelog: CorruptRecordException: {log.root.path(third)}: ")
    assert words in broken
    assert others[-1].startswith("files: 3, broken: 1, ")
    assert {FIRST, TOMBSTONE, SECOND} <= set(without_hashes(out).splitlines())


def test_several_batches_of_several_partitions_in_any_order_are_whole(dump: Run, log: ReplicaLog) -> None:
    """Headers and rows are sorted, whatever their order in the file."""
    wrong(pa.concat_tables([OTHER, FOUR]), OF_FOUR, OF_OTHER)(log)
    assert dump("--verify")[::2] == (0, "files: 3, broken: 0, gaps between batches: 0\n")


UNREADABLE = {
    "gone": (lambda log, name: log.root.delete(name), "is gone, its commit says "),
    "cut short": (lambda log, name: Path(log.root.path(name)).write_bytes(b"PAR1"), "has 4 bytes, its commit says "),
    "another content": (
        lambda log, name: Path(log.root.path(name)).write_bytes(bytes(log.refresh().segments[name].file.size)),
        "Parquet magic bytes not found",
    ),
    "another footer": (
        lambda log, name: _overwrite(log, name, f'"{TOPIC}","{TOPIC_ID}",0'.encode(), b"{"),
        "its footer cannot be read: JSONDecodeError(",
    ),
}


def _overwrite(log: ReplicaLog, name: str, old: bytes, new: bytes) -> None:
    content = log.root.read(name)
    assert content.count(old) >= 1
    Path(log.root.path(name)).write_bytes(content.replace(old, new.ljust(len(old))))


@pytest.mark.parametrize(("happens", "words"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("options", [[], ["--verify"], ["--print-data-log"]], ids=["shown", "verified", "records"])
def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(
    dump: Run, log: ReplicaLog, happens: Any, words: str, options: list[str]
) -> None:
    first, _ = names(log)
    happens(log, first)
    status, out, err = dump(*options)
    assert (status, SECOND in without_hashes(out).splitlines(), first in out) == (1, True, False)
    assert err.startswith(f"lakelog: CorruptRecordException: {log.root.path(first)}: ")
    assert words in err
    assert err.count(first) == 1
    found = json.loads(dump(*options, "-o", "json")[1])["files"]
    assert [file["fault"] is None for file in found] == [True, False]


def test_pages_that_cannot_be_read_are_found_when_rows_are_wanted(dump: Run, log: ReplicaLog) -> None:
    _, second = names(log)
    content = log.root.read(second)
    Path(log.root.path(second)).write_bytes(content[:4] + bytes(200) + content[204:])
    assert dump()[0] == 0
    for option in ("--verify", "--print-data-log"):
        status, out, err = dump(option)
        assert (status, SECOND in without_hashes(out).splitlines()) == (1, True)
        assert err.startswith(f"lakelog: CorruptRecordException: {log.root.path(second)}: ")


def test_a_changed_byte_that_no_row_depends_on_is_found(dump: Run, log: ReplicaLog) -> None:
    _, second = names(log)
    _overwrite(log, second, b"parquet-cpp", b"parquet-CPP")
    assert dump("--print-data-log")[0] == 0
    status, _, err = dump("--verify")
    assert (status, err.splitlines()[-1]) == (1, "files: 2, broken: 1, gaps between batches: 0")
    assert "bytes that were committed" in err


GAPS = {
    "offsets are missing": (log_rows(P0, 7, 1, epoch=2), "begins at offset 7, but {second} ends before 5"),
    "offsets come twice": (log_rows(P0, 4, 1, epoch=2), "begins at offset 4, but {second} ends before 5"),
    "the epoch goes down": (log_rows(P0, 5, 1, epoch=1), "is of leader epoch 1 at offset 5, {second} of epoch 2"),
}


def test_a_batch_that_was_written_after_another_one_than_lies_there_is_named(dump: Run, log: ReplicaLog) -> None:
    """As in a log that lost its tail and then got other records."""
    _, second = names(log)
    third = write_segment(log.root, 1, FOUR, [linked(OF_FOUR, "0" * 32)])
    add(log, third)
    status, out, _ = dump("--verify", "-o", "json")
    assert status == 1
    assert json.loads(out)["gaps"][0].startswith(f"{TOPIC}-0: {third.name} does not follow {second} at offset 5: ")


@pytest.mark.parametrize(("rows", "words"), GAPS.values(), ids=GAPS)
def test_batches_of_two_files_that_do_not_follow_each_other_are_named(
    dump: Run, log: ReplicaLog, rows: pa.Table, words: str
) -> None:
    _, second = names(log)
    third = write_segment(log.root, 1, rows, [at_the_end(log, header_of(rows))])
    add(log, third)
    status, out, err = dump("--verify", "-o", "json")
    (gap,) = json.loads(out)["gaps"]
    assert status == 1
    assert gap.startswith(f"{TOPIC}-0: {third.name} {words.format(second=second)}")
    assert err == (f"lakelog: CorruptRecordException: {gap}\nfiles: 3, broken: 0, gaps between batches: 1\n")


def test_verify_reports_no_gaps_if_a_file_cannot_be_read(dump: Run, log: ReplicaLog) -> None:
    fill(log, P0, 1, epoch=2)
    _, second, _ = names(log)
    log.root.delete(second)
    status, _, err = dump("--verify")
    assert (status, err.splitlines()[1:]) == (
        1,
        [
            "Gaps were not looked for: what the files hold that cannot be read is not known.",
            "files: 3, broken: 1, gaps between batches: 0",
        ],
    )


def test_a_root_has_the_credentials_of_its_broker(dump: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKELOG_STORAGE_3_AWS_REGION", "here")
    asked: list[dict[str, str]] = []
    monkeypatch.setattr("lakelog.jobs.dump_log.log_files", lambda root: asked.append(dict(root.options)) or [])
    assert (dump("--broker-id", 3)[0], dump("--broker-id", 1)[0], dump()[0]) == (0, 0, 0)
    assert asked == [{"AWS_REGION": "here"}, {}, {}]


def test_a_folder_without_a_log_is_refused(lakelog: Run, tmp_path: Path) -> None:
    status, out, err = lakelog(dump_log, "--root", tmp_path / "none")
    assert (status, out) == (1, "")
    assert err.startswith(f"lakelog: InconsistentClusterIdException: there is no root of a broker at {tmp_path}/none: ")


def test_the_root_of_a_cluster_is_refused_and_names_those_of_its_brokers(lakelog: Run, cluster: str) -> None:
    status, out, err = lakelog(dump_log, "--root", cluster)
    assert (status, out) == (1, "")
    roots = "/nowhere/1, /nowhere/2, /nowhere/3"
    assert err.endswith(f": {cluster}: is the root of a cluster; give the root of one of its brokers: {roots}\n")


@pytest.mark.parametrize("words", [["--offsets", "5"], ["--offsets", "a:b"], ["--partition", "x"], ["-o", "table"]])
def test_wrong_usage_is_status_2(dump: Run, words: list[str]) -> None:
    status, out, err = dump(*words)
    assert (status, out) == (2, "")
    assert "lakelog dump-log --help` lists the options" in err
