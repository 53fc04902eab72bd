"""Single rounds on real logs: a leader (broker 1) and a follower (broker 2)."""

import dataclasses
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakelog.replication.config import Config
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.fetch_state import FollowerState, InitialFetchState
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica_rows import replica_row
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.fetch_round import FetchRound, ReadLeaderRows
from lakelog.replication.server import follower_writes
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from lakelog.replication.storage.delta.data_file_name import leader_of
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import append_as_follower
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.hanging import Hanging, ends, in_background
from tests.server.quota_cache import QuotaCache
from tests.storage.logs import (
    P0,
    P1,
    TOPIC,
    chain,
    epochs,
    fill,
    follow,
    lead,
    leo,
    new_log,
    offsets,
    request,
    send,
    start_at,
    values,
)


class World:
    """Leader and follower of two partitions, both under leader epoch 0."""

    def __init__(self, root, followed=(P0, P1), quotas=None, clock=time.monotonic, looks=True, **config):
        self._looks = looks  # otherwise fetches read the leader's snapshot alone
        self.source = StorageRoot.of(root).child("broker-1")
        self.leader = new_log(self.source.child("log"), P0, P1)
        self.table = ReplicaTable.create(self.source)
        self.follower = ReplicaLog.create(StorageRoot.of(root).child("broker-2").child("log"))
        follow(self.follower, P0, P1, epoch=0)
        self.progress, self.truncated, self.divergences, self.told = [], [], [], []
        self.states = SharedFetchStates(clock)
        self.states.assign({p: InitialFetchState(TOPIC, 1, 0, 0) for p in followed})
        read = ReplicaTable.open(self.source)
        context = FetchContext(
            None, Config.from_properties(config), 2, self.follower, 1, self.source,
            lambda: read, self.follow_high_watermarks, self.divergences.append,
            FollowerWrites(self.follower, "broker-2", self.tell), PausePoint(),
            quotas or ReplicationQuotas(2, QuotaCache()), dict,
        )  # fmt: skip
        self.round = FetchRunner(context, self.states)
        self.publish()

    def publish(self, epoch=0, high_watermark=0):
        """Publishes the leader's rows."""
        state = self.leader.refresh()
        logs = {p: state.partition(p) for p in (P0, P1)}
        rows = [
            ReplicaStatus(
                TOPIC, p.topic_id, p.partition, 1, 1, epoch, "leader", "Fetching", log.log_start_offset,
                log.log_end_offset, high_watermark, log.lineage, None, state.version, chain=log.log_end.chain,
            )
            for p, log in logs.items()
        ]  # fmt: skip
        self.table.publish(rows, "test")

    def follow_high_watermarks(self, step):
        """Fetches bring the leaders' HWs. After a truncation there are none."""
        if step.leader_high_watermarks:
            self.progress.append(step.leader_high_watermarks)
        else:
            self.truncated.extend(step.log_ends)

    def tell(self, why):
        """Publishes the follower's rows. `told` keeps all rows that it ever published."""
        state = self.follower.current()
        self.told.append((why, {p: self.row(p, state) for p in self.states.all()}))

    def row(self, partition, state):
        registration = PartitionRegistration(
            TOPIC,
            partition.topic_id,
            partition.partition,
            (1, 2),
            1,
            self.states.all().get(partition).leader_epoch,
            (1, 2),
        )
        hosted = HostedPartition(registration, 0)
        return replica_row(
            2, 20, hosted, state.known(partition), self.states.all().get(partition), None, state.version
        )  # fmt: skip

    def begin_after(self):
        """Fetches begin anew, after all that the leader has now."""
        self.round._headers.begin()

    def fetch(self):
        if self._looks:
            self.round.is_round_due()
        return self.round.run()

    def files(self, log):
        return set(log.refresh().segments)


@pytest.fixture
def world(root):
    return World(root)


def test_ft_09_a_whole_segment_is_copied_byte_for_byte(world):
    send(world.leader, request(P0, 10), request(P1, 5))
    world.fetch()
    (name,), (copy,) = world.files(world.leader), world.files(world.follower)
    assert world.follower.root.read(copy) == world.leader.root.read(name)
    assert (copy != name, leader_of(copy)) == (True, leader_of(name)), "no name of the leader's choice"
    assert (leo(world.follower, P0), leo(world.follower, P1)) == (10, 5)


def test_ft_09_the_copy_is_committed_with_the_statistics_of_the_original(world):
    send(world.leader, request(P0, 10))
    world.fetch()
    ((original,), (copy,)) = (log.refresh().segments.values() for log in (world.leader, world.follower))
    assert (copy.headers, copy.file.stats) == (original.headers, original.file.stats)
    rows = DeltaTable(world.follower.root.uri).to_pyarrow_table(filters=[("offset", ">=", 4)])
    assert rows.num_rows == 6


def test_ft_04_only_followed_rows_of_a_segment_are_copied(root):
    world = World(root, followed=[P0])
    send(world.leader, request(P0, 10), request(P1, 5))
    world.fetch()
    assert offsets(world.follower, P0) == list(range(10))
    assert leo(world.follower, P1) == 0
    ((original,), (copy,)) = (log.refresh().segments.values() for log in (world.leader, world.follower))
    assert copy.headers == original.headers[:1]


def test_ft_10_batches_below_the_leo_are_skipped(world):
    fill(world.leader, P0, 10)
    world.begin_after()
    fill(world.leader, P0, 1)
    world.round.is_round_due()
    found = [*world.round._headers._found]
    assert found
    world.states.fell_behind([P0])
    world.fetch()
    version = world.follower.refresh().version
    world.round._headers._found = [*found]
    world.fetch()
    assert world.follower.refresh().version == version
    assert offsets(world.follower) == list(range(11))


def test_ft_10_a_batch_that_begins_below_the_log_end_is_appended_from_it(world):
    fill(world.leader, P0, 4)
    world.fetch()
    (copied,) = world.files(world.follower)
    fill(world.leader, P0, 6)
    late = ReplicaLog.open(world.leader.root)
    assert leo(late) == 10
    world.fetch()
    assert values(world.follower) == values(world.leader)
    assert copied in world.files(world.follower)


def test_a_new_replica_begins_with_the_snapshot_of_its_leader(world):
    fill(world.leader, P0, 3, 4, 5)
    world.begin_after()
    world.fetch()
    assert offsets(world.follower) == list(range(12))
    assert not world.states.all().get(P0).lagging


def test_ft_10_a_gap_is_closed_from_the_snapshot(world):
    world.fetch()
    fill(world.leader, P0, 3)
    world.begin_after()
    fill(world.leader, P0, 4)
    assert world.fetch() is True, "there is more to be had at once"
    assert leo(world.follower) == 0, "a log has no holes"
    world.fetch()
    assert offsets(world.follower) == list(range(7))


def test_a_snapshot_is_read_within_the_bounds_of_a_fetch(root):
    world = World(root, **{"replica.fetch.response.max.bytes": 1})
    fill(world.leader, P0, 2, 2, 2)
    world.begin_after()
    ends = []
    while world.fetch():
        ends.append(leo(world.follower))
    assert [*ends, leo(world.follower)] == [2, 4, 6]


def test_ft_14_a_follower_waits_for_a_leader_that_has_not_taken_up_its_epoch(world):
    world.states.assign({P0: InitialFetchState(TOPIC, 1, 1, 0)})
    fill(world.leader, P0, 3)
    world.fetch()
    assert leo(world.follower) == 0
    lead(world.leader, P0, epoch=1)
    follow(world.follower, P0, epoch=1)
    world.publish(epoch=1)
    world.fetch()
    assert offsets(world.follower) == [0, 1, 2]


def test_a_batch_that_the_leaders_lineage_does_not_hold_is_not_appended(world):
    """A fetch may bring batches that the leader has truncated since."""
    fill(world.leader, P0, 3)
    row = world.table.replicas[P0]
    forged = dataclasses.replace(row, epochs=(EpochEntry(5, 0, genesis(P0)),))
    world.table.publish([forged, world.table.replicas[P1]], "test")
    world.states.truncated(P0, 0)
    world.states.caught_up(P0)
    world.fetch()
    assert leo(world.follower) == 0


def test_tr_06_a_follower_is_truncated_to_its_leaders_lineage_before_it_fetches(world):
    fill(world.leader, P0, 4)
    world.fetch()
    stray = ReplicaLog.open(world.follower.root)
    lead(stray, P0, epoch=1)
    fill(stray, P0, 3, epoch=1, producer_id=9)
    lead(world.leader, P0, epoch=2)
    fill(world.leader, P0, 2, epoch=2)
    follow(world.follower, P0, epoch=2)
    world.states.assign({P0: InitialFetchState(TOPIC, 1, 2, 7)})
    world.publish(epoch=2)
    world.fetch()
    assert values(world.follower) == values(world.leader)
    assert epochs(world.follower) == [(0, 0), (2, 4)]
    assert chain(world.follower) == chain(world.leader)


def test_ap_03_an_empty_replica_begins_at_its_leaders_log_start(root):
    world = World(root)
    start_at(world.leader, P0, 100)
    fill(world.leader, P0, 5)
    world.publish()
    world.fetch()
    assert offsets(world.follower) == [100, 101, 102, 103, 104]


def test_ft_12_a_broken_segment_delays_its_partition_and_no_other(world, monkeypatch):
    world.fetch()
    fill(world.leader, P0, 3)
    (broken,) = world.files(world.leader)
    fill(world.leader, P1, 5)
    copy = SegmentCopier.copy
    monkeypatch.setattr(
        SegmentCopier, "copy", lambda copier, plan, known: world.leader.root.delete(broken) or copy(copier, plan, known)
    )
    world.fetch()
    assert leo(world.follower, P1) == 5
    assert leo(world.follower, P0) == 0
    state = world.states.all().get(P0)
    assert state.shown_state == FollowerState.DELAYED
    assert "CorruptRecordException" in state.error
    assert broken in state.error


def test_ft_12_a_broken_segment_in_the_snapshot_delays_its_partition_and_no_other(world):
    """A new follower reads the leader's snapshot. By its statistics the file can only hold flights-0."""
    fill(world.leader, P0, 3)
    (broken,) = world.files(world.leader)
    fill(world.leader, P1, 5)
    world.leader.root.delete(broken)
    world.round.run()
    assert (leo(world.follower, P0), leo(world.follower, P1)) == (0, 5)
    assert world.states.all().get(P0).shown_state == FollowerState.DELAYED
    assert broken in world.states.all().get(P0).error


def test_ft_12_a_broken_file_of_our_own_delays_its_partition_and_no_other(world):
    """The truncation finds it, because it has to rewrite the file. The row must not claim the file's records."""
    send(world.leader, request(P0, 4))
    world.fetch()
    lead(world.follower, P0, epoch=1)
    fill(world.follower, P0, 3, epoch=1, producer_id=9)
    assert compact(world.follower, 1 << 20, 2, 1 << 20, "test") == 2
    broken = Path(world.follower.root.path(*world.files(world.follower)))
    content = broken.read_bytes()
    broken.write_bytes(content[:4] + b"x" * 600 + content[604:])
    lead(world.leader, P0, P1, epoch=2)
    follow(world.follower, P0, P1, epoch=2)
    fill(world.leader, P1, 5, epoch=2)
    world.states.assign({p: InitialFetchState(TOPIC, 1, 2, 0) for p in (P0, P1)})
    world.publish(epoch=2)
    world.truncated.clear()
    for _ in range(2):
        world.fetch()
        assert world.states.all().get(P0).shown_state == FollowerState.DELAYED
        assert broken.name in world.states.all().get(P0).error
        assert leo(world.follower, P1) == 5
    assert world.truncated == [P1]


def test_hw_03_a_follower_takes_over_the_leaders_hw(world):
    fill(world.leader, P0, 5)
    world.publish(high_watermark=4)
    world.fetch()
    assert world.progress[-1] == {P0: 4, P1: 4}


def test_fm_09_a_replica_with_another_role_appends_nothing(world):
    fill(world.leader, P0, 5)
    follow(world.follower, P0, epoch=3)
    assert world.fetch() is False
    state = world.states.all().get(P0)
    assert (leo(world.follower), state.shown_state) == (0, FollowerState.DELAYED)
    assert "no longer follows" in state.error


def test_fm_07_fm_09_a_partition_removed_while_its_source_hangs_appends_nothing_more(world, monkeypatch):
    """Stopping does not wait for the source. Segments that were copied meanwhile are not committed."""
    fill(world.leader, P0, 5)
    before, answers = world.follower.refresh().version, []
    copy = Hanging(SegmentCopier.copy)
    monkeypatch.setattr(SegmentCopier, "copy", lambda *args: copy(*args))
    hung = in_background(lambda: answers.append(world.fetch()))
    assert copy.is_entered.wait(60)
    assert ends(in_background(lambda: world.states.remove([P1])))
    copy.let_go()
    assert ends(hung)
    assert answers == [False]
    assert (leo(world.follower), world.follower.refresh().version) == (5, before + 1), "what is still fetched, once"


def test_fm_07_a_removal_waits_for_a_running_append(world, monkeypatch):
    fill(world.leader, P0, 5)
    append = Hanging(append_as_follower)
    monkeypatch.setattr(follower_writes, "append_as_follower", append)
    fetches = in_background(world.fetch)
    assert append.is_entered.wait(60)
    removal = in_background(lambda: world.states.remove([P0]))
    removal.join(0.05)
    assert removal.is_alive()
    append.let_go()
    assert ends(removal)
    assert ends(fetches)
    assert leo(world.follower) == 5


@pytest.mark.parametrize("has_new_commits", [True, False])
def test_other_fetchers_wait_for_a_round_with_new_segments_until_it_ends(world, monkeypatch, has_new_commits):
    world.fetch()
    appends, expected = world.round._context.writes._appends, []

    def looks(_):
        expected.extend(appends._expected)
        yield ReadLeaderRows((P0,))
        return False

    monkeypatch.setattr(FetchRound, "run", looks)
    fill(world.leader, P0, *[1] * has_new_commits)
    world.fetch()
    assert (expected, appends._expected) == ([world.round] * has_new_commits, {})


def test_many_small_commits_are_one_commit_of_the_follower(world):
    world.fetch()
    before = world.follower.refresh().version
    fill(world.leader, P0, *[1] * 8)
    world.fetch()
    assert leo(world.follower) == 8
    assert world.follower.refresh().version == before + 1
