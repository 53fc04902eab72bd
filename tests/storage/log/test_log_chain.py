"""The chain of a log that has lost its beginning or all its records: the record of it outlives files and commits."""

import pytest

from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, Role, role_version
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.log import log_txns
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.log_txns import (
    BROKER_EPOCH,
    app_ids,
    chain_txns,
    log_start_app_id,
    may_go_back,
    partition_of,
    repair_txn,
    role_app_id,
    start_app_id,
    start_txns,
)
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs, truncate_logs
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, chain, facts, fill, filled_log, follow, lead, truncate

ELSEWHERE = genesis(TopicIdPartition("another history", 0))


def recorded(txns):
    """The log state from these txns, in whatever order they are replayed."""
    logs = []
    for order in (list(txns.items()), list(reversed(txns.items()))):
        log = PartitionLog(start_chain=genesis(P0))
        for app_id, version in order:
            log_txns.record(log, app_id, version)
        logs.append(log)
    assert logs[0] == logs[1]
    return logs[0]


def test_tr_08_each_fact_of_a_partition_comes_back_from_its_txn():
    role = Role(7, LEADER)
    txns = {role_app_id(P0): role_version(role), start_app_id(P0): 30, **start_txns(P0, LogEnd(20, ELSEWHERE))}
    txns |= repair_txn(P0, 25)
    assert recorded(txns) == PartitionLog(
        log_start_offset=20, start_chain=ELSEWHERE, role=role, epoch_start=30, repair_from=25
    )
    assert txns.keys() == set(app_ids(P0)), "all that is looked up when a log meets a partition"
    assert {partition_of(app_id) for app_id in txns} == {P0}


@pytest.mark.parametrize("number", range(8))
def test_tr_08_a_chain_comes_back_from_its_txns_whatever_it_was_before(number):
    wanted = genesis(TopicIdPartition("any", number))
    txns = chain_txns(P0, wanted)
    assert all(-(2**63) <= version < 2**63 for version in txns.values()), "as Delta keeps them"
    assert recorded(txns).start_chain == wanted


@pytest.mark.parametrize("app_id", [BROKER_EPOCH, "log-start/flights-id", "chain-high/flights-id/x", "other/id/3", ""])
def test_a_txn_of_something_else_tells_of_no_partition(app_id):
    assert partition_of(app_id) is None


def test_a_topic_id_may_hold_a_slash():
    odd = TopicIdPartition("a/b", 3)
    assert {partition_of(app_id) for app_id in app_ids(odd)} == {odd}


def test_tr_08_only_roles_and_claims_never_go_back():
    assert {app_id for app_id in (*app_ids(P0), BROKER_EPOCH) if not may_go_back(app_id)} == {
        role_app_id(P0),
        BROKER_EPOCH,
    }
    assert may_go_back(log_start_app_id(P0))


@pytest.fixture
def log(root):
    """P0 has 0-3 | 4-7 | 8-11 (epoch 1); the second file holds P1 0-4 too."""
    return filled_log(root)


def delete_before(log, offset):
    raise_log_starts(log, {P0: lambda _: offset}, "test", "test")
    delete_old_segments(log, 0, "test")


def start_over(log):
    follow(log, P0, epoch=2)
    truncate_logs(log, {P0: Truncation(2, 0, LogEnd(40, ELSEWHERE))}, "test")


def start_over_below(log):
    delete_before(log, 8)
    follow(log, P0, epoch=2)
    truncate_logs(log, {P0: Truncation(2, 8, LogEnd(2, ELSEWHERE))}, "test")


def stop(log):
    log.become({P0: Role(2, STOPPED)}, "test")
    delete_logs(log, [P0], "test")


def compacted_and_deleted(log):
    compact(log, 1 << 25, 2, 1 << 28, "test")
    delete_before(log, 12)


def deleted_twice(log):
    delete_before(log, 4)
    delete_before(log, 12)


def deleted_and_truncated(log):
    delete_before(log, 4)
    truncate(log, {P0: 4})


def deleted_within_a_batch_and_truncated(log):
    delete_before(log, 6)
    truncate(log, {P0: 6})


CASES = [
    pytest.param(lambda log: delete_before(log, 12), 12, 12, id="emptied by retention"),
    pytest.param(lambda log: delete_before(log, 10), 12, 12, id="the log starts within its only batch"),
    pytest.param(lambda log: delete_before(log, 4), 12, 12, id="its beginning deleted"),
    pytest.param(deleted_twice, 12, 12, id="its beginning deleted, then the rest"),
    pytest.param(compacted_and_deleted, 12, 12, id="compacted, then emptied"),
    pytest.param(lambda log: truncate(log, {P0: 0}), 0, 0, id="all of it truncated"),
    pytest.param(lambda log: truncate(log, {P0: 9}), 8, 8, id="its end truncated"),
    pytest.param(deleted_and_truncated, 4, 4, id="its beginning deleted, then all of it truncated"),
    pytest.param(deleted_within_a_batch_and_truncated, 6, 4, id="all of it truncated, from within a batch on"),
    pytest.param(start_over, 40, None, id="begun anew further up"),
    pytest.param(start_over_below, 2, None, id="begun anew further down"),
    pytest.param(stop, 0, 0, id="deleted with its replica"),
]


@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["by its commits", "by a checkpoint"])
@pytest.mark.parametrize(("change", "end", "same_as"), CASES)
def test_tr_08_a_log_knows_the_chain_at_its_end_whatever_has_gone(log, change, end, same_as, has_checkpoint):
    """Both in the open handle and in a new one. Later appends continue the chain."""
    chains = {offset: log.refresh().partition(P0).chain_at(offset) for offset in (0, 4, 8, 12)}
    expected = LogEnd(end, ELSEWHERE if same_as is None else chains[same_as])
    of_other = chain(log, P1)
    change(log)
    if has_checkpoint:
        clean_up(log.root)
    for found in (log, ReplicaLog.open(log.root)):
        assert found.refresh().partition(P0).log_end == expected
        assert chain(found, P1) == of_other
    assert facts(ReplicaLog.open(log.root)) == facts(log)
    lead(log, P0, epoch=3)
    fill(log, P0, 2, epoch=3, producer_id=99)
    appended = log.current().partition(P0).batches[-1].header
    assert (appended.base_offset, appended.previous) == expected
    assert ReplicaLog.open(log.root).current().partition(P0).log_end == LogEnd(end + 2, appended.chain)


@pytest.mark.parametrize("offset", [4, 6, 8, 10, 12])
def test_dr_01_tr_08_the_chain_at_a_log_start_stays_when_what_lies_below_has_gone(log, offset):
    """A follower that begins at the log start begins with this chain."""
    before = log.refresh().partition(P0).chain_at(offset)
    delete_before(log, offset)
    for found in (log, ReplicaLog.open(log.root)):
        own = found.refresh().partition(P0)
        assert (own.log_start_offset, own.chain_at(offset)) == (offset, before)
        assert own.lineage == () or own.lineage[0].chain == before


def test_tr_08_a_topic_that_is_made_again_begins_another_chain(log):
    again = P0._replace(topic_id="made again")
    assert chain(log, again) == genesis(again) != genesis(P0)
    assert log.current().partition(P0).batches[0].header.previous == genesis(P0)


def test_tr_08_a_follower_under_a_new_role_keeps_its_chain(log):
    before = chain(log)
    for role in (Role(2, FOLLOWER), Role(3, LEADER), Role(4, STOPPED)):
        log.become({P0: role}, "test")
        assert chain(log) == chain(ReplicaLog.open(log.root)) == before


def test_tr_08_only_what_takes_the_beginning_of_a_log_records_a_chain(log):
    """The second file goes, and P1's batch in it is written again: both logs keep their beginnings."""
    assert read_commit(log.root, truncate(log, {P0: 4})).txns == {}
    assert read_commit(log.root, truncate(log, {P0: 0})).txns == chain_txns(P0, genesis(P0))
