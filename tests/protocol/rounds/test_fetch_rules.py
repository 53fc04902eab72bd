"""A follower's round: truncation, then append. Broker 2 follows broker 1 at leader epoch 6."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import FencedLeaderEpochException, OffsetOutOfRangeException
from lakelog.replication.protocol.append import check_follower_append
from lakelog.replication.protocol.append_plan import FetchedBatch, plan_appends
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.partition_log import (
    FOLLOWER,
    LEADER,
    NO_ROLE,
    STOPPED,
    PartitionLog,
    PlacedBatch,
    Role,
)
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import (
    AdvanceFetchOffsets,
    AppendFetched,
    FinishTruncation,
    RaiseLogStarts,
    TruncateLogs,
    append_fetched,
    may_append,
    maybe_truncate,
)
from lakelog.replication.protocol.truncation import Truncation
from tests.protocol.chains import GENESIS, chained, one_by_one

P, Q = TopicIdPartition("id", 0), TopicIdPartition("id", 1)
# Epoch 5 wrote 0 to 7, epoch 6 writes from 8 on; the follower has 8 and what follows under epoch 5. A record a batch.
BATCHES = chained(*one_by_one(8, epoch=5), *one_by_one(20, 8, epoch=6))
STRAY = chained(*one_by_one(13, 8, epoch=5), previous=BATCHES[7].chain)
ENDS = [LogEnd(0, GENESIS), *(LogEnd(batch.next_offset, batch.chain) for batch in BATCHES)]
LEADER_ROW = ReplicaStatus(
    "t", "id", 0, 1, 1, 6, LEADER_ROLE, "Fetching", 0, 20, 15,
    (EpochEntry(5, 0, GENESIS), EpochEntry(6, 8, ENDS[8].chain)), None, 1, chain=ENDS[20].chain,
)  # fmt: skip


def started_at(offset):
    """The leader's row when its log starts at this offset."""
    epoch = 5 if offset < 8 else 6
    epochs = (EpochEntry(epoch, *ENDS[offset]), *(entry for entry in LEADER_ROW.epochs if entry.start_offset > offset))
    return {"log_start_offset": offset, "epochs": epochs}


def log_of(end, batches=(*BATCHES[:8], *STRAY)):
    log = PartitionLog(role=Role(6, FOLLOWER), start_chain=GENESIS)
    log.place(PlacedBatch(batch.base_offset, batch, "segment") for batch in batches[:end])
    return log


TRUNCATES = [TruncateLogs({P: Truncation(6, 8)}), FinishTruncation((P,)), PublishReplicas("truncated")]
AGREES = [FinishTruncation((P,)), PublishReplicas("truncated")]


@pytest.mark.parametrize(
    ("truncating", "fetching", "end", "row", "steps"),
    [
        pytest.param([P], [], 10, {}, TRUNCATES, id="tr_06: it has what the leader has not"),
        pytest.param([P], [], 8, {}, AGREES, id="it agrees: nothing is truncated, and that is told"),
        pytest.param([P], [], 0, {}, AGREES, id="an empty log agrees"),
        pytest.param([P], [], 10, None, [], id="ft_14: without the leader's row it stays as it is"),
        pytest.param([], [P], 10, {}, [], id="bl_06: what is fetched is not looked at again"),
        pytest.param([], [P], 8, started_at(8), [], id="the leader's log begins where it ends"),
        pytest.param(
            [],
            [P],
            7,
            started_at(8),
            [TruncateLogs({P: Truncation(6, 0, ENDS[8])}), *AGREES],
            id="tr_07: the leader's retention has overtaken it",
        ),
        pytest.param([], [P], 7, None, [], id="tr_07: nor without the leader's row"),
        pytest.param([], [], 10, {}, [], id="nothing is followed"),
    ],
)
def test_ft_02_tr_06_tr_07_the_truncation_comes_before_anything_is_fetched(truncating, fetching, end, row, steps):
    leaders = {} if row is None else {P: replace(LEADER_ROW, **row)}
    assert maybe_truncate(truncating, fetching, {P: log_of(end)}, leaders, {}) == steps


def test_tr_06_partitions_are_truncated_in_one_commit_and_those_that_agree_are_not_in_it():
    third = TopicIdPartition("id", 2)
    logs = {P: log_of(10), Q: log_of(8), third: log_of(12)}
    leaders = {p: replace(LEADER_ROW, partition=p.partition) for p in logs}
    assert maybe_truncate([third, Q, P], [], logs, leaders, {}) == [
        TruncateLogs({P: Truncation(6, 8), third: Truncation(6, 8)}),
        FinishTruncation((P, Q, third)),
        PublishReplicas("truncated"),
    ]


def test_tr_06_an_empty_log_may_have_to_start_elsewhere_also_if_nothing_is_truncated():
    steps = maybe_truncate([P], [], {P: log_of(0)}, {P: replace(LEADER_ROW, **started_at(8))}, {})
    assert steps[0] == TruncateLogs({P: Truncation(6, 0, ENDS[8])})


def test_tr_08_a_diverged_partition_is_truncated_at_the_last_common_batch():
    """The two logs differ from 3 on under the same epochs. Only the leader's batches show where."""
    other = log_of(7, chained(*one_by_one(3, epoch=5), *one_by_one(8, 3, epoch=5, digest="other")))
    assert maybe_truncate([P], [], {P: other}, {P: LEADER_ROW}, {}) == AGREES, "the epochs do not tell"
    truncation = [TruncateLogs({P: Truncation(6, 3)}), FinishTruncation((P,)), PublishReplicas("truncated")]
    assert maybe_truncate([P], [], {P: other}, {P: LEADER_ROW}, {P: ENDS[1:]}) == truncation


def fetched(base, last, epoch=6, partition=P):
    return FetchedBatch(
        partition, base, last, epoch, f"segment-{base}", 100, 0, ENDS[base].chain, ENDS[last + 1].chain
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "is_kept"),
    [
        (fetched(0, 7, 5), True),
        (fetched(3, 4, 5), True),
        (fetched(8, 19), True),
        (fetched(0, 8, 5), False),
        (fetched(8, 9, 5), False),
        (fetched(7, 9), False),
        (fetched(8, 9, 7), False),
    ],
    ids=str,
)
def test_ft_07_ep_01_only_what_the_leaders_history_still_has_is_appended(batch, is_kept):
    assert may_append(batch, LEADER_ROW, 0) is is_kept


@pytest.mark.parametrize(("fetch_offset", "is_kept"), [(0, False), (7, False), (8, True), (10, True)])
def test_ft_07_dr_01_the_lineage_below_the_fetch_offset_is_not_checked(fetch_offset, is_kept):
    """The leader's history begins at 8: retention may have taken the beginning of a batch whose end is wanted."""
    leader = replace(LEADER_ROW, log_start_offset=8, epochs=LEADER_ROW.epochs[1:])
    assert may_append(fetched(3, 12), leader, fetch_offset) is is_kept


def test_ft_09_hw_03_the_log_comes_first_then_the_hw_then_the_row():
    leaders = {P: LEADER_ROW, Q: replace(LEADER_ROW, partition=1, high_watermark=3, leader_epoch=9)}
    plan = plan_appends([fetched(8, 9)], {P: ENDS[8], Q: ENDS[0]})
    assert append_fetched(plan, leaders, {P: log_of(8), Q: log_of(0)}) == [
        AppendFetched(plan, {P: 6}),
        AdvanceFetchOffsets({P: 10, Q: 0}, {P: 15, Q: 3}),
        PublishReplicas("fetched", may_wait=True),
    ]


def test_ft_09_a_follower_takes_over_a_new_hw_without_records():
    assert append_fetched(plan_appends([], {P: ENDS[8]}), {P: LEADER_ROW}, {P: log_of(8)}) == [
        AdvanceFetchOffsets({P: 8}, {P: 15}),
        PublishReplicas("fetched", may_wait=True),
    ]


@pytest.mark.parametrize(
    ("log_start", "raised"),
    [
        pytest.param(0, [], id="where it is"),
        pytest.param(5, [RaiseLogStarts({P: (6, 5)})], id="as the leader's"),
        pytest.param(12, [RaiseLogStarts({P: (6, 10)})], id="as far as the log goes once this round has appended"),
    ],
)
def test_dr_02_the_log_start_follows_the_leaders_before_the_row_is_published(log_start, raised):
    plan = plan_appends([fetched(8, 9)], {P: ENDS[8]})
    steps = append_fetched(plan, {P: replace(LEADER_ROW, log_start_offset=log_start)}, {P: log_of(8)})
    assert steps == [
        AppendFetched(plan, {P: 6}),
        AdvanceFetchOffsets({P: 10}, {P: 15}),
        *raised,
        PublishReplicas("fetched", may_wait=True),
    ]


def test_ap_03_ft_10_a_follower_appends_in_its_role_and_at_its_log_end():
    check_follower_append(log_of(8), 6, ENDS[8].chain, "flights-0")


@pytest.mark.parametrize("role", [Role(7, FOLLOWER), Role(6, LEADER), Role(6, STOPPED), Role(5, FOLLOWER), NO_ROLE])
@pytest.mark.parametrize("end", [8, 9])
def test_ap_03_fm_09_nothing_is_appended_in_another_role(role, end):
    log = log_of(end)
    log.role = role
    with pytest.raises(FencedLeaderEpochException, match=r"flights-0: nothing appended: .* leader epoch 6"):
        check_follower_append(log, 6, ENDS[8].chain, "flights-0")


@pytest.mark.parametrize("end", [0, 7, 9])
def test_ft_10_nothing_is_appended_elsewhere_than_at_the_log_end(end):
    text = f"flights-0: the records fetched follow the chain {ENDS[8].chain}, but the log ends at .*offset={end}"
    with pytest.raises(OffsetOutOfRangeException, match=text):
        check_follower_append(log_of(end), 6, ENDS[8].chain, "flights-0")


def test_ft_10_tr_08_nothing_is_appended_to_other_records_that_end_at_the_same_offset():
    log = log_of(8, chained(*one_by_one(8, epoch=5, digest="other")))
    with pytest.raises(OffsetOutOfRangeException, match="follow the chain"):
        check_follower_append(log, 6, ENDS[8].chain, "flights-0")
