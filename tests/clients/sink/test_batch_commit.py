"""A batch is written exactly once, wherever its driver dies, and whatever other tasks make of it the next time."""

import io
import itertools
import json
import os
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from lakelog.replication.clients.record_set import record_set
from lakelog.replication.clients.sink import routed_records
from lakelog.replication.clients.sink.batch_commit import commit_batch, groups_of
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.clients.sink.sink_stage import Part, SinkStage, Staged, free_unused_stages
from lakelog.replication.clients.sink.staged_records import staged_records
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidPartitionsException,
    KafkaStorageException,
    ProducerFencedException,
)
from lakelog.replication.protocol.producer_state import check_sequence, record
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.storage.logs import NOON, header

MANY = 40_000  # records of a part that is an object of its own


@pytest.fixture(
    params=[0, 50, 1 << 62], ids=["encoded by tasks", "some by tasks", "encoded by the driver"], autouse=True
)
def large_bytes(request, monkeypatch):
    """A partition of this size is encoded by its task; 50 bytes are two records of a letter."""
    monkeypatch.setattr(routed_records, "LARGE_BYTES", request.param)
    return request.param


class Crash(Exception):
    """The driver is dead."""


class Logs:
    """The partitions that a query writes to: values in order, and what a log remembers of the query's producer."""

    def __init__(self):
        self.values, self.entries = {}, {}

    def append(self, place, producer_id, values, sequence):
        producer = place, producer_id
        known = check_sequence(self.entries.get(producer), producer_id, 0, sequence, len(values))
        new = values[known.records :] if known else values
        if new:
            kept = self.values.setdefault(place, [])
            base = len(kept)
            first = sequence + len(values) - len(new)
            head = header(base=base, last=base + len(new) - 1)
            entry = replace(head, producer_id=producer_id, producer_epoch=0, base_sequence=first)
            self.entries[producer] = record(self.entries.get(producer), entry)
            kept += new


class Driver:
    """One run of a query's driver. It dies at its `dies_at`-th write, before it or after it."""

    def __init__(self, root, logs, dies_at=None, after=False):
        self.stage, self.logs = SinkStage(StorageRoot.of(str(root))), logs
        self._writes, self._dies_at, self._after = itertools.count(), dies_at, after
        for name in ("put_batch", "put_done", "clean"):
            setattr(self.stage, name, self._write(getattr(self.stage, name)))

    def _write(self, call):
        def write(*given):
            dies = next(self._writes) == self._dies_at
            if dies and not self._after:
                raise Crash
            done = call(*given)
            if dies:
                raise Crash
            return done

        return write

    def send(self, producer_id, parts, sequences):
        for topic, records in staged_records(self.stage, parts):
            for partition, given in sorted(records.by_partition.items()):
                values = [value for each in given for value in each.table["value"].to_pylist()]
                self._write(self.logs.append)((topic, partition), producer_id, values, sequences[topic][partition])

    def commit(self, batch_id, *tasks):
        """Each task has the values of each partition of topic `t`."""
        parts = [part for task in tasks for part in self.stage.put_parts(batch_id, routed(task))]
        commit_batch(self.stage, batch_id, parts, self.send)
        return next(self._writes)


def routed(task):
    rows = [
        {"topic": "t", "partition": partition, "key": None, "value": value, "timestamp": NOON, "headers": None}
        for partition, values in task.items()
        for value in values
    ]
    return pa.Table.from_pylist(rows, ROUTED)


def letters(text):
    return [letter.encode() for letter in text]


def test_batches_follow_one_another_and_each_is_there_once(tmp_path):
    logs = Logs()
    driver = Driver(tmp_path, logs)
    driver.commit(0, {0: letters("ab")}, {0: letters("c"), 1: letters("x")})
    driver.commit(1, {1: letters("y"), 2: letters("z")})
    driver.commit(1, {0: letters("twice")})
    Driver(tmp_path, logs).commit(0, {0: letters("late")})
    driver.commit(2)
    driver.commit(3, {0: letters("d")})
    assert logs.values == {("t", 0): letters("abcd"), ("t", 1): letters("xy"), ("t", 2): letters("z")}


BATCH = {0: letters("abc"), 1: letters("de")}, {1: letters("f"), 2: letters("g")}
OTHER_WAY = {0: letters("dg")}, {1: letters("cba")}, {2: letters("fe")}


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
def test_a_driver_that_dies_at_any_write_loses_nothing_and_doubles_nothing(tmp_path, after):
    """The next run has the same records in other tasks and for other partitions, and dies too; the third ends it."""
    whole = Driver(tmp_path / "whole", Logs()).commit(0, *BATCH)
    assert whole == 6, "stage, three partitions, done, clean"
    for dies_at, dies_again in itertools.product(range(whole), range(whole)):
        folder, logs = tmp_path / f"{dies_at}-{dies_again}", Logs()
        with pytest.raises(Crash):
            Driver(folder, logs, dies_at, after).commit(0, *BATCH)
        try:
            Driver(folder, logs, dies_again, after).commit(0, *OTHER_WAY)
        except Crash:
            Driver(folder, logs).commit(0, *BATCH)
        written = sorted(value for values in logs.values.values() for value in values)
        assert written == letters("abcdefg"), (dies_at, dies_again)
        Driver(folder, logs).commit(1, {0: letters("h")})
        assert logs.values["t", 0][-1:] == letters("h")


def test_a_batch_that_was_staged_and_not_finished_comes_before_a_later_one(tmp_path):
    logs = Logs()
    with pytest.raises(Crash):
        Driver(tmp_path, logs, dies_at=1).commit(7, {0: letters("a")})
    Driver(tmp_path, logs).commit(8, {0: letters("b")})
    assert logs.values == {("t", 0): letters("ab")}


def test_a_batch_without_records_stages_nothing(tmp_path):
    driver = Driver(tmp_path, Logs())
    driver.commit(0)
    assert driver.stage.look() == Staged()


def age(folder, seconds):
    for file in folder.iterdir():
        os.utime(file, (file.stat().st_mtime - seconds,) * 2)


def test_what_dead_queries_have_left_is_freed(tmp_path):
    """A query that comes back after that goes on: it writes its last batch not again, and the next one once."""
    logs = Logs()
    for name in ("finished", "young", "own"):
        Driver(tmp_path / name, logs).commit(0, {0: letters("a")})
    with pytest.raises(Crash):
        Driver(tmp_path / "unfinished", logs, dies_at=2).commit(0, {0: letters("b"), 1: letters("b")})
    SinkStage(StorageRoot.of(str(tmp_path / "write-1"))).put_parts(0, routed({0: letters("x")}))
    (tmp_path / "write-1").mkdir(exist_ok=True)
    (tmp_path / "write-1" / "part-0-1.arrow").write_bytes(b"x")
    (tmp_path / "finished" / "part-1-1.arrow").write_bytes(b"of a task that died")
    (tmp_path / "not-ours").mkdir()
    (tmp_path / "not-ours" / "file").write_bytes(b"x")
    before = sorted(file.name for file in (tmp_path / "unfinished").iterdir())
    for name in ("finished", "unfinished", "write-1", "not-ours"):
        age(tmp_path / name, 100)
    free_unused_stages(StorageRoot.of(str(tmp_path)), "own", 99)
    left = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in tmp_path.iterdir()}
    assert left == {
        "finished": ["done-0"], "unfinished": before, "not-ours": ["file"],
        "young": ["batch-0.arrow", "done-0"], "own": ["batch-0.arrow", "done-0"],
    }  # fmt: skip
    written = dict(logs.values)
    again = Driver(tmp_path / "finished", logs)
    again.commit(0, {0: letters("a")})
    assert logs.values == written
    again.commit(1, {0: letters("c")})
    assert logs.values["t", 0][-1:] == letters("c")


def test_an_older_version_refuses_batches_that_tasks_have_encoded_and_a_newer_one_finishes_them(tmp_path, large_bytes):
    """It knows a part by name, size, counts and content, and reads it as Arrow's format before it sends any record."""
    logs = Logs()
    with pytest.raises(Crash):
        Driver(tmp_path, logs, dies_at=1).commit(0, {0: letters("abc")})
    content = (tmp_path / "batch-0.arrow").read_bytes()
    start = len(b"lakelog.staged_batch.v1") + 8
    head = json.loads(content[start : start + int.from_bytes(content[start - 8 : start], "big")])
    assert {"name", "size", "counts", "content"} <= head["parts"][0].keys()
    inline = content[-head["parts"][0]["content"] :]
    if large_bytes < 100:
        with pytest.raises(pa.ArrowInvalid):
            pa.ipc.open_stream(inline)
    else:
        assert pa.ipc.open_stream(inline).read_all()["value"].to_pylist() == letters("abc")
    Driver(tmp_path, logs).commit(0, {0: letters("abc")})
    assert logs.values == {("t", 0): letters("abc")}


def test_a_driver_that_another_has_overtaken_is_fenced(tmp_path):
    logs = Logs()
    late, ahead = Driver(tmp_path, logs), Driver(tmp_path, logs)
    looked = late.stage.look()
    late.stage.look = lambda: looked
    with pytest.raises(Crash):
        Driver(tmp_path, logs, dies_at=1).commit(5, {0: letters("a")})
    with pytest.raises(ProducerFencedException, match=r"batch 4 comes after batch 5: another driver"):
        ahead.commit(4, {0: letters("b")})
    late.commit(5, {0: letters("b")})
    assert logs.values == {("t", 0): letters("a")}, "the batch that was staged first counts"


def test_a_batch_that_another_driver_has_finished_and_removed_meanwhile_is_not_sent_again(tmp_path):
    logs = Logs()
    late, ahead = Driver(tmp_path, logs), Driver(tmp_path, logs)
    ahead.commit(0, {0: letters("a")})
    put_batch = late.stage.put_batch

    def overtaken(batch):
        for batch_id in (1, 2, 3):
            ahead.commit(batch_id, {0: letters(str(batch_id))})
        return put_batch(batch)

    late.stage.put_batch = overtaken
    late.commit(1, {0: letters("x"), 1: letters("y")})
    assert logs.values == {("t", 0): letters("a123")}
    assert late.stage.look().done == 3


def test_a_late_clean_up_removes_no_part_of_a_later_batch(tmp_path):
    logs, driver = Logs(), None
    driver = Driver(tmp_path, logs)
    driver.commit(0, {0: letters("a")})
    values = [Random(number).randbytes(20) for number in range(MANY)]
    (part,) = driver.stage.put_parts(1, routed({0: values}))
    assert not part.content, "it is an object"
    Driver(tmp_path, logs).commit(0, {0: letters("a")})
    commit_batch(driver.stage, 1, [part], driver.send)
    assert driver.logs.values == {("t", 0): [b"a", *values]}
    with pytest.raises(CorruptRecordException, match=f"{part.name}: is gone"):
        list(staged_records(driver.stage, [part]))
    assert driver.stage.look() == Staged(batches=(1,), finished=(1,))


def test_parts_of_any_kind_keep_their_order(tmp_path):
    logs, tasks = Logs(), ["abc", "d", "e", "fgh", "i", "jkl"]
    Driver(tmp_path, logs).commit(0, *({0: letters(each)} for each in tasks))
    assert logs.values == {("t", 0): letters("abcdefghijkl")}


def test_neighbouring_small_parts_are_one_batch(tmp_path, large_bytes):
    driver = Driver(tmp_path, Logs())
    parts = [part for each in ("a", "b", "cde", "f") for part in driver.stage.put_parts(0, routed({0: letters(each)}))]
    ((_, records),) = staged_records(driver.stage, parts)
    expected = {0: [1, 1, 3, 1], 50: [2, 3, 1], 1 << 62: [6]}[large_bytes]
    assert [each.num_rows for each in records.by_partition[0]] == expected


def test_a_part_with_other_bytes_is_named(tmp_path):
    stage, root = SinkStage(StorageRoot.of(str(tmp_path))), StorageRoot.of(str(tmp_path))
    (part,) = stage.put_parts(1, routed({0: [Random(number).randbytes(20) for number in range(MANY)]}))
    root.write(part.name, root.read(part.name)[:-1] + b"x")
    with pytest.raises(CorruptRecordException, match=f"{part.name}: does not have the bytes that were staged"):
        list(staged_records(stage, [part]))
    with pytest.raises(CorruptRecordException, match=f"{part.name}: "):
        list(staged_records(stage, [replace(part, content=b"torn", digest="")]))


def test_a_batch_that_an_earlier_version_has_staged_is_finished(tmp_path):
    """Its parts have neither batches nor a digest."""
    logs, records = Logs(), routed({0: letters("ab")})
    content = io.BytesIO()
    with pa.ipc.new_stream(content, records.schema) as stream:
        stream.write_table(records)
    part = {"name": "part-0-1.arrow", "size": 1, "counts": {"t": {0: 2}}, "content": len(content.getvalue())}
    described = {"batch_id": 0, "producer_id": 7, "parts": [part], "bases": {"t": {0: 0}}, "following": {"t": {0: 2}}}
    head = json.dumps(described).encode()
    staged = b"lakelog.staged_batch.v1" + len(head).to_bytes(8, "big") + head + content.getvalue()
    StorageRoot.of(str(tmp_path)).write("batch-0.arrow", staged)
    Driver(tmp_path, logs).commit(0, {1: letters("other")})
    assert logs.values == {("t", 0): letters("ab")}


def test_an_answer_that_was_lost_stages_a_batch_all_the_same(tmp_path):
    logs = Logs()
    driver = Driver(tmp_path, logs)
    put_batch = driver.stage.put_batch

    def lost(batch):
        put_batch(batch)
        raise KafkaStorageException("no answer")

    driver.stage.put_batch = lost
    with pytest.raises(KafkaStorageException):
        driver.commit(0, {0: letters("ab")})
    Driver(tmp_path, logs).commit(0, {1: letters("ab")})
    assert logs.values == {("t", 0): letters("ab")}


def test_sequences_go_on_where_the_last_batch_of_a_partition_ended(tmp_path):
    logs = Logs()
    Driver(tmp_path, logs).commit(0, {0: letters("ab"), 1: letters("c")})
    Driver(tmp_path, logs).commit(1, {1: letters("d")})
    Driver(tmp_path, logs).commit(2, {0: letters("e")})
    batch = SinkStage(StorageRoot.of(str(tmp_path))).read_batch(2)
    assert (batch.bases, batch.following) == ({"t": {0: 2}}, {"t": {0: 3, 1: 2}})


def test_the_name_of_a_batch_is_durable_before_the_first_append(tmp_path, monkeypatch):
    """With `storage.fsync`: after a power cut another batch would take the same sequences."""
    driver, happened = Driver(tmp_path, Logs()), []
    monkeypatch.setattr(StorageRoot, "sync_folder", lambda *_: happened.append("synced"))
    monkeypatch.setattr(driver.logs, "append", lambda *_: happened.append("appended"))
    driver.commit(0, {0: letters("a")})
    assert happened[:2] == ["synced", "appended"]


def test_a_query_whose_stage_was_removed_writes_on(tmp_path):
    logs = Logs()
    Driver(tmp_path, logs).commit(0, {0: letters("ab")})
    Driver(tmp_path, logs).stage.delete()
    Driver(tmp_path, logs).commit(1, {0: letters("cd")})
    assert logs.values == {("t", 0): letters("abcd")}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([1, 2, 3], [[1, 2, 3]]), ([200, 1], [[200], [1]]), ([100, 100, 100], [[100, 100], [100]])],
)
def test_a_batch_is_sent_in_groups(sizes, expected):
    parts = [Part(str(size), size * 1024 * 1024, {}) for size in sizes]
    assert [[int(part.name) for part in group] for group in groups_of(parts)] == expected
    many = [Part(str(number), 1024**3, {}) for number in range(40)]
    assert len(groups_of(many)) == 2, "a log remembers five runs of sequences"


def test_a_partition_that_its_topic_lacks_is_refused(tmp_path):
    """The topic was made again with fewer partitions since the tasks ran."""
    stage = SinkStage(StorageRoot.of(str(tmp_path)))
    ((_, records),) = staged_records(stage, stage.put_parts(0, routed({0: letters("a"), 5: letters("b")})))
    with pytest.raises(InvalidPartitionsException, match="topic t: partition 5 is out of range, it has 0 to 2"):
        record_set("t", records, 3, 1 << 20)
