"""The headers of a leader's log that a fetch reads: new ones from its commits, others from its snapshot."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_round import FetchHeaders
from lakelog.replication.server.fetcher import header_fetch
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch
from lakelog.replication.storage.delta.commit_format import drop_commits_before
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.log import new_segments
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.verification.memory_root import MemoryStore
from tests.clock import monotonic_clock
from tests.hanging import raises
from tests.looks import Looks
from tests.storage.log.test_new_segments import follow_commit
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, P2, TOPIC, chain, fill, lead, new_log, request, send

UNBOUNDED = 2**40
ELSEWHERE = TopicIdPartition("other-id", 0)


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1."""
    return new_log(root, P0, P1)


clock = pytest.fixture(monotonic_clock)


@pytest.fixture
def fetch(log):
    return begun(log)


def begun(log, max_bytes=UNBOUNDED):
    made = HeaderFetch("broker-2", log.root, 1, max_bytes)
    made.begin()
    return made


def step(ends, lagging=()):
    return FetchHeaders({p: LogEnd(end, "") for p, end in ends.items()}, frozenset(lagging), {})


def read(fetch, ends, lagging=(), looks=True, topics=None):
    """What a fetch reads, after a poll."""
    if looks:
        fetch.has_new_commits()
    return fetch.fetch(step(ends, lagging)._replace(topics=topics or {}))


def fetched(fetch, ends, lagging=(), looks=True):
    """The batches that a round gets: partition, first and last offset."""
    found = read(fetch, ends, lagging, looks)
    fetch.done()
    return sorted((b.topic_id_partition.partition, b.base_offset, b.last_offset) for b in found.batches)


CASES = {
    "FT-10 at the LEO": (10, True),
    "FT-10 above the LEO: append_plan finds the gap": (5, True),
    "FT-04 below the LEO": (13, False),
    "FT-04 its last record is new": (12, True),
}


@pytest.mark.parametrize(("end", "is_fetched"), CASES.values(), ids=CASES)
def test_ft_04_ft_10_what_reaches_the_fetch_offset_is_fetched(log, end, is_fetched):
    fill(log, P0, 10)
    fetch = begun(log)
    fill(log, P0, 3)
    assert fetched(fetch, {P0: end}) == ([(0, 10, 12)] if is_fetched else [])


def test_a_batch_has_all_that_a_plan_asks_of_it(log, fetch):
    fill(log, P0, 3)
    (batch,) = read(fetch, {P0: 0}).batches
    (segment,) = log.current().segments.values()
    (header,) = segment.headers
    assert batch.topic_id_partition == P0
    assert (batch.segment, batch.segment_bytes, batch.bytes) == (segment.name, segment.file.size, header.bytes)
    assert (batch.leader_epoch, batch.previous, batch.chain) == (0, header.previous, chain(log))


def test_ft_07_batches_of_partitions_that_are_not_fetched_are_left_out(log, fetch):
    send(log, request(P0, 2), request(P1, 3))
    assert fetched(fetch, {P0: 0, TopicIdPartition("made again", 0): 0}) == [(0, 0, 1)]


def test_each_partition_is_fetched_from_its_own_offset(log, fetch):
    fill(log, P0, 2, 2)
    fill(log, P1, 3)
    assert fetched(fetch, {P0: 2, P1: 0}) == [(0, 2, 3), (1, 0, 2)]


def test_ft_05_a_fetch_goes_on_where_the_last_one_has_ended_and_a_round_that_starts_over_does_not(log, fetch):
    fill(log, P0, 1)
    assert [len(read(fetch, {P0: 0}).batches) for _ in range(2)] == [1, 1]
    fetch.done()
    assert fetched(fetch, {P0: 0}) == []
    fill(log, P0, 1)
    assert fetched(fetch, {P0: 0}) == [(0, 1, 1)]


def test_ft_05_a_round_that_starts_over_gets_the_rest_of_its_headers_again(log):
    fetch = begun(log, max_bytes=1)
    fill(log, P0, 1, 1)
    assert (fetched(fetch, {P0: 0}), fetch.has_more) == ([(0, 0, 0)], True)
    assert [len(read(fetch, {P0: 0}, looks=False).batches) for _ in range(3)] == [1, 1, 1]
    fetch.done()
    assert fetched(fetch, {P0: 0}, looks=False) == []


def test_what_was_there_before_the_stream_began_is_in_the_snapshot_alone(log):
    fill(log, P0, 1)
    fetch = begun(log)
    fill(log, P0, 1)
    assert fetched(fetch, {P0: 0}) == [(0, 1, 1)]
    assert fetched(fetch, {P0: 0}, lagging=[P0]) == [(0, 0, 0), (0, 1, 1)]


def test_a_fetch_without_a_poll_reads_the_snapshot_alone(log, fetch):
    fill(log, P0, 1)
    assert fetched(fetch, {P0: 0}, looks=False) == []
    assert fetched(fetch, {P0: 0}, lagging=[P0], looks=False) == [(0, 0, 0)]
    assert fetched(fetch, {P0: 0}) == [(0, 0, 0)], "the next poll finds it"


def test_fe_02_a_fetch_is_bounded_and_the_next_one_goes_on(log):
    fetch = begun(log, max_bytes=1)
    fill(log, P0, 1, 1)
    assert (fetched(fetch, {P0: 0}), fetch.has_more) == ([(0, 0, 0)], True)
    assert (fetched(fetch, {P0: 0}, looks=False), fetch.has_more) == ([(0, 1, 1)], False), "nobody tells it twice"


def test_ft_03_without_a_partition_to_fetch_no_footer_is_read(log, fetch):
    fill(log, P0, 1)
    read = []
    fetch._read_footers = lambda files: read.extend(files) or []
    assert fetched(fetch, {}) == []
    assert read == []


THREE = {P0: 0, P1: 0, P2: 0}


def three_files(log):
    """One commit with three segments, because the partitions have replicas of their own. Returns their sizes."""
    lead(log, P2, epoch=0)
    reader = NewSegments(log.root, 1)
    reader.begin()
    send(log, request(P0, 1, replicas=(1, 2)), request(P1, 1, replicas=(1, 3)), request(P2, 1, replicas=(1, 4)))
    return [segment.file.size for segment in reader.read()]


def test_fe_02_bytes_bound_a_fetch_also_within_a_commit(log):
    fetch = begun(log, max_bytes=1)
    three_files(log)
    fill(log, P0, 1)
    found = [(fetched(fetch, THREE, looks=not number), fetch.has_more) for number in range(4)]
    assert [has_more for _, has_more in found] == [True, True, True, False]
    assert [len(batches) for batches, _ in found] == [1] * 4, "at least one segment, however large"
    assert sorted(batch for batches, _ in found for batch in batches) == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (2, 0, 0)]


@pytest.mark.parametrize(
    ("bound", "fitting"),
    [
        (lambda sizes: sizes[0], 1),
        (lambda sizes: sum(sizes[:2]) - 1, 1),
        (lambda sizes: sum(sizes[:2]), 2),
        (lambda sizes: sum(sizes) - 1, 2),
        (sum, 3),
    ],
    ids=["one", "less than two", "two", "less than three", "three"],
)
def test_fe_02_a_segment_that_exceeds_the_bound_is_left_to_the_next_fetch(log, bound, fitting):
    """The round would not copy it, and its partition would be read from the snapshot."""
    fetch = begun(log)
    fetch._max_bytes = bound(three_files(log))
    assert (len(fetched(fetch, THREE)), fetch.has_more) == (fitting, fitting < 3)


@pytest.mark.parametrize(("bound", "fitting"), [(UNBOUNDED, 5), (1, 1)])
def test_fe_02_a_fetch_reads_commits_until_its_byte_limit(log, monkeypatch, bound, fitting):
    """A poll ends after some commits. A round for each poll would append and publish each time."""
    monkeypatch.setattr(new_segments, "FULL_POLL", 2)
    fetch = begun(log, bound)
    fill(log, P0, *[1] * 5)
    assert (len(fetched(fetch, {P0: 0})), fetch.has_more) == (fitting, fitting < 5)


def test_fe_02_files_of_others_do_not_count_and_stop_nothing(log):
    """They would fill the bound, and a fetch would look at them for ever."""
    fetch = begun(log, max_bytes=1)
    follow_commit(log, count=3)
    fill(log, P0, 1)
    assert (fetched(fetch, {P0: 0}), fetch.has_more) == ([(0, 0, 0)], False)


@pytest.mark.parametrize(
    ("ends", "topics", "is_read"),
    [
        pytest.param({P0: 0}, {P0: TOPIC}, True, id="its partition is fetched"),
        pytest.param({P1: 0}, {P1: TOPIC}, False, id="another partition is"),
        pytest.param({P0: 1}, {P0: TOPIC}, False, id="the follower has it"),
        pytest.param({ELSEWHERE: 0}, {ELSEWHERE: "zebras"}, False, id="a later topic is"),
        pytest.param({ELSEWHERE: 0}, {ELSEWHERE: "ants"}, False, id="an earlier topic is"),
        pytest.param({ELSEWHERE: 0}, {}, True, id="a topic of an unknown name is"),
        pytest.param({P0: 0, ELSEWHERE: 0}, {P0: TOPIC, ELSEWHERE: "zebras"}, True, id="its topic is, too"),
    ],
)
def test_ft_04_footers_are_read_of_segments_that_may_have_what_is_fetched(log, fetch, ends, topics, is_read):
    fill(log, P0, 1)
    footers = []
    fetch._read_footers = lambda files: footers.extend(files) or []
    read(fetch, ends, topics=topics)
    assert bool(footers) == is_read


@pytest.mark.parametrize("ends", [{P0: 0}, {P1: 0}], ids=["fetched", "of another partition"])
def test_commits_that_were_cleaned_up_are_a_gap(log, fetch, caplog, ends):
    fill(log, P0, 1, 1, 1)
    drop_commits_before(log.root, log.current().version)
    found = read(fetch, ends)
    assert (list(found.batches), found.commits_have_gap) == ([], True)
    gap = f"commits up to {log.current().version} of {log.root.uri} have been cleaned up"
    assert caplog.messages == [f"broker-2: {gap}: the leader's snapshot is read instead"]
    fetch.done()
    fill(log, P0, 1)
    assert fetched(fetch, {P0: 0}) == [(0, 3, 3)]


def test_a_segment_that_is_gone_is_a_gap_that_names_it_and_the_others_are_fetched(log, fetch, caplog):
    fill(log, P0, 1, 1)
    first, _ = log.current().segments
    log.root.delete(first)
    found = read(fetch, {P0: 0})
    assert [b.base_offset for b in found.batches] == [1]
    assert found.commits_have_gap
    assert f"{first}: is gone" in caplog.text


def test_a_log_that_cannot_be_read_is_an_error_and_is_read_again(log, fetch, monkeypatch, clock):
    fill(log, P0, 1)
    with monkeypatch.context() as changed:
        changed.setattr(LocalRoot, "read_stamped", raises(KafkaStorageException("503 Slow Down")))
        with pytest.raises(KafkaStorageException):
            read(fetch, {P0: 0})
    fetch.done()
    clock.now += 1
    assert fetched(fetch, {P0: 0}) == [(0, 0, 0)]


def test_na_04_what_a_compaction_rewrites_is_not_fetched_again(log, fetch):
    fill(log, P0, 1, 1)
    assert fetched(fetch, {P0: 0}) == [(0, 0, 0), (0, 1, 1)]
    assert compact(log, 1 << 20, 2, 1 << 20, "test") == 2
    assert fetched(fetch, {P0: 0}) == []


def test_do_01_in_an_object_store_a_fetch_needs_no_request_after_the_poll_that_found_segments():
    with MemoryStore("headers", faults=Looks()).opened() as store:
        log = new_log(f"{store.uri}/log", P0, P1)
        fetch = begun(log)
        fill(log, P0, 3)
        assert fetch.has_new_commits()
        assert store.faults.of(lambda: fetched(fetch, {P0: 0}, looks=False)) == ([(0, 0, 2)], 0)


def test_ap_06_in_an_object_store_an_append_of_small_files_only_checks_the_commit_before_it():
    with MemoryStore("appends", faults=Looks()).opened() as store:
        log = new_log(f"{store.uri}/log", P0, P1)
        fill(log, P0, 3)
        assert store.faults.of(lambda: send(log, request(P0, 3, sequence=3)))[1] == 1


def left(fetch):
    """The batches in memory: partition and first offset."""
    return sorted((p.partition, b.base_offset) for p, batches in fetch._left.items() for b in batches)


def test_ft_05_what_a_lagging_partition_lacks_is_read_once_and_stays_in_memory_with_what_comes(log, monkeypatch):
    fill(log, P0, 1, 1)
    fetch = begun(log)
    assert fetched(fetch, {P0: 0}, lagging=[P0]) == [(0, 0, 0), (0, 1, 1)]
    fill(log, P0, 1)
    monkeypatch.setattr(header_fetch, "segments_from", lambda _, wanted, *__: ([], {}) if not wanted else 1 / 0)
    assert fetched(fetch, {P0: 1}, lagging=[P0]) == [(0, 1, 1), (0, 2, 2)]
    assert fetched(fetch, {P0: 2}, lagging=[P0], looks=False) == [(0, 2, 2)]
    assert fetched(fetch, {P0: 3}, looks=False) == []
    assert not fetch.has_left


@pytest.mark.parametrize("is_kept", [True, False])
def test_ft_05_what_is_given_up_is_read_from_the_snapshot_again(log, fetch, is_kept):
    fill(log, P0, 2)
    fetched(fetch, {P0: 0, P1: 0}, lagging=[P0, P1])
    fill(log, P0, 1)
    fetch.forget([P0] if is_kept else [P1])
    expected = {(0, 0, 1)} if is_kept else {(0, 0, 1), (0, 2, 2)}
    assert set(fetched(fetch, {P0: 0, P1: 0}, lagging=[P0, P1], looks=False)) == expected


def test_ft_05_after_a_gap_nothing_in_memory_counts(log, fetch):
    """Commits that cannot be read may have had batches of any partition."""
    fill(log, P0, 1)
    fetched(fetch, {P0: 0}, lagging=[P0])
    fill(log, P0, 1)
    clean_up(log.root)
    assert fetched(fetch, {P0: 0}, lagging=[P0]) == [(0, 0, 0), (0, 1, 1)]
    assert not fetch.has_left


def test_ft_05_all_that_is_behind_is_in_memory_whatever_the_limit(log):
    """The snapshot for partitions that lag, the commits for the others; the next fetch goes on after them."""
    fill(log, P0, 1)
    fetch = begun(log, max_bytes=1)
    fill(log, P0, 1)
    fill(log, P1, 1, 1)
    behind = fetch.behind(step({P0: 0, P1: 0}, [P0]))
    assert sorted({(b.topic_id_partition.partition, b.base_offset) for b in behind}) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(left(fetch)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert fetched(fetch, {P0: 2, P1: 1}, lagging=[P0, P1]) == [(1, 1, 1)]


@pytest.mark.parametrize("fault", ["a broken file", "a gap"])
def test_ft_12_where_a_part_cannot_be_read_nothing_is_behind_and_the_next_fetch_tells_why(log, fetch, fault):
    fill(log, P0, 1)
    fill(log, P1, 1)
    if fault == "a gap":
        drop_commits_before(log.root, log.current().version)
    else:
        log.root.delete(sorted(log.current().segments)[0])
    assert fetch.behind(step({P0: 0, P1: 0})) == []
    assert fetch.has_new_commits(), "it calls for that fetch"
    assert read(fetch, {P0: 0, P1: 0}, looks=False).commits_have_gap


def test_ft_12_where_what_is_behind_cannot_be_read_a_round_that_fetches_nothing_loses_nothing(log, fetch):
    fill(log, P0, 1)
    footers, fetch._read_footers = fetch._read_footers, raises(KafkaStorageException("503 Slow Down"))
    with pytest.raises(KafkaStorageException):
        fetch.behind(step({P0: 0}))
    fetch.done()
    fetch._read_footers = footers
    assert fetch.has_new_commits()
    assert fetched(fetch, {P0: 0}, looks=False) == [(0, 0, 0)]


def test_tr_06_what_begins_above_a_log_that_was_truncated_is_not_used(log, fetch):
    fill(log, P0, 1, 1)
    assert set(fetched(fetch, {P0: 1}, lagging=[P0])) == {(0, 1, 1)}
    assert fetched(fetch, {P0: 0}, lagging=[P0], looks=False) == [(0, 0, 0), (0, 1, 1)]


def test_ft_05_one_catch_up_read_runs_at_a_time_and_rounds_continue(log, monkeypatch):
    """No round runs meanwhile, and a stop waits."""
    monkeypatch.setattr(new_segments, "FULL_POLL", 2)
    fetch = begun(log)
    fill(log, P0, 1, 1, 1)
    assert [b.base_offset for b in fetch.behind(step({P0: 0}))] == [0, 1]
    assert fetch.has_more
    assert set(fetched(fetch, {P0: 0}, lagging=[P0])) == {(0, 0, 0), (0, 1, 1), (0, 2, 2)}
