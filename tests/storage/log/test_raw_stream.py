"""A plain Delta stream of Spark over a broker's log continues, whatever the broker does to its files."""

from pathlib import Path

import pytest

from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.truncate import truncate_logs
from tests.storage.logs import P0, P1, P2, fill, follow, lead, new_log, request, send


@pytest.fixture
def log(root):
    return new_log(root, P0, P1, P2)


@pytest.fixture
def read(spark, log, root):
    """What a stream brings since it was last asked: the rows by partition and offset, each time in order."""

    def read(**options):
        folder, seen = Path(root, "-".join(options)), []
        stream = spark.readStream.format("delta").options(**options).load(log.root.spark_uri)
        writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder))
        query = writer.foreachBatch(lambda frame, _: seen.extend(frame.select("partition", "offset").collect())).start()
        assert query.awaitTermination(120), "availableNow must end"
        return sorted((row.partition, row.offset) for row in seen)

    return read


def delete_beginnings(log):
    """A segment goes, another is written again without what is dead of it, and producers are remembered."""
    raise_log_starts(log, {P0: lambda _: 6, P1: lambda _: 1}, "test", "test")
    assert delete_old_segments(log, 0, "test") is not None
    kinds = {name.split("-")[0] for name in log.refresh().segments}
    assert "producers" in kinds


def truncate_an_end(log):
    """Part of a segment is written again: P2's records stay."""
    follow(log, P1, epoch=1)
    assert truncate_logs(log, {P1: Truncation(1, 0)}, "test") is not None
    lead(log, P1, epoch=2)


def merge(log):
    assert compact(log, 1 << 20, 2, 1 << 20, "test")


@pytest.mark.parametrize(
    "options", [{"ignoreDeletes": "true"}, {"skipChangeCommits": "true"}], ids=lambda o: next(iter(o))
)
def test_dr_01_a_plain_stream_goes_on_over_deletions_truncations_and_compactions(log, read, options):
    send(log, request(P0, 3), request(P2, 2))
    send(log, request(P0, 3, 3), request(P1, 2))
    assert read(**options) == [(0, n) for n in range(6)] + [(1, 0), (1, 1), (2, 0), (2, 1)]
    send(log, request(P0, 2, 6), request(P2, 1, 2))
    delete_beginnings(log)
    fill(log, P0, 1)
    assert read(**options) == [(0, 6), (0, 7), (0, 8), (2, 2)]
    send(log, request(P1, 2, 2), request(P2, 1, 3))
    truncate_an_end(log)
    fill(log, P1, 1, epoch=2)
    fill(log, P2, *[1] * 6)
    merge(log)
    fill(log, P2, 1)
    assert read(**options) == [(1, 1), (1, 2), (1, 3)] + [(2, n) for n in range(3, 11)]
