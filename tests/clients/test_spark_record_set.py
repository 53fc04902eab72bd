"""Large sends: each write of a partition gives its records the same order, whichever tasks write them."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from lakelog.replication.clients.spark_record_set import SparkRecordSet
from lakelog.replication.errors import InvalidRecordException
from lakelog.replication.protocol.append import AppendPosition
from lakelog.replication.storage.log.segment import read_records
from tests.storage.logs import P0, P1, TOPIC, new_log, request

COUNT = 5000


def numbers(spark, count=COUNT):
    """Rising values in several tasks and both partitions."""
    spread = spark.range(count, numPartitions=5)
    return spread.select(F.col("id").cast("string").alias("value"), (F.col("id") % 2).cast("int").alias("partition"))


def written(log, segments):
    """The written values by partition, in the order of offsets."""
    rows = pa.concat_tables(read_records(log.root, segment.name) for segment in segments).sort_by("offset")
    taken = {number: rows.filter(pa.compute.equal(rows["partition"], number)) for number in (0, 1)}
    return {number: [int(value) for value in part["value"].to_pylist()] for number, part in taken.items()}


def test_ap_06_the_rest_of_a_send_follows_what_an_earlier_write_has_put_first(spark, root):
    log = new_log(root, P0, P1)
    with SparkRecordSet(TOPIC, numbers(spark), 2, 0, 4096) as given:
        requests = [request(p, given.counts[p.partition]) for p in (P0, P1)]
        write = given.writer(log.root, 1, requests)
        whole = written(log, write({P0: AppendPosition(0), P1: AppendPosition(0)}))
        given._records = given._records.orderBy(
            F.desc("place")
        ).localCheckpoint()  # the tasks get them in another order
        rest = write({P0: AppendPosition(900, 700), P1: AppendPosition(0, 2499)})
    assert [sorted(values) for values in whole.values()] == [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]
    assert written(log, rest) == {0: whole[0][700:], 1: whole[1][2499:]}
    headers = sorted((h.partition, h.base_offset, h.base_sequence, h.records) for s in rest for h in s.headers)
    assert (headers[0][:3], headers[-1]) == ((0, 900, 700), (1, 0, 2499, 1))
    assert sum(header[3] for header in headers) == 1800 + 1


def test_ap_06_records_of_another_run_are_refused_once_a_part_was_written(spark, root):
    """Spark runs the DataFrame again if it has lost persisted records, and may give them another order."""
    log = new_log(root, P0, P1)
    with SparkRecordSet(TOPIC, numbers(spark), 2, 0, 4096) as given:
        write = given.writer(log.root, 1, [request(p, given.counts[p.partition]) for p in (P0, P1)])
        given._records.unpersist(blocking=True)
        write({P0: AppendPosition(0)})
        with pytest.raises(InvalidRecordException, match=f"{TOPIC}-0: records changed .* run the DataFrame again"):
            write({P0: AppendPosition(0)})


def test_ap_06_records_that_are_sent_again_have_the_digests_of_their_batches(spark, root):
    log = new_log(root, P0, P1)
    with SparkRecordSet(TOPIC, numbers(spark), 2, 0, 4096) as given:
        requests = [request(p, given.counts[p.partition]) for p in (P0, P1)]
        segments = given.writer(log.root, 1, requests)({P0: AppendPosition(0), P1: AppendPosition(0)})
        headers = sorted((h for s in segments for h in s.headers if h.partition == 1), key=lambda h: h.base_offset)
        parts = [range(header.base_offset, header.next_offset) for header in headers]
        assert len(parts) > 1
        assert given.digests(P1, parts) == [header.digest for header in headers]
        given._records.unpersist(blocking=True)
        with pytest.raises(InvalidRecordException, match="run the DataFrame again"):
            given.digests(P1, parts)


def test_a_send_whose_tasks_read_fewer_records_than_were_counted_is_refused(spark, root):
    log = new_log(root, P0, P1)
    with SparkRecordSet(TOPIC, numbers(spark), 2, 0, 4096) as given:
        requests = [request(p, given.counts[p.partition]) for p in (P0, P1)]
        given.counts = {**given.counts, 1: given.counts[1] + 1}
        with pytest.raises(InvalidRecordException, match=f"{TOPIC}-1: .* 2501 were counted, 2500 reached the writer"):
            given.writer(log.root, 1, requests)({P0: AppendPosition(0), P1: AppendPosition(0)})
