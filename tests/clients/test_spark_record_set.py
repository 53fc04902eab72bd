"""Large sends: the tasks of a DataFrame stage its records once, and each write of a partition has them in one order."""

import os
import threading
import time
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F

from lakelog.replication.clients import producer, spark_record_set
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.clients.spark_record_set import KEPT_BYTES, run_data_frame
from lakelog.replication.errors import (
    CorruptRecordException,
    IllegalStateException,
    InvalidRecordException,
    KafkaStorageException,
    RecordTooLargeException,
)
from lakelog.replication.protocol.append import AppendPosition
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import read_records
from tests.clients.world import World
from tests.storage.logs import P0, P1, TOPIC, new_log, request

COUNT = 5000
LARGE = KEPT_BYTES // 4 + 1  # records: each of three tasks has more bytes than it keeps


def numbers(spark, count=COUNT, tasks=5):
    """Rising values in several tasks and both partitions."""
    spread = spark.range(count, numPartitions=tasks)
    return spread.select(F.col("id").cast("string").alias("value"), (F.col("id") % 2).cast("int").alias("partition"))


def given_to(log, records, segment_bytes=4096, limit=None, roots=None, kept_bytes=0, **given):
    """The record set of a send of two partitions to a log. By default its tasks keep no records."""
    roots = roots or dict.fromkeys((0, 1), log.root)
    return run_data_frame(TOPIC, records, 2, 0, segment_bytes, roots, limit, kept_bytes, **given)


def writer(given, log):
    """The writer of both partitions."""
    return partial(given.write, log.root, 1, [request(p, given.counts[p.partition]) for p in (P0, P1)])


def headers_of(segments):
    """The headers of segments, by partition and offset."""
    return sorted((h for s in segments for h in s.headers), key=lambda h: (h.partition, h.base_offset))


def written(log, segments):
    """The written values by partition, in the order of offsets."""
    rows = pa.concat_tables(read_records(log.root, segment.name) for segment in segments).sort_by("offset")
    taken = {number: rows.filter(pa.compute.equal(rows["partition"], number)) for number in (0, 1)}
    return {number: part["value"].to_pylist() for number, part in taken.items()}


def staged(log):
    """The names of the staged files of a log."""
    return sorted(name for name in os.listdir(log.root.uri) if name.startswith("staged-"))


BEGIN = {P0: AppendPosition(0), P1: AppendPosition(0)}


@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20], ids=["many batches", "batches of small tasks as one"])
def test_ap_06_the_rest_of_a_send_follows_what_an_earlier_write_has_put_first(spark, root, segment_bytes):
    log = new_log(root, P0, P1)
    with given_to(log, numbers(spark), segment_bytes) as given:
        write = writer(given, log)
        whole = written(log, write(BEGIN))
        rest = write({P0: AppendPosition(900, 700), P1: AppendPosition(0, 2499)})
    assert whole == {number: [b"%d" % n for n in range(number, COUNT, 2)] for number in (0, 1)}
    assert written(log, rest) == {0: whole[0][700:], 1: whole[1][2499:]}
    headers = headers_of(rest)
    assert [(h.base_offset, h.base_sequence) for h in (headers[0], headers[-1])] == [(900, 700), (0, 2499)]
    assert sum(header.records for header in headers) == 1800 + 1


def test_ap_06_a_dataframe_that_gives_other_records_each_time_is_run_once(spark, root):
    log = new_log(root, P0, P1)
    rows = numbers(spark).withColumn("value", F.expr("uuid()"))
    with given_to(log, rows) as given:
        write = writer(given, log)
        first, second = (write(BEGIN) for _ in range(2))
    assert [h.digest for h in headers_of(first)] == [h.digest for h in headers_of(second)]
    assert len({value for values in written(log, first).values() for value in values}) == COUNT


@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_ap_06_records_that_are_sent_again_have_the_digests_of_their_batches(spark, root, segment_bytes):
    log = new_log(root, P0, P1)
    with given_to(log, numbers(spark), segment_bytes) as given:
        headers = [header for header in headers_of(writer(given, log)(BEGIN)) if header.partition == 1]
        parts = [range(header.base_offset, header.next_offset) for header in headers]
        assert given.digests(P1, parts) == [header.digest for header in headers]
    assert (len(parts) > 1) == (segment_bytes == 4096)


def test_small_batches_of_many_tasks_become_one_and_large_ones_stay(spark, root):
    """A log keeps the header of each batch in memory."""
    log = new_log(root, P0, P1)
    wide = numbers(spark, 24, 8).withColumn("value", F.expr("repeat(value, if(partition = 0, 200000, 1))"))
    with given_to(log, wide, 1 << 25) as given:
        headers = headers_of(writer(given, log)(BEGIN))
    assert [(h.partition, h.records) for h in headers] == [*[(0, 2), (0, 1)] * 4, (1, 12)]


def small_and_large(spark):
    """Rising values in tasks of 10, 10, 2000, 10, no, and 1000 records."""
    starts = [(0, 10), (10, 20), (20, 2020), (2020, 2030), (2030, 2030), (2030, 3030)]
    tasks = [spark.range(start, stop, numPartitions=1) for start, stop in starts]
    spread = reduce(lambda one, other: one.union(other), tasks)
    return spread.select(F.col("id").cast("string").alias("value"), (F.col("id") % 2).cast("int").alias("partition"))


def test_records_that_small_tasks_keep_are_staged_at_their_place_among_those_of_large_ones(spark, root):
    log = new_log(root, P0, P1)
    with given_to(log, small_and_large(spark), 1 << 20, kept_bytes=1000) as given:
        assert len(staged(log)) == 2 + 2  # by two tasks, and by the driver before and between them
        assert written(log, writer(given, log)(BEGIN)) == {n: [b"%d" % v for v in range(n, 3030, 2)] for n in (0, 1)}
    assert not staged(log)


def test_what_small_tasks_keep_at_several_places_is_staged_at_the_same_time(spark, root, monkeypatch):
    """A store takes long for each file, and a large task may follow each small one."""
    log, stage, both = new_log(root, P0, P1), spark_record_set.stage, threading.Barrier(2)

    def stage_together(*given):
        both.wait(60)
        return stage(*given)

    monkeypatch.setattr(spark_record_set, "stage", stage_together)  # in this process, and in none of the tasks
    with given_to(log, small_and_large(spark), 1 << 20, kept_bytes=1000) as given:
        assert given.counts == {0: 3030 // 2, 1: 3030 // 2}


@pytest.mark.parametrize("refused", ["3", "25", "2025"], ids=["kept", "staged", "kept later"])
def test_a_record_that_is_refused_among_small_and_large_tasks_leaves_nothing(spark, root, refused):
    log = new_log(root, P0, P1)
    rows = small_and_large(spark)
    rows = rows.withColumn("value", F.expr(f"if(value = '{refused}', repeat('x', 100), value)"))
    with pytest.raises(RecordTooLargeException, match="a record has 100 bytes"):
        given_to(log, rows, limit=RecordLimit(TOPIC, 50), kept_bytes=1000)
    assert not staged(log)


def test_small_tasks_keep_few_bytes_together(spark, root):
    """Spark refuses the results of a job that are larger than `spark.driver.maxResultSize`."""
    log, rows = new_log(root, P0, P1), numbers(spark, 600, 6)
    small = given_to(log, rows, kept_bytes=4000, all_kept_bytes=24_000)
    assert small["value"].to_pylist() == [str(n) for n in range(600)]
    with given_to(log, rows, 1 << 20, kept_bytes=4000, all_kept_bytes=4000) as given:
        assert len(staged(log)) == 1 + 3  # by the driver for three tasks, and by the others
        assert written(log, writer(given, log)(BEGIN)) == {n: [b"%d" % v for v in range(n, 600, 2)] for n in (0, 1)}
    assert not staged(log)


def test_a_task_that_fails_among_small_ones_fails_the_send(spark, root):
    log = new_log(root, P0, P1)
    rows = small_and_large(spark).where("value < 2020 OR value >= 3000")  # one large task
    rows = rows.withColumn("timestamp", F.expr("if(value = '2019', timestamp_seconds(300000000000), NULL)"))
    with pytest.raises(InvalidRecordException, match=r"column timestamp: .* 1 to 9999"):
        given_to(log, rows, kept_bytes=2000)
    assert not staged(log)


@pytest.mark.parametrize("error", [KafkaStorageException("no space"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_driver_that_cannot_stage_what_small_tasks_keep_leaves_nothing(spark, root, monkeypatch, error):
    log = new_log(root, P0, P1)

    def fail(*_):
        assert staged(log)
        raise error

    monkeypatch.setattr(spark_record_set, "stage", fail)  # in this process, and in none of the tasks
    with pytest.raises(type(error)):
        given_to(log, small_and_large(spark), kept_bytes=1000)
    assert not staged(log)


def test_the_chunks_of_a_task_keep_their_order(spark, root, change_settings):
    """Two of them are encoded at the same time. The first one is much larger."""
    log = new_log(root, P0)
    change_settings({"spark.sql.execution.arrow.maxRecordsPerBatch": "1"})
    sizes = "repeat(cast(id AS STRING), if(id < 2, 30000000, 17000000)) AS value"
    rows = spark.range(8, numPartitions=1).select(F.expr(sizes))
    with run_data_frame(TOPIC, rows, 1, 0, 1 << 30, {0: log.root}) as given:
        assert len(staged(log)) > 2
        segments = given.write(log.root, 1, [request(P0, 8)], {P0: AppendPosition(0)})
    values = written(log, segments)[0]
    assert [value[:1] for value in values] == [b"%d" % n for n in range(8)]


def test_a_task_that_fails_after_it_has_staged_records_leaves_nothing(spark, root, change_settings):
    """The first chunk of the only task is staged, and the second one has a wrong time."""
    log = new_log(root, P0)
    change_settings({"spark.sql.execution.arrow.maxRecordsPerBatch": "1"})
    rows = spark.range(3, numPartitions=1).select(
        F.expr("if(id < 2, repeat('x', 17000000), 'x') AS value"),
        F.expr("if(id < 2, NULL, timestamp_seconds(300000000000)) AS timestamp"),
    )
    with pytest.raises(InvalidRecordException, match=r"column timestamp: .* 1 to 9999"):
        run_data_frame(TOPIC, rows, 1, 0, 1 << 30, {0: log.root})
    assert not staged(log)


def no_roots():
    raise KafkaStorageException("no log can be opened")


def test_only_a_large_dataframe_needs_a_log_that_can_be_opened(spark):
    assert record_set(TOPIC, numbers(spark, 10, 1), 2, 1 << 20, None, no_roots).counts == {0: 5, 1: 5}
    with pytest.raises(KafkaStorageException, match=r"^no log can be opened$"):
        record_set(TOPIC, numbers(spark, LARGE, 3), 2, 1 << 20, None, no_roots)


@pytest.mark.parametrize("count", [0, 100, LARGE], ids=["empty", "small", "large"])
def test_a_dataframe_of_any_size_is_run_once(spark, root, count):
    world, runs = World(root), f"{root}/runs"

    def note(batches):
        with open(runs, "a") as file:
            file.write("run\n")
        if count:
            yield from batches

    rows = numbers(spark, max(count, 1), 1).mapInArrow(note, "value string, partition int")
    with Producer(world.uri, acks=1) as sender:
        answers = sender.send(TOPIC, rows)
    assert sum(answer.records for answer in answers.values()) == count
    assert Path(runs).read_text() == "run\n"


def damage(log, name):
    """Changes bytes of a staged file, in the batches of both partitions."""
    path = Path(log.root.path(name))
    content = bytearray(path.read_bytes())
    for place in (len(content) // 4, 3 * len(content) // 4):
        content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (damage, "does not have the bytes that were staged"),
        (lambda log, name: os.remove(log.root.path(name)), "is gone, and a send needs it"),
        (lambda log, name: os.truncate(log.root.path(name), 100), "does not have the bytes that were staged"),
    ],
    ids=["damaged", "gone", "torn"],
)
def test_staged_records_that_are_harmed_are_never_written(spark, root, harm, text):
    log = new_log(root, P0, P1)
    with given_to(log, numbers(spark, tasks=1), 1 << 20) as given:
        (name,) = staged(log)
        harm(log, name)
        with pytest.raises(CorruptRecordException, match=f"{name}: {text}"):
            writer(given, log)(BEGIN)
        with pytest.raises(CorruptRecordException, match=f"{name}: {text}"):
            given.digests(P1, [range(2)])


def test_records_are_staged_at_another_log_while_one_cannot_be_written(spark, root):
    log = new_log(root, P0, P1)
    away = StorageRoot.of(f"{root}-away/log")
    with given_to(log, numbers(spark), roots={0: away, 1: log.root}) as given:
        assert sum(map(len, written(log, writer(given, log)(BEGIN)).values())) == COUNT
    assert not staged(log)
    with pytest.raises(KafkaStorageException, match=r"-away/log/staged-.*: cannot be written"):
        given_to(log, numbers(spark), roots=dict.fromkeys((0, 1), away))


TOO_LONG = "if(value = '4999', repeat('x', 100), value)"
BAD_TIME = "if(value = '4999', timestamp_seconds(300000000000), timestamp_seconds(0))"


@pytest.mark.parametrize(
    ("column", "value", "error", "text"),
    [
        ("value", TOO_LONG, RecordTooLargeException, r"^flights-1: a record has 100 bytes"),
        ("timestamp", BAD_TIME, InvalidRecordException, r"column timestamp: .* 1 to 9999"),
    ],
    ids=["the driver refuses one", "a task refuses one"],
)
def test_a_record_that_is_refused_leaves_nothing_and_no_stack_trace(spark, root, column, value, error, text):
    log = new_log(root, P0, P1)
    with pytest.raises(error, match=text) as raised:
        given_to(log, numbers(spark).withColumn(column, F.expr(value)), limit=RecordLimit(TOPIC, 50))
    assert "Traceback" not in str(raised.value)
    assert not staged(log)


@pytest.mark.parametrize(
    "error", [ArithmeticException("division by zero"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_a_job_that_ends_after_tasks_have_staged_records_leaves_nothing(spark, root, monkeypatch, error):
    """The last task meets an error of the DataFrame itself, or the caller is interrupted."""
    log, run = new_log(root, P0, P1), spark_record_set._run
    kept = given_to(log, numbers(spark, 10, 1))

    def run_and_fail(frame, job):
        run(frame, job)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(spark_record_set, "_run", run_and_fail)
        with pytest.raises(type(error)):
            given_to(log, numbers(spark))
    assert len(staged(log)) == 1  # that of another send
    with kept:
        assert sum(map(len, written(log, writer(kept, log)(BEGIN)).values())) == 10


def test_a_task_that_stages_records_after_its_job_has_failed_leaves_nothing(spark, root, monkeypatch):
    """Its Python worker takes the end of its input for the end of the records."""
    log, later, jobs = new_log(root, P0, P1), [], []
    kept = given_to(log, numbers(spark, 10, 1))

    def fail(_, job):
        jobs.append(job)
        raise ArithmeticException("division by zero")

    class Later:
        """A timer that waits for the test."""

        def __init__(self, _, call, given):
            later.append(partial(call, *given))

        def start(self):
            """Waits."""

    with monkeypatch.context() as patch:
        patch.setattr(spark_record_set, "_run", fail)
        patch.setattr(threading, "Timer", Later)
        with pytest.raises(ArithmeticException):
            given_to(log, numbers(spark))
    jobs[0](iter([pa.record_batch({"value": ["a"]})]))
    assert len(staged(log)) == 2
    for each in later:
        each()
    assert len(staged(log)) == 1  # that of another send
    kept.__exit__()


def test_a_partition_that_the_topic_has_no_more_is_staged_anywhere(spark, root):
    """The topic was made again with fewer partitions while the DataFrame ran; the send then refuses the partition."""
    log = new_log(root, P0, P1)
    with given_to(log, numbers(spark), roots={0: log.root}) as given:
        assert given.counts == {0: COUNT // 2, 1: COUNT // 2}


def test_staged_files_of_a_send_that_was_killed_go_a_day_later(spark, root):
    log = new_log(root, P0, P1)
    times = iter((0.0, 1000.0, 80_000.0, 87_500.0))
    cleaner = FileCleaner(log.root, 60.0, lambda: next(times))
    given_to(log, numbers(spark))  # and nobody ends it
    for is_left in (True, True, False):
        cleaner.clean(set)
        assert bool(staged(log)) == is_left


def all_staged(root):
    """The staged files in all folders of a cluster."""
    return [name for _, _, names in os.walk(root) for name in names if name.startswith("staged-")]


def test_a_large_send_leaves_its_records_and_no_staged_file(spark, root):
    world = World(root)
    with Producer(world.uri, acks=1) as producer:
        answers = producer.send(TOPIC, numbers(spark, LARGE, 3))
        raise_first_error(answers)
    assert sum(answer.records for answer in answers.values()) == LARGE
    assert [world.logs[1].read(p, 0)["value"].to_pylist() for p in (P0, P1)] == [
        [b"%d" % n for n in range(number, LARGE, 2)] for number in (0, 1)
    ]
    assert not all_staged(root)


def test_a_large_send_that_is_refused_leaves_no_staged_file(spark, root):
    world = World(root)
    producer = Producer(world.uri, acks=1)
    producer.close()
    with pytest.raises(IllegalStateException, match="closed"):
        producer.send(TOPIC, numbers(spark, LARGE, 3))
    assert not all_staged(root)


def test_the_time_that_spark_takes_for_a_dataframe_is_not_that_of_the_send(root, monkeypatch):
    world, now, passed = World(root), time.monotonic, [0.0]

    def run_for_long(*given):
        passed[0] += 100
        return record_set(*given)

    monkeypatch.setattr(producer, "record_set", run_for_long)
    monkeypatch.setattr(time, "monotonic", lambda: now() + passed[0])
    with Producer(world.uri, acks=1) as sender:
        raise_first_error(sender.send_async(TOPIC, ["a"], timeout_ms=30_000).result())
