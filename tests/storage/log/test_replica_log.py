"""A broker's log: append and read, roles, claims, log starts, and lost compare-and-sets."""

from functools import partial

import pytest
from deltalake.exceptions import DeltaError

from lakelog.replication.errors import (
    CorruptRecordException,
    DuplicateSequenceException,
    FencedLeaderEpochException,
    InconsistentClusterIdException,
    KafkaStorageException,
    NotLeaderOrFollowerException,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
    ProducerFencedException,
    StaleBrokerEpochException,
    UnknownLeaderEpochException,
)
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, NO_ROLE, STOPPED, Role
from lakelog.replication.protocol.producer_state import SequenceRun
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import replica_log
from lakelog.replication.storage.log.log_append import Appended, Fetched, append, append_as_follower
from lakelog.replication.storage.log.new_batches import ArrowRecords, write_batches
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, read_segment, write_segment
from lakelog.replication.storage.log.segment_copy import copy_segment
from tests.hanging import Hanging, ends, in_background
from tests.storage.delta.answers import lose_an_answer, refuse_all
from tests.storage.logs import (
    P0,
    P1,
    P2,
    PRODUCER,
    SEGMENT_BYTES,
    chain,
    digests_in,
    epochs,
    fill,
    follow,
    header,
    lead,
    leo,
    log_rows,
    new_log,
    numbered,
    offsets,
    records,
    request,
    send,
    start_at,
    truncate,
    values,
)


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


def test_a_log_is_made_once_and_opened_only_where_it_is(root, log):
    with pytest.raises(InconsistentClusterIdException, match="exists already"):
        ReplicaLog.create(log.root)
    with pytest.raises(InconsistentClusterIdException, match="no Lakelog table"):
        ReplicaLog.open(StorageRoot.of(root).child("elsewhere"))
    assert ReplicaLog.open(log.root).table_id == log.table_id


@pytest.mark.parametrize("failed", [DeltaError("Kernel error: no space"), OSError("no space")])
def test_a_table_that_cannot_be_made_does_not_read_as_one_that_exists(root, monkeypatch, failed):
    def create_table(*_):
        raise failed

    made = StorageRoot.of(root)
    monkeypatch.setattr(type(made), "create_table", create_table)
    with pytest.raises(KafkaStorageException, match=r"cannot be written: .*no space"):
        ReplicaLog.create(made)


def test_ap_06_records_get_the_offsets_that_follow_the_leo(log):
    assert send(log, request(P0, 3), request(P1, 2)) == [Appended(0, 2), Appended(0, 1)]
    assert send(log, request(P0, 2, sequence=3)) == [Appended(3, 4)]
    assert (leo(log), leo(log, P1), leo(log, P2)) == (5, 2, 0)
    assert values(log) == [b"0", b"1", b"2", b"0", b"1"]


def test_a_commit_says_who_wrote_and_why(log):
    fill(log, P0, 1)
    info = read_commit(log.root, last_version(log.root)).info
    assert (info["who"], info["why"], info["leader_epochs"]) == ("test", "append", {"flights-0": 0})


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, None, range(9)),
        (4, None, range(4, 9)),
        (4, 6, range(4, 6)),
        (2, 3, [2]),
        (9, None, []),
        (3, 3, []),
        (7, 99, [7, 8]),
    ],
)
def test_reading_from_an_offset_to_before_another(log, start, end, found):
    fill(log, P0, 3)
    fill(log, P1, 4)
    fill(log, P0, 3, 3)
    assert log.read(P0, start, end)["offset"].to_pylist() == list(found)


def test_only_segments_that_hold_the_offsets_are_read(log, monkeypatch):
    fill(log, P0, 3, 3, 3)
    opened = []
    monkeypatch.setattr(replica_log, "read_records", lambda root, name: opened.append(name) or read_records(root, name))
    assert log.read(P0, 4, 6)["offset"].to_pylist() == [4, 5]
    assert opened == [log.current().partition(P0).batches[1].segment]


@pytest.mark.parametrize("start", [-1, 4, 11])
def test_reading_out_of_range_is_refused(log, start):
    start_at(log, P2, 5)
    lead(log, P2, epoch=0)
    fill(log, P2, 5)
    with pytest.raises(OffsetOutOfRangeException, match="not within 5 to 10"):
        log.read(P2, start)
    assert offsets(log, P2) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("role", "epoch", "error"),
    [
        (None, 0, UnknownLeaderEpochException),
        (Role(3, LEADER), 2, FencedLeaderEpochException),
        (Role(3, LEADER), 4, UnknownLeaderEpochException),
        (Role(3, FOLLOWER), 3, NotLeaderOrFollowerException),
        (Role(3, STOPPED), 3, NotLeaderOrFollowerException),
    ],
)
def test_ap_06_an_append_needs_the_leader_at_its_epoch(log, role, epoch, error):
    if role:
        log.become({P2: role}, "test")
    version = log.refresh().version
    (outcome,) = send(log, request(P2, 1, epoch=epoch))
    assert isinstance(outcome, error)
    assert last_version(log.root) == version, "a refusal commits nothing"


def test_one_partition_is_refused_and_the_others_are_appended(log):
    fine, refused = send(log, request(P0, 2), request(P2, 2))
    assert fine == Appended(0, 1)
    assert isinstance(refused, UnknownLeaderEpochException)
    assert offsets(log) == [0, 1]


def test_an_append_that_was_decided_before_a_change_of_role_is_refused(log):
    """The zombie has not seen the new epoch. Its commit loses, and it learns why."""
    zombie = ReplicaLog.open(log.root)
    follow(log, P0, epoch=1)
    (outcome,) = send(zombie, request(P0, 1))
    assert isinstance(outcome, FencedLeaderEpochException)
    assert leo(log) == 0


@pytest.mark.parametrize(
    ("roles", "last"),
    [
        ([Role(1, LEADER), Role(0, FOLLOWER)], Role(1, LEADER)),
        ([Role(1, FOLLOWER), Role(1, LEADER)], Role(1, LEADER)),
        ([Role(1, LEADER), Role(1, FOLLOWER)], Role(1, LEADER)),
        ([Role(1, LEADER), Role(2, STOPPED)], Role(2, STOPPED)),
        ([Role(2, STOPPED), Role(1, LEADER)], Role(2, STOPPED)),
        ([], NO_ROLE),
    ],
)
def test_roles_never_go_back(log, roles, last):
    versions = [log.become({P2: role}, "test") for role in roles]
    assert log.refresh().partition(P2).role == last
    assert ReplicaLog.open(log.root).current().partition(P2).role == last
    assert [version is None for version in versions] == [role != last and role is roles[-1] for role in roles]


def test_ep_02_the_lineage_has_an_entry_for_each_epoch_that_wrote_and_for_the_leaders_own(log):
    fill(log, P0, 3)
    lead(log, P0, epoch=1)
    lead(log, P0, epoch=4)
    at_3 = chain(log)
    assert log.refresh().partition(P0).lineage == (EpochEntry(0, 0, genesis(P0)), EpochEntry(4, 3, at_3))
    fill(log, P0, 2, epoch=4)
    follow(log, P0, epoch=5)
    assert log.refresh().partition(P0).lineage == (EpochEntry(0, 0, genesis(P0)), EpochEntry(4, 3, at_3))


def test_ep_05_an_epoch_may_start_below_an_earlier_one_whose_records_were_truncated(log):
    """Leader at 5, truncated to 2 as a follower, leader again: its epoch starts where its log now ends."""
    fill(log, P0, 2, 3)
    lead(log, P0, epoch=1)
    follow(log, P0, epoch=2)
    truncate(log, {P0: 2})
    lead(log, P0, epoch=3)
    assert epochs(log) == epochs(ReplicaLog.open(log.root)) == [(0, 0), (3, 2)]


def test_a_claim_fences_the_older_process_of_the_broker(log):
    older = ReplicaLog.open(log.root)
    older.claim(1)
    log.claim(2)
    with pytest.raises(StaleBrokerEpochException, match="broker epoch 1 is fenced"):
        older.become({P0: Role(9, LEADER)}, "test")
    with pytest.raises(StaleBrokerEpochException):
        ReplicaLog.open(log.root).claim(1)
    lead(log, P0, epoch=1)
    assert log.current().partition(P0).role == Role(1, LEADER)


def test_a_claim_does_not_fence_producers(log):
    producer = ReplicaLog.open(log.root)
    log.claim(5)
    assert send(producer, request(P0, 1)) == [Appended(0, 0)]


def test_a_claim_is_made_once(log):
    log.claim(4)
    version = last_version(log.root)
    log.claim(4)
    assert last_version(log.root) == version


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        pytest.param(
            request(P0, 3, sequence=0), Appended(0, 2, duplicate=True, leader_epoch=0), id="all of it sent again"
        ),
        pytest.param(request(P0, 2, sequence=1), DuplicateSequenceException, id="not the batch that is there"),
        pytest.param(request(P0, 2, sequence=5), OutOfOrderSequenceException, id="a batch is missing"),
        pytest.param(request(P0, 4, sequence=0), Appended(0, 3, known=3), id="all of it, and more"),
        pytest.param(
            request(P0, 1, sequence=1, producer_epoch=1), OutOfOrderSequenceException, id="a new epoch begins at 0"
        ),
        pytest.param(request(P0, 1, sequence=0, producer_epoch=1), Appended(3, 3), id="a new epoch"),
        pytest.param(request(P0, 1, sequence=0, producer_id=8), Appended(3, 3), id="another producer"),
    ],
)
def test_kip_98_an_append_is_idempotent(log, second, outcome):
    send(log, request(P0, 3, sequence=0))
    for handle in (log, ReplicaLog.open(log.root)):
        (found,) = send(handle, second)
        is_error = isinstance(outcome, type)
        assert isinstance(found, outcome) if is_error else found[:2] == outcome[:2]
    assert leo(log) == (3 if is_error or outcome.duplicate else 4)


def test_kip_98_an_older_producer_epoch_is_fenced(log):
    send(log, request(P0, 1, producer_epoch=3))
    (outcome,) = send(log, request(P0, 1, sequence=1, producer_epoch=2))
    assert isinstance(outcome, ProducerFencedException)


def test_kip_98_what_a_log_remembers_of_a_producer(log):
    fill(log, P0, 3, 2)
    fill(log, P0, 4, producer_id=9)
    producers = ReplicaLog.open(log.root).current().partition(P0).producers
    assert producers[7].runs == (SequenceRun(0, 4, 0),)
    assert producers[9].runs == (SequenceRun(0, 3, 5),)


def test_an_append_whose_outcome_is_unknown_is_found_and_adds_nothing(log, monkeypatch):
    lose_an_answer(monkeypatch)
    assert send(log, request(P0, 3)) == [Appended(0, 2, duplicate=True, leader_epoch=0)]
    assert offsets(log) == [0, 1, 2]


def test_a_table_that_cannot_be_written_is_an_error(log, monkeypatch):
    refuse_all(monkeypatch)
    with pytest.raises(KafkaStorageException, match="connection refused"):
        send(log, request(P0, 1))


def appended_after(log, meanwhile):
    """Appends to P0, with `meanwhile` before the first commit. Returns the outcome and the written segments."""
    other, written = ReplicaLog.open(log.root), []
    mine = request(P0, 2)
    writer = partial(write_batches, log.root, 1, [mine], {P0: [ArrowRecords(numbered(2))]}, SEGMENT_BYTES)

    def write(positions):
        if not written:
            meanwhile(other)
        written.append(writer(positions))
        return written[-1]

    (outcome,) = append(log, [mine], write, digests_in({P0: numbered(2)}), "test").values()
    if isinstance(outcome, Appended):
        assert outcome.chain == chain(log)
        outcome = outcome._replace(chain="")
    return outcome, [segment.name for segments in written for segment in segments]


def test_a_lost_compare_and_set_reuses_segments_whose_offsets_stand(log):
    outcome, written = appended_after(log, lambda other: fill(other, P1, 4))
    assert (outcome, len(written)) == (Appended(0, 1), 1)
    assert written[0] in log.current().segments


def test_a_lost_compare_and_set_writes_again_what_has_moved(log):
    outcome, written = appended_after(log, lambda other: fill(other, P0, 4, producer_id=8))
    assert (outcome, len(written)) == (Appended(4, 5), 2)
    assert written[1] in log.current().segments
    assert written[0] not in log.current().segments
    assert values(log) == [b"0", b"1", b"2", b"3", b"0", b"1"]


def test_a_lost_compare_and_set_gives_up_where_the_role_has_changed(log):
    outcome, written = appended_after(log, lambda other: follow(other, P0, epoch=1))
    assert isinstance(outcome, FencedLeaderEpochException)
    assert len(written) == 1
    assert not log.current().segments


def test_a_segment_holds_partitions_of_one_replica_set(log):
    """Followers copy whole files, so each follower of a segment needs all of it."""
    lead(log, P2, epoch=0)
    send(log, request(P0, 2, replicas=(1, 2)), request(P1, 2, replicas=(1, 3)), request(P2, 2, replicas=(2, 1)))
    found = sorted(sorted(h.partition for h in segment.headers) for segment in log.current().segments.values())
    assert found == [[0, 2], [1]]
    assert last_version(log.root) == log.current().version == 3, "one commit"


def test_segments_are_split_at_the_segment_size(log):
    big = records(*(b"x" * 1000 for _ in range(100)))
    send(log, request(P0, 100), request(P1, 100), tables={P0: big, P1: big}, segment_bytes=30_000)
    state = log.current()
    batches = state.partition(P0).batches
    assert len(batches) in (4, 5)
    assert offsets(log) == offsets(log, P1) == list(range(100))
    assert [b.header.base_sequence for b in batches] == [b.base_offset for b in batches]
    entry = state.partition(P0).producers[7]
    assert entry.runs == (SequenceRun(0, 99, 0),), "one producer's batch, split, is still one run"
    for segment in state.segments.values():
        assert read_segment(log.root, segment.file) == segment
        assert sum(h.bytes for h in segment.headers) <= 30_000


def test_ap_06_of_a_send_that_was_replicated_in_part_only_the_rest_is_appended(log, root):
    """A follower leads with the first batches of a send, and the producer sends all of it again."""
    big, whole = records(*(b"%04d" % n + b"x" * 60 for n in range(60))), request(P0, 60, epoch=1)
    send(log, request(P0, 60), tables={P0: big}, segment_bytes=1024)
    sent = sorted(log.current().segments.values(), key=lambda segment: segment.headers[0].base_offset)
    leader = new_log(f"{root}/2")
    follow(leader, P0, epoch=0)
    copied = [copy_segment(log.root, segment, leader.root) for segment in sent[:2]]
    fetched = Fetched(copied, {P0: leader.refresh().partition(P0).log_end.chain}, {P0: 0})
    assert append_as_follower(leader, [fetched], "test") == [None]
    known = copied[-1].headers[-1].next_offset
    lead(leader, P0, epoch=1)
    fill(leader, P0, 2, epoch=1, producer_id=9)
    assert send(leader, whole, tables={P0: big}, segment_bytes=1024) == [Appended(0, 61, known=known)]
    assert values(leader) == [*big["value"].to_pylist()[:known], b"0", b"1", *big["value"].to_pylist()[known:]]
    assert send(leader, whole, tables={P0: big}) == [Appended(0, 61, duplicate=True, leader_epoch=1)]
    assert leader.current().partition(P0).producers[PRODUCER].runs == (
        SequenceRun(0, known - 1, 0), SequenceRun(known, 59, known + 2),
    )  # fmt: skip


def test_rows_of_a_segment_are_sorted_by_topic_partition_and_offset(log):
    send(log, request(P1, 3), request(P0, 3))
    (segment,) = log.current().segments.values()
    rows = read_records(log.root, segment.name).select(["topic", "partition", "offset"]).to_pylist()
    assert [(r["partition"], r["offset"]) for r in rows] == [(p, o) for p in (0, 1) for o in range(3)]


def test_offsets_that_were_given_twice_by_another_tool_are_named(log):
    fill(log, P0, 3)
    segment = write_segment(log.root, 1, log_rows(P0, 0, 2, epoch=5), [header(P0, 0, 1, epoch=5)])
    DeltaLog.open(log.root).commit({"why": "another tool"}, [segment.file])
    for handle in (log, ReplicaLog.open(log.root)):
        with pytest.raises(CorruptRecordException, match="begins at offset 0, but"):
            handle.refresh().partition(P0)


def test_a_partition_that_nobody_knows_is_empty(log):
    nobody = TopicIdPartition("nobody", 0)
    assert leo(log, nobody) == 0
    assert offsets(log, nobody) == []


def test_the_state_is_there_while_a_look_at_the_table_hangs(log, monkeypatch):
    """A heartbeat reports how far the log was read, even while the store hangs."""
    move = Hanging(lambda *_: [])
    monkeypatch.setattr(DeltaLog, "move", move)
    poll = in_background(log.refresh)
    assert move.is_entered.wait(30)
    assert ends(in_background(log.current))
    move.let_go()
    assert ends(poll)
