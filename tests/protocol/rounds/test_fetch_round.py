"""The order of a follower's reads, decisions and writes, and the effect of an error or of an outside change at each
step. Without tables and Spark."""

import dataclasses

import pytest

from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.fetch_state import FetchStates, FollowerState, InitialFetchState
from lakelog.replication.protocol.leader_epoch import assign
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import (
    DIVERGED,
    LOST_END,
    AppendFetched,
    CopyBatches,
    FetchedHeaders,
    FetchHeaders,
    FetchLimits,
    FetchRound,
    FollowHighWatermarks,
    LeaderBatches,
    RaiseLogStarts,
    ReadFollowedLogs,
    ReadLeaderBatches,
    ReadLeaderRows,
    ReportDiverged,
    Throttled,
    ThrottleFetch,
    TruncateLogs,
)
from tests.clock import Clock
from tests.protocol.chains import chained_log, ends_of, header
from tests.protocol.rounds.driven import Rounds

P0, P1 = TopicIdPartition("id", 0), TopicIdPartition("id", 1)
READS = [ReadLeaderRows, ReadFollowedLogs]
READ = {*READS, ReadLeaderBatches, FetchHeaders}
FETCH = [ThrottleFetch, FetchHeaders, CopyBatches]
TOLD = [FollowHighWatermarks, PublishReplicas]
A, B, C = header(0, 3), header(4, 6), header(7, 9)
OTHER_B = dataclasses.replace(B, digest="other")
BACKOFF_MS = 1000


class World:
    """Broker 1 leads at epoch 0, broker 2 follows, and its rounds' steps change its logs. `then`: what happens besides,
    once a step of that type is carried out. `answers`: given instead of what the logs say."""

    def __init__(self, own=(), leader=(A, B), partitions=(P0,), high_watermark=7):
        self.clock, self.rounds = Clock(), Rounds(self.answer)
        self.states = FetchStates(self.clock)
        self.states.assign({p: InitialFetchState("t", 1, 0, 0) for p in partitions})
        self.own = {p: chained_log(*own, role=Role(0, FOLLOWER)) for p in (P0, P1)}
        self.leader = chained_log(*leader, role=Role(0, LEADER))
        self.high_watermark, self.leader_epoch = high_watermark, 0
        self.then, self.answers, self.faults, self.told, self.streamed = {}, {}, {}, [], 0
        self.read = 0
        self.round = FetchRound(self.states, FetchLimits(1 << 20, 1 << 20, BACKOFF_MS))

    @property
    def state(self):
        return self.states.all().get(P0)

    @property
    def steps(self):
        return self.rounds.kinds

    def run(self):
        self.read = self.streamed
        return self.rounds.run(self.round.run())

    def write(self, batch):
        """Appends to the leader's log."""
        self.leader.add(linked(batch, self.leader.log_end.chain), f"segment-{batch.base_offset}")

    def row(self, partition):
        log = self.leader
        return ReplicaStatus(
            "t", "id", partition.partition, 1, 1, self.leader_epoch, LEADER_ROLE, "Fetching", log.log_start_offset,
            log.log_end_offset, self.high_watermark, assign(log.lineage, self.leader_epoch, *log.log_end), None, 1,
            chain=log.log_end.chain,
        )  # fmt: skip

    def answer(self, step):
        answer = self.reads(step) if type(step) in READ else self.writes(step)
        if type(step) in self.then:
            self.then.pop(type(step))()
        return self.answers.get(type(step), answer)

    def reads(self, step):
        match step:
            case ReadLeaderRows(partitions):
                return {p: self.row(p) for p in partitions}
            case ReadFollowedLogs(partitions):
                return OwnLogs({p: self.own[p].copy() for p in partitions}, dict(self.faults))
            case ReadLeaderBatches(offsets, _):
                return LeaderBatches(
                    {p: [e for e in ends_of(self.leader) if e.offset > o] for p, o in offsets.items()}, {}
                )
            case FetchHeaders(log_ends, lagging, _):
                new, self.streamed = self.leader.batches[self.read :], len(self.leader.batches)
                found = [self.fetched(p, b) for p in log_ends for b in (self.leader.batches if p in lagging else new)]
                return FetchedHeaders(found, {}, False)

    def writes(self, step):
        match step:
            case ThrottleFetch():
                return Throttled()
            case AppendFetched(plan, _):
                for batch in plan.batches:
                    found = next(b for b in self.leader.batches if b.segment == batch.segment)
                    self.own[batch.topic_id_partition].add(found.header, batch.segment)
            case TruncateLogs(truncations):
                for partition, truncation in truncations.items():
                    log = self.own[partition]
                    log.drop([b.segment for b in log.batches if b.header.next_offset > truncation.offset])
            case PublishReplicas(why):
                self.told.append((why, {p: (s.shown_state, s.error) for p, s in self.states.all().items()}))
        return {}

    def fetched(self, partition, placed):
        return FetchedBatch.of(placed.header, placed.segment, 10)._replace(topic_id_partition=partition)


def truncating(*after):
    """The steps of a partition that is new on this broker, up to the fetch."""
    return [*READS, *after, ReadFollowedLogs, FollowHighWatermarks, PublishReplicas]


def test_ft_02_ft_09_a_round_truncates_then_fetches_then_publishes():
    world = World()
    assert world.run() is False
    assert world.steps == [*truncating(), *FETCH, AppendFetched, *TOLD]
    assert world.own[P0].log_end == world.leader.log_end
    state = world.state
    assert (state.shown_state, state.fetch_offset, state.lagging) == (FollowerState.FETCHING, 7, False)
    assert world.run() is False
    assert world.steps == [*READS, *FETCH, *TOLD], "with nothing new nothing is appended"


def test_ft_03_a_fetcher_without_partitions_reads_and_writes_nothing():
    world = World(partitions=())
    assert (world.run(), world.steps) == (False, [])


def test_hw_03_tr_05_the_hw_follows_the_leaders_and_the_own_log_end():
    world = World(high_watermark=5)
    world.run()
    finished, fetched = (step for step in world.rounds.steps if isinstance(step, FollowHighWatermarks))
    assert finished == FollowHighWatermarks({P0: 0}), "the follower's own HW, and no more than its log"
    assert fetched == FollowHighWatermarks({P0: 7}, {P0: 5})


def test_dr_02_the_log_start_follows_after_the_records():
    world = World()
    world.run()
    world.leader.start_at(4)
    world.run()
    assert world.steps == [*READS, *FETCH, FollowHighWatermarks, RaiseLogStarts, PublishReplicas]


@pytest.mark.parametrize("is_known", [True, False], ids=["it had diverged before", "it is found out now"])
def test_tr_08_under_a_new_epoch_a_log_is_truncated_by_the_leaders_batches(is_known):
    world = World(own=(A, B))
    world.run()
    world.own[P0] = chained_log(A, OTHER_B, role=Role(0, FOLLOWER))
    if is_known:
        world.run()
        assert world.state.error == LOST_END
    world.leader_epoch = 1
    world.states.assign({P0: InitialFetchState("t", 1, 1, 7)})
    world.run()
    assert world.steps == [
        *READS, ReadLeaderBatches, ReadLeaderRows, TruncateLogs, ReadFollowedLogs, *TOLD, *FETCH, AppendFetched, *TOLD
    ]  # fmt: skip
    (truncation,) = next(step for step in world.rounds.steps if isinstance(step, TruncateLogs)).truncations.values()
    assert (truncation.offset, world.own[P0].log_end) == (4, world.leader.log_end)


def test_tr_08_a_divergence_is_reported_and_the_row_does_not_count():
    world = World(own=(A, B))
    world.run()
    world.own[P0] = chained_log(A, OTHER_B, role=Role(0, FOLLOWER))
    world.told.clear()
    assert world.run() is False, "another round at once would find the same"
    assert world.steps[: len(READS) + 2] == [*READS, ReportDiverged, PublishReplicas]
    assert world.told[0] == ("diverged", {P0: (FollowerState.TRUNCATING, DIVERGED)})
    assert TruncateLogs not in world.steps, "the leader has lost records of its own epoch"
    assert (world.state.shown_state, world.state.error) == (FollowerState.DELAYED, LOST_END)


def test_tr_08_after_a_batch_of_another_chain_the_next_round_reads_the_leaders_batches():
    world = World(own=(A,), leader=(A,))
    world.run()
    other = chained_log(header(0, 3, digest="other"), B)
    world.answers[FetchHeaders] = FetchedHeaders([world.fetched(P0, other.batches[1])], {}, False)
    assert world.run() is True
    assert world.steps == [*READS, ThrottleFetch, FetchHeaders, ReportDiverged, PublishReplicas, CopyBatches, *TOLD]
    assert (world.state.shown_state, world.state.diverged) == (FollowerState.TRUNCATING, True)


def test_ft_07_a_batch_that_the_leader_has_truncated_since_is_not_appended():
    """The stream brought it late. By now the leader's lineage has another epoch there."""
    world = World(own=(A,), leader=(A,))
    world.run()
    late = world.fetched(P0, chained_log(A, dataclasses.replace(B, leader_epoch=5)).batches[1])
    world.answers[FetchHeaders] = FetchedHeaders([late], {}, False)
    world.run()
    assert AppendFetched not in world.steps
    assert world.state.shown_state == FollowerState.FETCHING


@pytest.mark.parametrize("is_told", [True, False], ids=["the tail says so", "a batch begins above the log end"])
def test_ft_10_a_gap_in_the_tail_is_closed_from_the_snapshot_at_once(is_told):
    world = World(own=(A,), leader=(A,))
    world.run()
    world.write(B)
    above = world.fetched(P0, world.leader.batches[1])._replace(base_offset=5)
    world.answers[FetchHeaders] = FetchedHeaders([] if is_told else [above], {}, is_told)
    assert (world.run(), world.state.lagging, world.own[P0].log_end_offset) == (True, True, 4)
    assert next(step for step in world.rounds.steps if isinstance(step, FetchHeaders)).lagging == frozenset()
    world.answers.clear()
    assert (world.run(), world.state.lagging, world.own[P0].log_end_offset) == (False, False, 7)
    assert next(step for step in world.rounds.steps if isinstance(step, FetchHeaders)).lagging == {P0}


def test_ft_15_a_gap_that_the_snapshot_does_not_close_delays_the_partition():
    world = World(own=(A,), leader=(A,))
    last = chained_log(A, B).batches[1]
    world.answers[FetchHeaders] = FetchedHeaders([world.fetched(P0, last)._replace(base_offset=5)], {}, False)
    world.write(B)
    assert world.run() is False
    assert world.state.error == "OffsetOutOfRangeException: the leader has nothing at offset 4"


@pytest.mark.parametrize("step", [FetchHeaders, CopyBatches], ids=lambda step: step.__name__)
def test_ft_12_a_failed_read_or_copy_delays_its_partition_and_no_other(step):
    world = World(partitions=(P0, P1))
    world.run()
    world.write(C)
    batches = [world.fetched(p, world.leader.batches[-1]) for p in (P0, P1)]
    failed = {P1: KafkaStorageException("gone")}
    world.answers[step] = FetchedHeaders(batches, failed, False) if step is FetchHeaders else failed
    world.run()
    assert (world.state.error, world.states.all().get(P1).error) == (None, "KafkaStorageException: gone")
    assert (world.own[P0].log_end_offset, world.own[P1].log_end_offset) == (10, 7)


def test_ft_12_ol_01_a_broken_file_of_our_own_delays_its_partition_also_when_the_truncation_finds_it():
    world = World(partitions=(P0, P1))
    world.then[ReadFollowedLogs] = lambda: world.faults.update({P1: "flipped"})
    world.run()
    assert (world.own[P0].log_end_offset, world.own[P1].log_end_offset) == (7, 0)
    assert world.states.all().get(P1).error == "CorruptRecordException: flipped"
    truncated = next(step for step in world.rounds.steps if isinstance(step, FollowHighWatermarks))
    assert truncated.log_ends == {P0: 0}


def test_th_01_a_partition_delayed_by_a_quota_has_no_error():
    world = World()
    world.answers[ThrottleFetch] = Throttled({P0: 2.0})
    world.run()
    assert (AppendFetched in world.steps, world.state.error) == (False, None)
    assert world.state.delayed_until == world.clock.now + 2


@pytest.mark.parametrize("step", [*READS, *FETCH, AppendFetched], ids=lambda step: step.__name__)
@pytest.mark.parametrize("error", [KafkaStorageException("503"), OSError("reset")], ids=repr)
def test_ft_06_an_error_of_a_round_delays_all_partitions_and_is_published(step, error):
    world = World(partitions=(P0, P1))
    world.rounds.fails = {step: error}
    assert world.run() is False
    assert world.steps[-2:] == [step, PublishReplicas]
    said = f"{type(error).__name__}: {error}"
    assert world.told[-1] == ("delayed", dict.fromkeys((P0, P1), (FollowerState.DELAYED, said)))
    world.rounds.fails = {}
    world.clock.now += BACKOFF_MS / 1000
    world.run()
    assert world.own[P0].log_end == world.own[P1].log_end == world.leader.log_end
    assert world.state.error is None


def test_ft_06_an_error_that_cannot_be_published_is_published_later():
    world = World()
    world.rounds.fails = {ReadLeaderRows: KafkaStorageException("503"), PublishReplicas: KafkaStorageException("503")}
    assert world.run() is False
    assert world.state.shown_state == FollowerState.DELAYED


@pytest.mark.parametrize("step", [ReadFollowedLogs, AppendFetched, PublishReplicas], ids=lambda step: step.__name__)
def test_bc_01_a_newer_process_ends_the_round_which_writes_nothing_more(step):
    world = World()
    world.rounds.fails = {step: StaleBrokerEpochException("fenced")}
    with pytest.raises(StaleBrokerEpochException):
        world.run()
    assert (world.steps[-1], world.states.is_held) == (step, False)


WRITES = {TruncateLogs, AppendFetched, RaiseLogStarts, FollowHighWatermarks, PublishReplicas, ReportDiverged}


@pytest.mark.parametrize("step", [*READS, *FETCH], ids=lambda step: step.__name__)
@pytest.mark.parametrize("left", [(), (P1,), (P0, P1)], ids=["none is left", "another one", "it is given back"])
def test_fm_07_fm_09_a_round_writes_no_decision_made_before_a_removal(step, left):
    """Also if it is given back meanwhile: it was decided on the role before. What is left is fetched at once."""
    world = World(partitions=(P0, P1))
    world.run()
    world.write(C)

    def take_away():
        world.states.remove([P0, P1])
        world.states.assign({p: InitialFetchState("t", 1, 0, 7) for p in left})

    world.then[step] = take_away
    assert world.run() is False
    after = world.steps[world.steps.index(step) + 1 :]
    read = [FetchHeaders] if step is ThrottleFetch else []  # nothing is written in between
    assert after == [*read, *([*truncating(), *FETCH, AppendFetched, *TOLD] if left else [])]
    assert {p: (s.error, world.own[p].log_end_offset) for p, s in world.states.all().items()} == dict.fromkeys(
        left, (None, 10)
    )


@pytest.mark.parametrize("step", [*READS, *FETCH], ids=lambda step: step.__name__)
def test_fm_07_headers_are_kept_when_another_partition_is_removed(step):
    """The stream does not bring it again, and may bring nothing else for long."""
    world = World(partitions=(P0, P1))
    world.run()
    world.write(C)
    world.then[step] = lambda: world.states.remove([P1])
    assert (world.run(), world.own[P0].log_end_offset) == (False, 10)
    headers = [s for s in world.rounds.steps if isinstance(s, FetchHeaders)]
    assert {s.lagging for s in headers} == {frozenset()}, "without the snapshot"


def test_ol_01_batches_committed_while_the_leader_is_offline_are_fetched_later():
    world = World()
    world.run()
    row = dataclasses.replace(world.row(P0), state=FollowerState.OFFLINE, error="broken")
    world.write(C)
    world.answers[ReadLeaderRows] = {P0: row}
    world.run()
    world.answers.clear()
    world.streamed = len(world.leader.batches)
    world.run()
    assert world.own[P0].log_end_offset == 10


@pytest.mark.parametrize("step", [ReadLeaderRows, ReadLeaderBatches], ids=lambda step: step.__name__)
def test_fm_10_tr_08_a_partition_that_failed_under_one_epoch_is_fetched_under_the_next(step):
    """The leader's row or log has the earlier epoch. A delay for that does not hold in the next epoch."""
    world = World(own=(A, B))
    world.run()
    world.own[P0] = chained_log(A, OTHER_B, role=Role(0, FOLLOWER))

    def follow_anew():
        world.states.remove([P0])
        world.states.assign({P0: InitialFetchState("t", 1, 1, 7)})

    world.leader_epoch = 1 if step is ReadLeaderRows else 0
    world.then[step] = follow_anew
    world.run()
    assert world.state.leader_epoch == 1
    assert world.state.delayed_until in (None, world.clock.now + BACKOFF_MS / 1000)
    world.leader_epoch = 1
    world.clock.now += BACKOFF_MS / 1000
    world.run()
    assert world.own[P0].log_end == world.leader.log_end


@pytest.mark.parametrize("step", [*READS, *FETCH], ids=lambda step: step.__name__)
def test_fs_02_a_partition_that_is_assigned_meanwhile_comes_with_the_next_round(step):
    world = World()
    world.run()
    world.write(C)
    world.then[step] = lambda: world.states.assign({P1: InitialFetchState("t", 1, 0, 0)})
    world.run()
    assert (world.own[P0].log_end_offset, world.own[P1].log_end_offset) == (10, 0)
    assert world.states.all().get(P1).shown_state == FollowerState.TRUNCATING
    world.run()
    assert world.own[P1].log_end_offset == 10


def test_fm_07_a_removal_waits_while_a_round_writes():
    world, held = World(), {}
    for step in (*READS, *FETCH, AppendFetched, PublishReplicas):
        world.then[step] = lambda step=step: held.setdefault(step, world.states.is_held)
    world.run()
    assert held == {
        ReadLeaderRows: False, ReadFollowedLogs: False, ThrottleFetch: False, FetchHeaders: False, CopyBatches: False,
        AppendFetched: True, PublishReplicas: True,
    }  # fmt: skip
    assert not world.states.is_held
