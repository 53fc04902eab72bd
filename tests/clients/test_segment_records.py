"""Committed records of several logs by few scans of Spark: each record once, whichever logs have copies of it."""

import pytest

from lakelog.replication.clients import reader
from lakelog.replication.clients.reader import LogRead, committed_segments
from tests.odd_names import NO_PATTERN
from tests.storage.logs import P0, P1, P2, fill, filled_log, new_log

WHOLE_0 = [(0, offset) for offset in range(12)]
WHOLE_1 = [(1, offset) for offset in range(5)]
BOTH = {P0: (5, 7), P1: (0, 2)}  # parts of both partitions, which one file has


@pytest.fixture
def apart(tmp_path):
    """Two logs of one partition each: P0 has 0-3 | 4-11, P1 has 0-4."""
    logs = new_log(str(tmp_path / "one"), P0), new_log(str(tmp_path / "other"), P1)
    fill(logs[0], P0, 4, 8)
    fill(logs[1], P1, 5)
    return logs


@pytest.fixture
def mixed(tmp_path):
    """Two brokers' logs that have the same records of both partitions, P0 4-7 and P1 0-4 in one file."""
    return filled_log(str(tmp_path / "one")), filled_log(str(tmp_path / "other"))


@pytest.fixture
def reserved_words(spark):
    """Spark parses no name that SQL reserves, such as `offset`."""
    spark.conf.set("spark.sql.ansi.enforceReservedKeywords", True)
    yield
    spark.conf.unset("spark.sql.ansi.enforceReservedKeywords")


def read(spark, logs, *bounds):
    """The partitions and offsets read, in order, and the number of scans."""
    reads = [LogRead(log.root, log.refresh(), each) for log, each in zip(logs, bounds, strict=True)]
    frame = committed_segments(spark, reads)
    rows = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    return rows, frame._jdf.queryExecution().optimizedPlan().toString().count("Relation [")


@pytest.mark.parametrize(
    ("bounds", "expected", "scans"),
    [
        (({P0: (0, 12)}, {P1: (0, 5)}), WHOLE_0 + WHOLE_1, 1),
        (({P0: (9, 12)}, {P1: (3, 5)}), WHOLE_0[9:] + WHOLE_1[3:], 1),
        (({P0: (2, 12)}, {P1: (0, 5)}), WHOLE_0[2:] + WHOLE_1, 2),
        (({P0: (2, 6)}, {P1: (0, 0)}), WHOLE_0[2:6], 1),
        (({P0: (5, 5)}, {}), [], 0),
    ],
    ids=["all", "the tails", "some as a whole", "only of one", "none"],
)
def test_fe_01_logs_that_share_no_partition_are_one_scan(spark, apart, bounds, expected, scans):
    assert read(spark, apart, *bounds) == (expected, scans)


@pytest.mark.parametrize(
    ("bounds", "expected", "scans"),
    [
        (({P0: (5, 12)}, {P1: (1, 3)}), WHOLE_0[5:] + WHOLE_1[1:3], 3),
        (({P0: (0, 12)}, {P1: (0, 5)}), WHOLE_0 + WHOLE_1, 3),
        (({P0: (1, 3)}, {P1: (0, 2)}), WHOLE_0[1:3] + WHOLE_1[:2], 2),
        (({P0: (5, 7), P1: (0, 2)}, {}), WHOLE_0[5:7] + WHOLE_1[:2], 1),
        (({P0: (1, 3)}, {P0: (9, 11)}), WHOLE_0[1:3] + WHOLE_0[9:11], 2),
    ],
    ids=[
        "parts of a shared file",
        "a file that is shared",
        "a file that has both partitions",
        "one log",
        "a partition of both logs",
    ],
)
def test_fe_01_a_record_that_another_log_has_too_is_read_once(spark, mixed, bounds, expected, scans):
    """The file that has both partitions is wanted from each log for one of them only."""
    assert read(spark, mixed, *bounds) == (expected, scans)


@pytest.mark.parametrize("few", [0, 50], ids=["the bounds are joined", "the bounds are a condition"])
@pytest.mark.usefixtures("reserved_words")
def test_fe_01_columns_may_have_the_names_of_reserved_words(spark, apart, monkeypatch, few):
    monkeypatch.setattr(reader, "_FEW", few)
    bounds = {P0: (9, 12)}, {P1: (3, 5)}
    assert read(spark, apart, *bounds)[0] == WHOLE_0[9:] + WHOLE_1[3:]


def test_fe_01_many_partitions_of_two_logs_keep_their_own_scans(spark, apart, monkeypatch):
    monkeypatch.setattr(reader, "_FEW", 1)
    assert read(spark, apart, {P0: (9, 12)}, {P1: (3, 5)}) == (WHOLE_0[9:] + WHOLE_1[3:], 2)


def test_fe_01_many_partitions_are_joined_instead_of_one_condition(spark, mixed, monkeypatch):
    """Spark would plan for long."""
    monkeypatch.setattr(reader, "_FEW", 1)
    monkeypatch.setattr(reader, "reduce", lambda *_: pytest.fail("a condition on each partition"))
    log = mixed[0]
    frame = reader._scans(spark, [reader._LocalRead.of(LogRead(log.root, log.refresh(), BOTH))])[0]
    rows = sorted((row.partition, row.offset) for row in frame.collect())
    assert rows == WHOLE_0[5:7] + WHOLE_1[:2]


def test_fe_01_segments_beyond_the_limit_of_paths_go_to_another_scan(spark, apart, monkeypatch):
    """Spark lists many paths by a job."""
    monkeypatch.setattr(reader, "_PATHS", 1)
    assert read(spark, apart, {P0: (0, 12)}, {P1: (3, 5)}) == (WHOLE_0 + WHOLE_1[3:], 3)


def test_fe_01_a_file_of_many_partitions_is_compared_with_the_bounds_once(mixed, monkeypatch):
    """Else the time to plan grows with the square of the partitions."""
    polled, log = [], mixed[0]
    real = reader._is_within
    monkeypatch.setattr(reader, "_is_within", lambda *given: polled.append(given[0].name) or real(*given))
    reader._LocalRead.of(LogRead(log.root, log.refresh(), BOTH))
    assert len(polled) == len(set(polled)) > 0


@pytest.mark.parametrize("name", [NO_PATTERN, "un{closed [!x", "key=value"])
def test_fe_01_a_folder_that_others_read_as_a_pattern_or_an_escape_has_each_record_once(spark, tmp_path, name):
    """Spark takes such a path for a pattern, which folders beside it match."""
    decoy = new_log(str(tmp_path / "a c d f"), P0)
    fill(decoy, P0, 3)
    log = filled_log(str(tmp_path / name))
    assert read(spark, [log], BOTH)[0] == WHOLE_0[5:7] + WHOLE_1[:2]
    assert read(spark, [log], {P0: (0, 12), P1: (0, 5)})[0] == WHOLE_0 + WHOLE_1


def test_fe_01_bounds_without_records_read_nothing(spark, apart):
    assert read(spark, apart, {P2: (0, 0)}, {P2: (0, 0)}) == ([], 0)
