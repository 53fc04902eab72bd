"""In an object store the commit of a small file has its content, so that its readers need not ask for the file."""

import base64
import json
import os

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.append_plan import AppendPlan, FetchedBatch
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import (
    CONTENTS,
    commit_name,
    read_commit,
)
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import LOG, PRODUCERS
from lakelog.verification.memory_root import MemoryStore, NoFaults
from tests.storage.logs import P0, facts, fill, new_log, values


class Process(NoFaults):
    """The process that uses the store now, and the files that it asks for."""

    def __init__(self):
        self.name, self.asked_for = "writer", []

    def read(self, uri):
        self.asked_for.append(uri.rpartition("/")[2])

    def of(self, act):
        """The requests for data files and for commits that a call makes."""
        self.asked_for.clear()
        act()
        return sum(name.endswith(".parquet") for name in self.asked_for), len(self.asked_for)


@pytest.fixture
def process():
    return Process()


@pytest.fixture
def root(process):
    with MemoryStore("bucket", faults=process, process=lambda: process.name).opened() as store:
        yield StorageRoot.of(f"{store.uri}/broker-1")


def row(name):
    return {"name": name, "producer_id": 1, "producer_epoch": 0, "owner": "me", "idle_ms": 0}


def write(table, *names):
    table.update({"who": "test", "why": "test"}, lambda _: [row(name) for name in names])


def names(table):
    return [found["name"] for found in table.rows]


@pytest.fixture
def table(root):
    return StateTable.create_at(root, PRODUCERS)


@pytest.fixture
def elsewhere(root, process, table):
    """The same table in another process, whose step begins now."""
    assert names(table) == []
    process.name = "reader"
    opened = StateTable.open_at(root, PRODUCERS)
    process.name = "writer"
    return opened


def test_another_process_reads_rows_with_the_commit(table, elsewhere, process):
    write(table, "a", "b")
    process.name = "reader"
    assert process.of(elsewhere.refresh) == (0, 3)
    assert names(elsewhere) == ["a", "b"]


def test_rows_that_take_much_room_are_read_from_their_file(table, elsewhere, process, root):
    write(table, *(os.urandom(40_000).hex() for _ in range(2)))
    assert CONTENTS.encode() not in root.read(commit_name(1))
    process.name = "reader"
    assert process.of(elsewhere.refresh) == (1, 4)
    assert names(elsewhere) == names(table)


def test_the_file_is_there_all_the_same(table, root):
    write(table, "a")
    (file,) = read_commit(root, 1).adds
    assert root.read(file.name) == file.content
    assert names(StateTable.open_at(root, PRODUCERS)) == ["a"]


def test_on_a_disk_no_commit_has_a_file(tmp_path):
    root = StorageRoot.of(str(tmp_path / "table"))
    write(StateTable.create_at(root, PRODUCERS), "a")
    log = new_log(str(tmp_path / "log"), P0)
    fill(log, P0, 1)
    for written in (root.read(commit_name(1)), log.root.read(commit_name(log.current().version))):
        assert CONTENTS.encode() not in written


@pytest.mark.parametrize(
    "damage",
    [lambda _: "no base 64!", lambda _: 7, lambda content: content[:-4], lambda _: base64.b64encode(b"").decode()],
    ids=["no Base64", "a number", "too short", "empty"],
)
def test_a_commit_whose_content_is_not_that_of_the_file_is_torn(table, elsewhere, process, root, damage):
    write(table, "a")
    lines = [json.loads(line) for line in root.read(commit_name(1)).splitlines()]
    contents = lines[0]["commitInfo"][CONTENTS]
    lines[0]["commitInfo"][CONTENTS] = {name: damage(content) for name, content in contents.items()}
    root.put(commit_name(1), "".join(json.dumps(line) + "\n" for line in lines).encode())
    process.name = "reader"
    with pytest.raises(KafkaStorageException, match="this commit is empty or torn"):
        elsewhere.refresh()
    assert names(elsewhere) == []


def test_another_process_replays_small_segments_without_their_footers(root, process):
    log = new_log(root.child(LOG.name), P0)
    process.name = "reader"
    other = ReplicaLog.open(log.root)
    process.name = "writer"
    fill(log, P0, 3)
    process.name = "reader"
    assert process.of(other.refresh)[0] == 0
    assert facts(other, P0) == facts(log, P0)
    assert values(other) == [b"0", b"1", b"2"]


def test_a_follower_reads_a_small_commit_with_one_request_and_looks_for_the_next_and_the_one_before_it(root, process):
    log = new_log(root.child(LOG.name), P0)
    process.name = "stream"
    reader = NewSegments(log.root, 1)
    reader.begin()
    process.name = "writer"
    fill(log, P0, 3)
    process.name = "stream"
    found = []
    assert process.of(lambda: found.extend(reader.read())) == (0, 3), "somebody may have made the table again"
    assert len(found) == 1
    process.name = "writer"
    fill(log, P0, 1)
    process.name = "stream"
    assert process.of(reader.read) == (0, 3)


def test_a_follower_in_the_same_process_copies_a_small_segment_without_reading_it(root, process):
    log = new_log(root.child(LOG.name), P0)
    target = new_log(StorageRoot.of(root.uri.replace("broker-1", "broker-2")).child(LOG.name), P0).root
    fill(log, P0, 3)
    (segment,) = log.current().segments.values()
    batch = FetchedBatch.of(segment.headers[0], segment.name, segment.file.size)
    plan = AppendPlan((batch,), {P0: log.current().partition(P0).log_end})
    copied = []
    copier = SegmentCopier(log.root, target, None, 1 << 30)
    assert process.of(lambda: copied.append(copier.copy(plan))) == (0, 0), "it only writes"
    (copy,) = copied[0].segments
    assert target.read(copy.name) == log.root.read(segment.name)


def test_only_the_newest_contents_stay_in_memory(root):
    log = new_log(root.child(LOG.name), P0)
    fill(log, P0, *[1] * 5)
    held = log._log.active_files()
    assert [file.content is not None for file in sorted(held, key=lambda file: file.content is not None)] == [
        *[False] * 4, True,
    ]  # fmt: skip
    assert all(segment.file.content is None for segment in log.current().segments.values())
    assert all(segment.file.content is None for segment in ReplicaLog.open(log.root).current().segments.values())


def test_a_commit_of_many_small_files_has_none_of_them(root):
    """A follower may commit hundreds of copies at once."""
    files = [AddedFile(f"{number}.parquet", 9_000, content=os.urandom(9_000)) for number in range(4)]
    log = DeltaLog.create(root, LOG)
    for adds, there in ((files[:3], True), (files, False)):
        version = log.commit({"why": "test"}, adds)
        assert [file.content is not None for file in read_commit(root, version).adds] == [there] * len(adds)
        log.move_own()
