"""Fetch from an offset: reads the headers that a follower needs, from no more footers than necessary."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import broken_segments
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.segment import write_segment
from tests.storage.logs import P0, P1, P2, TOPIC, fill, header, log_rows, new_log, request, send

OTHER = TopicIdPartition("other-id", 0)
TOPICS = {P0: TOPIC, P1: TOPIC, P2: TOPIC, OTHER: "a topic before it"}


@pytest.fixture
def log(root):
    """P0 0-3 | P0 4-7 and P1 0-4 | P0 8-11 | P1 5-6."""
    log = new_log(root, P0, P1)
    fill(log, P0, 4)
    send(log, request(P0, 4, sequence=4), request(P1, 5))
    fill(log, P0, 4)
    fill(log, P1, 2)
    return log


@pytest.fixture
def opened(monkeypatch):
    """The segments whose footers are read."""
    names, real = [], broken_segments.read_segment
    monkeypatch.setattr(broken_segments, "read_segment", lambda root, file: names.append(file.name) or real(root, file))
    return names


def found(log, wanted):
    batches, _ = batches_from(log.root, wanted, TOPICS)
    return sorted((batch.topic_id_partition.partition, batch.base_offset, batch.last_offset) for batch in batches)


@pytest.mark.parametrize(
    ("wanted", "headers", "footers"),
    [
        pytest.param({}, [], 0, id="nothing"),
        pytest.param({P0: 0}, [(0, 0, 3), (0, 4, 7), (0, 8, 11)], 3, id="a partition from its start"),
        pytest.param({P0: 8}, [(0, 8, 11)], 1, id="from the start of a batch"),
        pytest.param({P0: 7}, [(0, 4, 7), (0, 8, 11)], 2, id="from within a batch"),
        pytest.param({P0: 12}, [], 0, id="at the LEO"),
        pytest.param({P1: 6}, [(1, 5, 6)], 2, id="another partition"),
        pytest.param({P0: 9, P1: 5}, [(0, 8, 11), (1, 5, 6)], 3, id="two partitions"),
        pytest.param({P2: 0}, [], 0, id="a partition without records"),
        pytest.param({TopicIdPartition("made again", 0): 8}, [], 1, id="a topic of an unknown name"),
        pytest.param({OTHER: 0}, [], 0, id="another topic"),
        pytest.param({OTHER: 0, P0: 8}, [(0, 8, 11)], 3, id="two topics, of which one is elsewhere"),
    ],
)
def test_only_footers_of_candidates_are_read(log, opened, wanted, headers, footers):
    assert found(log, wanted) == headers
    assert len(opened) == footers


def test_a_batch_says_where_it_lies_and_what_it_follows(log):
    batches, _ = batches_from(log.root, {P0: 8}, TOPICS)
    last, before = log.current().partition(P0).batches[-1], log.current().partition(P0).batches[-2].header.chain
    size = log.current().segments[last.segment].file.size
    assert batches == [FetchedBatch(P0, 8, 11, 0, last.segment, size, last.header.bytes, before, last.header.chain)]


@pytest.mark.parametrize("others", [0, 3])
def test_files_without_statistics_are_read(root, opened, others):
    """Another tool may have written them; the log may hold files with statistics, or none."""
    log = new_log(root, P0)
    bare = write_segment(log.root, 1, log_rows(P0, 0, 2), [header(P0, 0, 1)])
    DeltaLog.open(log.root).commit({"why": "another tool"}, [type(bare.file)(bare.name, bare.file.size)])
    log.refresh()
    for _ in range(others):
        fill(log, P0, 2)
    opened.clear()
    assert found(log, {P0: 1})[0] == (0, 0, 1)
    assert bare.name in opened


def test_an_empty_log_has_no_headers(root):
    assert batches_from(new_log(root).root, {P0: 0}, TOPICS) == ([], {})


def test_a_log_that_is_not_there_is_an_error(root):
    with pytest.raises(KafkaStorageException, match=f"{root}/none"):
        batches_from(StorageRoot.of(f"{root}/none"), {P0: 0}, TOPICS)


def test_ft_12_a_segment_that_is_gone_is_named_for_its_partitions_and_the_others_are_read(log):
    """Which these are its statistics tell: a partition of another topic is not, nor one that wants what comes later."""
    name = log.current().partition(P0).batches[-1].segment
    log.root.delete(name)
    other = TopicIdPartition("hotels-id", 0)
    batches, failed = batches_from(log.root, {P0: 8, P1: 5, other: 0}, {**TOPICS, other: "hotels"})
    assert [batch.base_offset for batch in batches] == [5]
    assert failed.keys() == {P0}
    assert name in str(failed[P0])
    assert batches_from(log.root, {P0: 12, P1: 0}, TOPICS)[1] == {}
