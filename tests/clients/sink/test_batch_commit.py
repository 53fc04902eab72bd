"""A batch is written exactly once, wherever its driver dies, and whatever other tasks make of it the next time."""

import io
import itertools
import json
import os
import shutil
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from lakelog.replication.clients.record_set import record_set
from lakelog.replication.clients.sink import routed_records
from lakelog.replication.clients.sink.batch_commit import KnownProducer, commit_batch, groups_of, staged_records
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.clients.sink.sink_stage import SinkStage, free_unused_stages
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    DuplicateSequenceException,
    InconsistentClusterRootException,
    InvalidPartitionsException,
    KafkaStorageException,
    OutOfOrderSequenceException,
    ProducerFencedException,
)
from lakelog.replication.protocol.producer_state import check_sequence, record
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.staged_batch import Part, Staged, StagedBatch
from tests.copied_roots import copied
from tests.hanging import raises
from tests.storage.delta.unsynced import UnsyncedDisk, at_folder_syncs
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
        if known and self.values[place][known.base_offset :][: known.records] != values[: known.records]:
            raise DuplicateSequenceException(f"{place}: other records from sequence {sequence} on")
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

    def __init__(self, root, logs, dies_at=None, after=False, copies=None):
        root = root if isinstance(root, StorageRoot) else StorageRoot.of(str(root))
        self.stage, self.logs = SinkStage(root, copies), logs
        self._writes, self._dies_at, self._after = itertools.count(), dies_at, after
        for name in ("put_batch", *(["copy_batch"] if copies else []), "put_done", "clean"):
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

    def known(self, producer_ids, topics):
        return [
            KnownProducer(topic, partition, producer, entry.next_sequence)
            for ((topic, partition), producer), entry in self.logs.entries.items()
            if producer in producer_ids and topic in topics
        ]

    def commit(self, batch_id, *tasks):
        """Each task has the values of each partition of topic `t`, or of a pair of a topic and a partition."""
        parts = [part for task in tasks for part in self.stage.put_parts(batch_id, routed(task))]
        commit_batch(self.stage, batch_id, parts, self)
        return next(self._writes)


def routed(task):
    rows = [
        {"topic": topic, "partition": partition, "key": None, "value": value, "timestamp": NOON, "headers": None}
        for place, values in task.items()
        for topic, partition in [place if isinstance(place, tuple) else ("t", place)]
        for value in values
    ]
    return pa.Table.from_pylist(rows, ROUTED)


def letters(text):
    return [letter.encode() for letter in text]


def test_batches_that_are_committed_in_turn_are_each_written_once(tmp_path):
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
    assert driver.stage.read() == Staged()


def max_staleness(folder, seconds):
    for file in folder.iterdir():
        os.utime(file, (file.stat().st_mtime - seconds,) * 2)


def test_unused_stages_are_freed_and_a_query_that_returns_writes_each_batch_once(tmp_path):
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
        max_staleness(tmp_path / name, 100)
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
    earlier = late.stage.read()
    late.stage.read = lambda: earlier
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
    assert late.stage.read().done == 3


def test_a_late_clean_up_removes_no_part_of_a_later_batch(tmp_path):
    logs, driver = Logs(), None
    driver = Driver(tmp_path, logs)
    driver.commit(0, {0: letters("a")})
    values = [Random(number).randbytes(20) for number in range(MANY)]
    (part,) = driver.stage.put_parts(1, routed({0: values}))
    assert not part.content, "it is an object"
    Driver(tmp_path, logs).commit(0, {0: letters("a")})
    commit_batch(driver.stage, 1, [part], driver)
    assert driver.logs.values == {("t", 0): [b"a", *values]}
    with pytest.raises(CorruptRecordException, match=f"{part.name}: is gone"):
        list(staged_records(driver.stage, [part]))
    assert driver.stage.read() == Staged(batches=(1,), finished=(1,))


def test_parts_in_arrow_and_encoded_parts_are_sent_in_their_order(tmp_path):
    logs, tasks = Logs(), ["abc", "d", "e", "fgh", "i", "jkl"]
    Driver(tmp_path, logs).commit(0, *({0: letters(each)} for each in tasks))
    assert logs.values == {("t", 0): letters("abcdefghijkl")}


def test_neighbouring_small_parts_are_joined_into_one_batch(tmp_path, large_bytes):
    driver = Driver(tmp_path, Logs())
    parts = [part for each in ("a", "b", "cde", "f") for part in driver.stage.put_parts(0, routed({0: letters(each)}))]
    ((_, records),) = staged_records(driver.stage, parts)
    expected = {0: [1, 1, 3, 1], 50: [2, 3, 1], 1 << 62: [6]}[large_bytes]
    assert [each.num_rows for each in records.by_partition[0]] == expected


def test_a_part_whose_bytes_have_changed_is_an_error_that_names_it(tmp_path):
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


def test_a_batch_whose_staging_got_no_answer_is_committed_once(tmp_path):
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
    monkeypatch.setattr(LocalRoot, "sync", at_folder_syncs(lambda: happened.append("synced")))
    monkeypatch.setattr(driver.logs, "append", lambda *_: happened.append("appended"))
    driver.commit(0, {0: letters("a")})
    assert happened.index("synced") < happened.index("appended")


def test_a_query_whose_stage_was_removed_is_refused_and_writes_on_after_the_mark_of_its_last_batch(tmp_path):
    """Nobody can tell then whether its next batch was sent already. The mark says it."""
    logs, stage = Logs(), tmp_path / "query"
    Driver(stage, logs).commit(0, {0: letters("ab")})
    Driver(stage, logs).stage.delete()
    with pytest.raises(OutOfOrderSequenceException):
        Driver(stage, logs).commit(1, {0: letters("cd")})
    assert logs.values == {("t", 0): letters("ab")}
    Driver(stage, logs).stage.delete()
    Driver(stage, logs).stage.put_done(0)
    Driver(stage, logs).commit(1, {0: letters("cd")})
    assert logs.values == {("t", 0): letters("abcd")}


few_parts = pytest.mark.parametrize("large_bytes", [50], indirect=True)


@few_parts
@pytest.mark.parametrize(
    ("finished", "kept"),
    [
        pytest.param("", 0, id="the first batch"),
        pytest.param("ab", 0, id="a later batch, and the stage was empty"),
        pytest.param("ab", 1, id="a later batch than the next one"),
        pytest.param("ab", 2, id="the next batch"),
        pytest.param("ab", "freed", id="the first batch since the stage was freed"),
        pytest.param("ab", "before it was freed", id="the first batch since then, and the copy is from before"),
    ],
)
def test_a_batch_that_was_sent_is_never_doubled_after_its_stage_was_restored(tmp_path, finished, kept):
    """As with an older copy of the cluster root. The copy is from when the query had finished `kept` batches; a last
    one is sent to so many partitions, and its driver dies. The tasks of its next run route records as `again` says: x0
    goes to partition 0. What the logs hold stays as it is."""
    for number, (sends, sent, again) in enumerate(
        itertools.product(["x0 y0", "x0 y1"], [1, 2], ["x0 y0", "y0 x0", "x0 y1", "x1 y0", "x1 y1", "x0"])
    ):
        home, logs = tmp_path / str(number) / "query", Logs()
        home.mkdir(parents=True)
        copies = {0: shutil.copytree(home, tmp_path / f"{number}-empty")}
        for batch_id, value in enumerate(finished):
            Driver(home, logs).commit(batch_id, routes(f"{value}0"))
            copies[batch_id + 1] = shutil.copytree(home, tmp_path / f"{number}-{batch_id}")
        if "freed" in str(kept):
            copies["before it was freed"] = copies[len(finished)]
            Driver(home, logs).stage.free(float("inf"))
            copies["freed"] = shutil.copytree(home, tmp_path / f"{number}-freed")
        with pytest.raises(Crash):
            Driver(home, logs, dies_at=sent, after=True).commit(len(finished), routes(sends))
        before = {place: list(values) for place, values in logs.values.items()}
        shutil.rmtree(home)
        shutil.copytree(copies[kept], home)
        with pytest.raises(
            OutOfOrderSequenceException, match="of this query that its stage in the cluster root does not"
        ):
            Driver(home, logs).commit(len(finished), routes(again))
        assert logs.values == before, (sends, sent, again)


@few_parts
@pytest.mark.parametrize("following", [5, 2**30, 2**31 - 1, 0])
def test_a_partition_that_the_stage_does_not_know_must_not_be_known_to_its_log(tmp_path, following):
    """However many records it has: a sequence has no beginning."""
    driver = Driver(tmp_path, Logs())
    driver.known = lambda ids, _: [KnownProducer("t", 1, producer, following) for producer in ids]
    with pytest.raises(OutOfOrderSequenceException, match="t-1 has records of this query that its stage"):
        driver.commit(0, {0: letters("a")})
    assert driver.logs.values == {}


@few_parts
def test_a_batch_that_is_routed_to_another_topic_after_its_stage_was_restored_is_refused(tmp_path):
    home, copy, logs = tmp_path / "query", tmp_path / "copy", Logs()
    Driver(home, logs).commit(0, {("t", 0): letters("a"), ("u", 0): letters("b")})
    shutil.copytree(home, copy)
    with pytest.raises(Crash):
        Driver(home, logs, dies_at=1, after=True).commit(1, {("t", 0): letters("c")})
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    with pytest.raises(OutOfOrderSequenceException, match="t-0 has records"):
        Driver(home, logs).commit(1, {("u", 0): letters("c")})
    assert logs.values == {("t", 0): letters("ac"), ("u", 0): letters("b")}


def routes(records):
    """The task whose records go to two topics: x0 is the record x for partition 0."""
    task = {}
    for value, partition in records.split():
        for topic in ("t", "u"):
            task.setdefault((topic, int(partition)), []).append(value.encode())
    return task


class MountedRoot:
    """A cluster root that may be away, and something else in its place."""

    def __init__(self, folder):
        self.home, self._away, self._older = folder / "cluster", folder / "away", folder / "older"
        copied(format_cluster, StorageRoot.of(str(self.home)), Config())
        shutil.copytree(self.home, self._older)
        cluster = Cluster.open(str(self.home))
        cluster.topics.change([Topic("t", "t-id", 3)], (), {"who": "test"})
        self.stage = cluster.root.child("sinks", "query")

    def unmount(self, what):
        self.home.rename(self._away)
        if what == "an empty folder":
            self.home.mkdir()
        elif what == "an older copy":
            shutil.copytree(self._older, self.home)

    def mount(self):
        shutil.rmtree(self.home, ignore_errors=True)
        self._away.rename(self.home)

    def files(self):
        return {file.relative_to(self.home) for file in self.home.rglob("sinks*")}


@pytest.fixture
def mounted(tmp_path):
    return MountedRoot(tmp_path)


@few_parts
@pytest.mark.parametrize("what", ["nothing", "an empty folder", "an older copy"])
@pytest.mark.parametrize("call", ["put_parts", "read", "put_batch", "put_done"])
def test_a_batch_goes_on_only_in_the_cluster_root_that_was_seen(mounted, what, call):
    """An empty stage in another root says nothing: the records would be doubled."""
    logs = Logs()
    with pytest.raises(Crash):
        Driver(mounted.stage, logs, dies_at=2).commit(0, {0: letters("a"), 1: letters("b")})
    driver, task = Driver(mounted.stage, logs), {0: letters("c"), 1: [Random(0).randbytes(300_000)]}
    batch_id = 1 if call == "put_batch" else 0
    before = dict(logs.values)
    real = getattr(driver.stage, call)

    def away(*given):
        mounted.unmount(what)
        return real(*given)

    setattr(driver.stage, call, away)
    with pytest.raises(InconsistentClusterRootException, match="reads and writes nothing there until the right root"):
        driver.commit(batch_id, task)
    assert mounted.files() == set()
    mounted.mount()
    if call in ("put_parts", "read"):
        assert logs.values == before
    Driver(mounted.stage, logs).commit(batch_id, task)
    assert logs.values == {("t", 0): letters("ac"[: batch_id + 1]), ("t", 1): letters("b") + task[1] * batch_id}


@few_parts
@pytest.mark.parametrize("call", ["list", "put_if_absent"])
def test_a_batch_that_was_staged_where_the_cluster_root_was_away_for_a_moment_is_not_sent(mounted, monkeypatch, call):
    logs, real, answers = Logs(), getattr(LocalRoot, call), []
    with pytest.raises(Crash):
        Driver(mounted.stage, logs, dies_at=2).commit(0, {0: letters("a"), 1: letters("b")})
    driver, batch_id = Driver(mounted.stage, logs), 1 if call == "put_if_absent" else 0
    sent = dict(logs.values)

    def away(self, *given):
        if self.uri != mounted.stage.uri or answers:
            return real(self, *given)
        mounted.unmount("nothing")
        self.create_folder()
        answers.append(real(self, *given))
        mounted.mount()
        return answers[0]

    monkeypatch.setattr(LocalRoot, call, away)
    if call == "list":  # the name of the batch is taken, and the driver reads what it is
        driver.commit(batch_id, {1: letters("other")})
        assert logs.values == {("t", 0): letters("a"), ("t", 1): letters("b")}
        return
    with pytest.raises(KafkaStorageException, match="query query: batch 1 was staged just now, and is gone"):
        driver.commit(batch_id, {0: letters("c")})
    assert logs.values == {**sent, ("t", 1): letters("b")}
    driver.commit(batch_id, {0: letters("c")})
    assert logs.values == {("t", 0): letters("ac"), ("t", 1): letters("b")}


class PowerCut:
    """The stage of a query on a disk, with `storage.fsync`."""

    def __init__(self, folder, monkeypatch):
        (folder / "lake").mkdir()
        self._folder, self._disk = folder, UnsyncedDisk(folder / "lake", monkeypatch)

    @property
    def stage(self):
        return SinkStage(StorageRoot.of(f"{self._folder}/lake/sinks/query", fsync=True))

    def after(self):
        return SinkStage(StorageRoot.of(f"{self._disk.after_power_cut(self._folder / 'after')}/sinks/query"))


@pytest.fixture
def power_cut(tmp_path, monkeypatch):
    return PowerCut(tmp_path, monkeypatch)


def test_with_fsync_a_power_cut_takes_nothing_of_a_batch_that_is_staged(power_cut):
    stage = power_cut.stage
    put = stage.put_parts(0, routed({0: letters("x")})) + stage.put_parts(0, routed({0: [os.urandom(300_000)]}))
    assert {bool(part.content) for part in put} == {True, False}
    assert stage.put_batch(StagedBatch(0, 7, tuple(put), {}, {}))
    after = power_cut.after()
    assert after.read().batches == (0,)
    ((_, records),) = staged_records(after, after.read_batch(0).parts)  # it checks their bytes
    assert sum(each.num_rows for each in records.by_partition[0]) == 2
    stage.put_done(0)
    stage.clean(stage.read())
    assert power_cut.after().read().finished == (0,)


@pytest.mark.parametrize("mark", ["batch", "done"])
def test_with_fsync_a_driver_makes_the_mark_of_a_dead_driver_durable_before_it_goes_on(power_cut, monkeypatch, mark):
    """The driver has died before it could. What is sent, and what is deleted, counts on the mark."""
    stage = power_cut.stage
    put = stage.put_parts(0, routed({0: [os.urandom(300_000)]}))
    steps = [lambda: stage.put_batch(StagedBatch(0, 7, tuple(put), {}, {})), lambda: stage.put_done(0)]
    *before, last = steps if mark == "done" else steps[:1]
    for step in before:
        step()
    with monkeypatch.context() as dying:
        dying.setattr(LocalRoot, "sync", at_folder_syncs(raises(Crash())))
        with pytest.raises(Crash):
            last()
    found = power_cut.stage.read()
    assert (found.batches, found.done) == ((0,), 0 if mark == "done" else -1)
    after = power_cut.after().read()
    assert (after.batches, after.done) == (found.batches, found.done)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([1, 2, 3], [[1, 2, 3]]), ([200, 1], [[200], [1]]), ([100, 100, 100], [[100, 100], [100]])],
)
def test_a_large_batch_is_sent_in_at_most_two_groups_of_parts(sizes, expected):
    parts = [Part(str(size), size * 1024 * 1024, {}) for size in sizes]
    assert [[int(part.name) for part in group] for group in groups_of(parts)] == expected
    many = [Part(str(number), 1024**3, {}) for number in range(40)]
    assert len(groups_of(many)) == 2, "a log remembers five runs of sequences"


def test_a_staged_record_for_a_partition_that_its_topic_lacks_is_refused(tmp_path):
    """The topic was made again with fewer partitions since the tasks ran."""
    stage = SinkStage(StorageRoot.of(str(tmp_path)))
    ((_, records),) = staged_records(stage, stage.put_parts(0, routed({0: letters("a"), 5: letters("b")})))
    with pytest.raises(InvalidPartitionsException, match="topic t: partition 5 is out of range, it has 0 to 2"):
        record_set("t", records, 3, 1 << 20)
