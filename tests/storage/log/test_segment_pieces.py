"""The pieces of a merge: which row groups are copied as they are, and which are decoded."""

from random import Random

import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import digest_of, segment_name
from lakelog.replication.storage.log import pieces
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.pieces import CopiedBatches, DecodedBatches, Target, _spans, pieces_of
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import (
    STATS_COLUMNS,
    Segment,
    encoded,
    footer_metadata,
    read_records,
    row_groups,
    statistics,
)
from tests.storage.logs import P0, P1, facts, header, leo, new_log, records, request, send

LARGE = 600_000  # two such records are a row group
# The rows of each batch and of each row group; the runs of batches, and the row groups that have just these.
SPANS = {
    "no batch": ([], [], []),
    "one in one": ([3], [3], [((0, 1), (0, 1))]),
    "several in one": ([1, 2, 3], [6], [((0, 3), (0, 1))]),
    "one in several": ([6], [2, 2, 2], [((0, 1), (0, 3))]),
    "each in its own": ([2, 3], [2, 3], [((0, 1), (0, 1)), ((1, 2), (1, 2))]),
    "two share, one has its own": ([1, 1, 4], [2, 2, 2], [((0, 2), (0, 1)), ((2, 3), (1, 3))]),
    "they overlap": ([3, 3, 2], [2, 4, 2], [((0, 2), (0, 2)), ((2, 3), (2, 3))]),
}


@pytest.mark.parametrize("case", SPANS)
def test_runs_of_whole_batches_and_whole_row_groups(case):
    batches, groups, expected = SPANS[case]
    headers = [header(last=rows - 1) for rows in batches]
    found = [((b.start, b.stop), (g.start, g.stop)) for b, g in _spans(headers, groups)]
    assert found == expected


def test_headers_of_another_number_of_rows_are_refused():
    with pytest.raises(ValueError, match="has 4 rows, its headers have 3"):
        list(_spans([header(last=2)], [4]))


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


def noise(seed, *sizes):
    random = Random(seed)
    return records(*(random.randbytes(size) for size in sizes))


def sent(log, *sizes):
    """Appends a batch of large records to P0 and one small record to P1. Returns their segment."""
    before = set(log.refresh().segments)
    rows = noise(leo(log, P0), *sizes)
    send(log, request(P0, len(sizes), leo(log, P0)), request(P1, 1, leo(log, P1)), tables={P0: rows, P1: noise(1, 9)})
    (name,) = set(log.refresh().segments) - before
    return log.current().segments[name]


def shape(pieces):
    return [(type(piece), [(h.partition, h.records) for h in piece.headers]) for piece in pieces]


def targets(segment, *where):
    return dict(zip(segment.headers, (Target(*each) for each in where), strict=True))


def test_a_large_row_group_is_copied_and_a_small_one_decoded(log):
    segment = sent(log, LARGE, LARGE)
    assert shape(pieces_of(log.root, segment, targets(segment, (0, 0), (1, 0)))) == [
        (CopiedBatches, [(0, 2)]), (DecodedBatches, [(1, 1)]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ([(0, 5), (0, 6)], CopiedBatches),
        ([(0, 0), (0, 2)], DecodedBatches),
        ([(0, 0), (1, 1)], DecodedBatches),
        ([(0, 1), (0, 0)], DecodedBatches),
    ],
)
def test_only_batches_that_stay_together_are_copied(log, where, kind):
    """A row group of two batches: another batch comes between them, or they go to two files."""
    tables = {P0: noise(1, LARGE), P1: noise(2, LARGE)}
    send(log, request(P0, 1, 0), request(P1, 1, 0), tables=tables)
    (segment,) = log.refresh().segments.values()
    found = list(pieces_of(log.root, segment, targets(segment, *where)))
    assert {type(piece) for piece in found} == {kind}
    assert [h for piece in found for h in piece.headers] == list(segment.headers)


def test_na_04_large_row_groups_are_copied_as_they_are(log, monkeypatch):
    """Their pages are not decoded: only the columns of the statistics are."""
    for _ in range(4):
        sent(log, LARGE, LARGE)
    before, decoded = [log.read(p, 0) for p in (P0, P1)], []
    original = pieces.decoded

    def noted(content, numbers, columns=None):
        decoded.append((list(numbers), columns))
        return original(content, numbers, columns)

    monkeypatch.setattr(pieces, "decoded", noted)
    assert compact(log, 1 << 30, 4, 1 << 30, "test") == 4
    assert decoded == [([1], None)] * 4 + [([0], STATS_COLUMNS)] * 4
    assert [log.read(p, 0).equals(rows) for p, rows in zip((P0, P1), before, strict=True)] == [True, True]
    assert facts(ReplicaLog.open(log.root)) == facts(log)


@pytest.mark.parametrize("seed", range(6))
def test_na_04_any_mixture_of_copied_and_decoded_batches_keeps_every_record(log, seed):
    """Row groups of a few records, so that all kinds of pieces come beside each other."""
    random = Random(seed)
    for number in range(12):
        sizes = {p: random.choices([10, 700_000], k=random.randrange(1, 4)) for p in (P0, P1)}
        given = {p: noise(number, *sizes[p]) for p in (P0, P1)}
        chosen = random.choice([(P0, P1), (P0,), (P1,)])
        send(log, *(request(p, given[p].num_rows, leo(log, p)) for p in chosen), tables={p: given[p] for p in chosen})
        if random.random() < 0.3:
            compact(log, 1 << 30, 2, 1 << 30, "test")
    before = [log.read(p, 0) for p in (P0, P1)]
    compact(log, 1 << 30, 2, 1 << 30, "test")
    assert [log.read(p, 0).equals(rows) for p, rows in zip((P0, P1), before, strict=True)] == [True, True]
    assert sum(read_records(log.root, name).num_rows for name in log.current().segments) == sum(map(len, before))


def test_a_file_that_rotted_is_not_copied(log):
    segment = sent(log, LARGE, LARGE)
    content = bytearray(log.root.read(segment.name))
    content[1000] ^= 1
    log.root.write(segment.name, bytes(content))
    with pytest.raises(CorruptRecordException, match=f"{segment.name}: its .* bytes are not the"):
        list(pieces_of(log.root, segment, targets(segment, (0, 0), (1, 0))))


def reordered(log, segment, order, name=None):
    """The segment with other rows under its headers, in a file of this name, or of one that has its digest."""
    rows = read_records(log.root, segment.name).take(order)
    content = encoded(rows, row_groups(segment.headers, 3), footer_metadata(segment.headers, statistics(rows)))
    name = name or segment_name(1, digest_of(content))
    log.root.put(name, content)
    return Segment(AddedFile(name, content.size), segment.headers)


def test_the_rows_of_a_file_of_another_tool_are_searched_for(log):
    segment = sent(log, LARGE, LARGE)
    other = reordered(log, segment, [2, 0, 1], "part-1.parquet")
    made = list(pieces_of(log.root, other, targets(segment, (0, 0), (1, 0))))
    assert shape(made) == [(DecodedBatches, [(0, 2)]), (DecodedBatches, [(1, 1)])]
    assert [piece.table["value"].to_pylist() for piece in made] == [
        log.read(p, 0)["value"].to_pylist() for p in (P0, P1)
    ]


@pytest.mark.parametrize("order", [[0, 0, 2], [0, 2, 2], [2, 1, 0]])
def test_a_segment_whose_rows_are_not_under_their_headers_is_refused(log, order):
    """An attacker who can write to the table can also choose a name with the right digest."""
    segment = sent(log, 10, 10)
    hostile = reordered(log, segment, order)
    with pytest.raises(CorruptRecordException, match=f"{hostile.name}: .* do not have the digest of their header"):
        list(pieces_of(log.root, hostile, targets(segment, (0, 0), (1, 0))))


def test_row_groups_of_another_schema_are_decoded(log, monkeypatch):
    segment = sent(log, LARGE, LARGE)
    monkeypatch.setattr(pieces.empty_segment(), "schema", [])
    made = list(pieces_of(log.root, segment, targets(segment, (0, 0), (1, 0))))
    assert shape(made) == [(DecodedBatches, [(0, 2)]), (DecodedBatches, [(1, 1)])]


def test_a_file_that_arrow_reads_and_the_copy_refuses_is_decoded(log, monkeypatch):
    """Its bytes are those that were committed, so nothing has broken."""
    segment = sent(log, LARGE, LARGE)
    monkeypatch.setattr(pieces, "ParquetContent", refused)
    made = list(pieces_of(log.root, segment, targets(segment, (0, 0), (1, 0))))
    assert shape(made) == [(DecodedBatches, [(0, 2)]), (DecodedBatches, [(1, 1)])]


def refused(_):
    raise ValueError("a footer that readers of Parquet take")


def test_a_small_segment_is_not_searched_for_row_groups_to_copy(log, monkeypatch):
    """Compaction reads thousands of them."""
    segment, searched = sent(log, 10, 10), []
    monkeypatch.setattr(pieces, "ParquetContent", searched.append)
    assert {type(piece) for piece in pieces_of(log.root, segment, targets(segment, (0, 0), (1, 0)))} == {DecodedBatches}
    assert searched == []
