"""Which leader epochs and rows are fenced, as tables of cases."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import (
    FencedLeaderEpochException,
    KafkaStorageException,
    NotLeaderOrFollowerException,
    UnknownLeaderEpochException,
)
from lakelog.replication.protocol.fencing import check_leader_epoch, check_leader_row, is_newer, row_counts
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from tests.protocol.chains import GENESIS, chained_log, header

P = TopicIdPartition("id", 3)
REGISTRATION = PartitionRegistration("flights", "id", 3, (1, 2), 1, 5, (1, 2))
LOG = chained_log(header(0, 4), header(5, 8), header(9, 12))
AT_5, AT_9, AT_13 = (batch.header.chain for batch in LOG.batches)
ROW = ReplicaStatus("flights", "id", 3, 2, 20, 5, FOLLOWER_ROLE, "Fetching", 0, 9, 7, (), None, 1, chain=AT_9)
EPOCHS = {1: 10, 2: 20}


@pytest.mark.parametrize("requested", [5, None])
def test_ep_06_a_request_at_the_current_epoch_or_without_one_is_accepted(requested):
    check_leader_epoch(5, requested, "flights-3")


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        (4, FencedLeaderEpochException),
        (0, FencedLeaderEpochException),
        (6, UnknownLeaderEpochException),
        (99, UnknownLeaderEpochException),
    ],
)
def test_ep_06_an_older_epoch_is_fenced_and_a_newer_one_is_unknown(requested, error):
    with pytest.raises(error, match=rf"flights-3: leader epoch {requested} .* at 5"):
        check_leader_epoch(5, requested, "flights-3")


@pytest.mark.parametrize(("controller_epoch", "newer"), [(3, True), (4, True), (2, False)])
def test_bl_01_decisions_of_an_older_controller_are_refused(controller_epoch, newer):
    hosted = replace(REGISTRATION, leader_epoch=5, controller_epoch=3)
    assert is_newer(hosted, replace(hosted, leader_epoch=6, controller_epoch=controller_epoch)) is newer


@pytest.mark.parametrize(
    ("hosted", "offered", "newer"), [(None, 0, True), (5, 6, True), (5, 9, True), (5, 5, False), (5, 4, False)]
)
def test_bl_02_bl_08_only_a_newer_leader_epoch_is_another_role(hosted, offered, newer):
    known = None if hosted is None else replace(REGISTRATION, leader_epoch=hosted, partition_epoch=1)
    assert is_newer(known, replace(REGISTRATION, leader_epoch=offered, partition_epoch=9)) is newer


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({}, True),
        ({"log_end_offset": 0, "high_watermark": 0, "error": "x", "chain": GENESIS}, True),
        ({"topic_id": "older"}, False),
        ({"leader_epoch": 4}, False),
        ({"leader_epoch": 6}, False),
        ({"role": LEADER_ROLE}, False),
        ({"broker_epoch": 19}, False),
        ({"broker_epoch": 21}, False),
        ({"broker_id": 1}, False),
        ({"broker_id": 9}, False),
        ({"state": "Truncating"}, False),
        ({"state": "Delayed"}, False),
    ],
    ids=str,
)
def test_fe_03_only_rows_of_the_current_epochs_count(said, counts):
    assert row_counts(replace(ROW, **said), REGISTRATION, EPOCHS, LOG) is counts


@pytest.mark.parametrize(
    ("end", "chain", "counts"),
    [
        pytest.param(0, GENESIS, True, id="a follower without records"),
        pytest.param(5, AT_5, True, id="behind, with what the leader has up to there"),
        pytest.param(13, AT_13, True, id="all that the leader has"),
        pytest.param(5, "other", False, id="behind, with other records"),
        pytest.param(9, AT_5, False, id="one batch has other records"),
        pytest.param(13, "other", False, id="as long as the leader's, with other records"),
        pytest.param(14, AT_13, False, id="it has more than the leader, which cannot tell what"),
        pytest.param(9, "", False, id="a row that says nothing of its chain"),
        pytest.param(7, AT_5, True, id="from within a batch on: nothing of it yet"),
    ],
)
def test_fe_03_tr_08_a_row_counts_for_what_the_leaders_log_has_too(end, chain, counts):
    row = replace(ROW, log_end_offset=end, chain=chain)
    assert row_counts(row, REGISTRATION, EPOCHS, LOG) is counts


def test_fe_03_tr_08_below_its_first_batch_a_leader_knows_no_chain():
    """Retention has deleted the batches to compare a follower with. The follower starts over, and then counts."""
    log = chained_log(header(5, 8), start_chain=AT_5)
    assert row_counts(replace(ROW, log_end_offset=5, chain=AT_5), REGISTRATION, EPOCHS, log)
    assert not row_counts(replace(ROW, log_end_offset=0, chain=GENESIS), REGISTRATION, EPOCHS, log)


def test_fe_03_a_missing_row_or_registration_does_not_count():
    assert not row_counts(None, REGISTRATION, EPOCHS, LOG)
    assert not row_counts(ROW, REGISTRATION, {}, LOG)


LEADER_ROW = replace(ROW, broker_id=1, role=LEADER_ROLE)


@pytest.mark.parametrize("state", ["Fetching", "Truncating"])
def test_ft_14_ep_06_a_leader_at_our_epoch_is_fetched_from(state):
    assert check_leader_row(replace(LEADER_ROW, state=state), P, 5) is None


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        pytest.param(None, UnknownLeaderEpochException, "id-3: leader epoch 5", id="it has no row yet"),
        pytest.param({"leader_epoch": 4}, UnknownLeaderEpochException, "leader epoch 5 .* at 4", id="it is slower"),
        pytest.param({"leader_epoch": 6}, FencedLeaderEpochException, "leader epoch 5 .* at 6", id="we are slower"),
        pytest.param(
            {"role": FOLLOWER_ROLE}, NotLeaderOrFollowerException, "flights-3: broker 1 follows", id="it follows"
        ),
        pytest.param(
            {"role": FOLLOWER_ROLE, "state": "Offline", "error": "KAFKA_STORAGE_ERROR: f is gone"},
            KafkaStorageException,
            "flights-3: broker 1: KAFKA_STORAGE_ERROR: f is gone",
            id="OL-01: a file is broken",
        ),
        pytest.param(
            {"role": FOLLOWER_ROLE, "leader_epoch": 4}, UnknownLeaderEpochException, "at 4", id="it still follows"
        ),
        pytest.param(
            {"role": FOLLOWER_ROLE, "leader_epoch": 6}, FencedLeaderEpochException, "at 6", id="it follows by now"
        ),
    ],
)
def test_ft_14_ep_06_a_follower_waits_for_an_older_leader_row_and_is_fenced_by_a_newer_one(row, error, text):
    found = check_leader_row(None if row is None else replace(LEADER_ROW, **row), P, 5)
    with pytest.raises(error, match=text):
        raise found


@pytest.mark.parametrize("epoch", [0, 1])
def test_ft_14_a_follower_waits_for_a_leader_without_a_row(epoch):
    assert isinstance(check_leader_row(None, P, epoch), UnknownLeaderEpochException)
