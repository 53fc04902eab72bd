"""A broker's row of a replica claims no more than the broker's log, memory and fetcher have."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.protocol.replica_rows import offline_row, replica_row
from lakelog.replication.protocol.replica_status import ReplicaStatus

REGISTRATION = PartitionRegistration("flights", "id", 3, (1, 2), 1, 5, (1, 2))


def hosted(leader=1, high_watermark=7):
    return HostedPartition(replace(REGISTRATION, leader=leader), high_watermark)


def log_to(end, role=LEADER):
    log = PartitionLog(log_start_offset=4, role=Role(5, role), epoch_start=end)
    if end > 4:
        log.add(BatchHeader("flights", "id", 3, 2, 4, end - 1, 0, 0), "segment")
    return log


def fetch(state="Fetching", epoch=5, delayed_until=None, error=None):
    return PartitionFetchState("id", 3, epoch, 9, state, delayed_until, error=error)


def told(state="Fetching", epoch=5, broker_epoch=10):
    return ReplicaStatus("flights", "id", 3, 1, broker_epoch, epoch, "follower", state, 0, 99, 99, (), None, 1)


def row_of(hosted_, log, fetch_=None, told_=None):
    return replica_row(1, 10, hosted_, log, fetch_, told_, 42)


@pytest.mark.parametrize("leader", [1, 2])
def test_ol_01_the_row_of_a_broken_replica_claims_no_leadership_and_has_the_fault(leader):
    row = offline_row(row_of(hosted(leader), log_to(9), fetch(error="an older one")), "f is gone")
    assert (row.role, row.state, row.error) == ("follower", "Offline", "KAFKA_STORAGE_ERROR: f is gone")
    assert (row.log_end_offset, row.leader_epoch) == (9, 5)


def test_ol_01_the_row_of_a_repaired_replica_is_that_of_a_new_role():
    assert row_of(hosted(2), log_to(9, FOLLOWER), None, told("Offline")).state == "Truncating"


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize(("known", "told"), [(0, 4), (3, 4), (4, 4), (7, 7), (9, 9), (12, 9)])
def test_dr_01_hw_02_the_hw_in_a_row_lies_within_the_log(leader, known, told):
    """The log has offsets 4 to 8. After a restart the known HW may be from before its beginning was deleted."""
    row = row_of(hosted(leader, known), log_to(9, LEADER if leader == 1 else FOLLOWER))
    assert (row.log_start_offset, row.high_watermark, row.log_end_offset) == (4, told, 9)


def test_the_row_of_a_leader_describes_its_log():
    assert row_of(hosted(), log_to(9)) == ReplicaStatus(
        topic="flights",
        topic_id="id",
        partition=3,
        broker_id=1,
        broker_epoch=10,
        leader_epoch=5,
        role="leader",
        state="Fetching",
        log_start_offset=4,
        log_end_offset=9,
        high_watermark=7,
        epochs=(EpochEntry(2, 4), EpochEntry(5, 9)),
        error=None,
        log_version=42,
    )


@pytest.mark.parametrize("leader", [2, NO_LEADER])
def test_bl_07_a_replica_that_does_not_lead_follows_also_without_a_leader(leader):
    row = row_of(hosted(leader), log_to(9, FOLLOWER))
    assert (row.role, row.state, row.high_watermark, row.epochs) == ("follower", "Truncating", 7, (EpochEntry(2, 4),))


@pytest.mark.parametrize(
    ("fetched", "before", "state"),
    [
        pytest.param(fetch("Truncating"), told(), "Truncating", id="fs_01: its fetcher says so"),
        pytest.param(fetch(), None, "Fetching", id="fs_01: its fetcher says it is fetched"),
        pytest.param(fetch(delayed_until=5.0), None, "Delayed", id="fs_01: a delay overrides it"),
        pytest.param(fetch(epoch=4), None, "Truncating", id="its fetcher has not heard of the new epoch"),
        pytest.param(fetch(epoch=4), told(epoch=4), "Truncating", id="nor has what was told"),
        pytest.param(None, told(), "Fetching", id="without a fetcher, as at shutdown: what was told"),
        pytest.param(None, told("Delayed"), "Delayed", id="and if that was an error"),
        pytest.param(None, told(epoch=4), "Truncating", id="what was told under an older leader epoch"),
        pytest.param(None, told(broker_epoch=9), "Truncating", id="what an older process told"),
        pytest.param(None, None, "Truncating", id="nothing is known"),
    ],
)
def test_fe_03_fs_01_a_follower_is_fetching_only_once_its_log_agrees(fetched, before, state):
    assert row_of(hosted(leader=2), log_to(9, FOLLOWER), fetched, before).state == state


@pytest.mark.parametrize(
    ("leader", "fetched", "before", "lag"),
    [
        pytest.param(2, replace(fetch(), lag=3), replace(told(), lag=5), 3, id="its fetcher says so"),
        pytest.param(2, fetch(), replace(told(), lag=5), None, id="its fetcher does not know yet"),
        pytest.param(2, None, replace(told(), lag=5), 5, id="without a fetcher, as at shutdown: what was told"),
        pytest.param(2, None, replace(told(epoch=4), lag=5), None, id="what was told under an older leader epoch"),
        pytest.param(1, None, replace(told(), lag=5), None, id="a leader has none"),
    ],
)
def test_ft_08_the_lag_is_what_was_last_known_of_it(leader, fetched, before, lag):
    role = LEADER if leader == 1 else FOLLOWER
    assert row_of(hosted(leader), log_to(9, role), fetched, before).lag == lag


@pytest.mark.parametrize(
    ("leader", "fetched", "error"),
    [
        (2, fetch(error="CorruptRecordException"), "CorruptRecordException"),
        (2, fetch(error="CorruptRecordException", epoch=4), None),
        (2, None, None),
        (1, fetch(error="CorruptRecordException"), None),
    ],
)
def test_ft_15_the_row_has_the_error_of_a_fetcher_of_this_role_only(leader, fetched, error):
    assert row_of(hosted(leader), log_to(9), fetched).error == error


def test_hw_03_tr_05_a_row_never_claims_more_than_its_log():
    """Over small worlds, also where a truncation has gone below the HW: whatever is remembered, the log is what
    counts."""
    for end, high_watermark, leader in itertools.product(range(4, 9), range(4, 9), (1, 2)):
        row = row_of(hosted(leader, high_watermark), log_to(end), fetch(), told())
        assert (row.log_start_offset, row.log_end_offset) == (4, end)
        assert row.high_watermark == min(high_watermark, end)
