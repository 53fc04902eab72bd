"""The final check of a soak finds lost, doubled and different records."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lakelog.replication.protocol.log_cleaner import CleanerConfig, log_to_clean
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.log.log_cleaning import clean
from lakelog.verification.faults.log_check import Findings, TopicLogs, check_logs
from lakelog.verification.faults.number_producer import KEYS, AcknowledgedRecord, key_of
from tests.jobs.admin.one_partition import log_of, one_partition, publish, start_at, write
from tests.storage.logs import P0, TOPIC, keyed, lead, request, send

GOOD = Findings(records=3, lost=0, duplicated=0, offsets_missing_or_doubled=0, contradictions=0, different=0)
ALL = [AcknowledgedRecord(0, offset, 10 + offset) for offset in range(3)]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return one_partition(tmp_path)


def found(cluster: Cluster, high_watermark: int, acknowledged: Sequence[AcknowledgedRecord] = ALL) -> Findings:
    return check_logs(publish(cluster, high_watermark), TOPIC, acknowledged)


def test_nothing_is_wrong(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    assert found(cluster, 3) == GOOD
    assert GOOD.is_good


def test_acknowledged_and_not_below_the_high_watermark_is_lost(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    assert found(cluster, 2) == GOOD._replace(lost=1)


def test_acknowledged_and_not_where_it_was_said_to_be_is_lost(cluster: Cluster) -> None:
    write(cluster, 1, 10, 12, 11)
    write(cluster, 2, 10, 12, 11)
    assert found(cluster, 3) == GOOD._replace(lost=2)


def test_not_acknowledged_may_be_there_and_once_only(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 10)
    write(cluster, 2, 10, 11, 10)
    assert found(cluster, 3, ALL[:2]) == GOOD._replace(duplicated=1)


@pytest.mark.parametrize(
    ("numbers", "epoch", "contradictions"),
    [
        pytest.param((10, 11), 0, 0, id="it lacks something"),
        pytest.param((10, 11, 13), 0, 1, id="it holds something else"),
        pytest.param((11, 10, 12), 0, 2, id="the same in another order"),
        pytest.param((10, 11, 12), 1, 0, id="the same of another leader"),
        pytest.param((10, 11, 13), 1, 0, id="something else of another leader"),
    ],
)
def test_a_replica_that_differs_is_seen(
    cluster: Cluster, numbers: tuple[int, ...], epoch: int, contradictions: int
) -> None:
    """Logs conflict only under the same leader epoch. Under different ones, one will be truncated."""
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, *numbers, epoch=epoch)
    assert found(cluster, 3) == GOOD._replace(different=1, contradictions=contradictions)


def test_dr_01_below_the_log_start_nothing_is_looked_for(cluster: Cluster) -> None:
    """The files are still there, on one broker with other records and on both once too often."""
    write(cluster, 1, 10, 12, 12, 13)
    write(cluster, 2, 10, 11, 12, 13)
    for broker in (1, 2):
        start_at(cluster, broker, 2)
    acknowledged = [*ALL, AcknowledgedRecord(0, 3, 13)]
    assert found(cluster, 4, acknowledged) == GOOD._replace(records=2)
    assert found(cluster, 3, acknowledged) == GOOD._replace(records=2, lost=1)


def test_dr_02_replicas_that_begin_elsewhere_are_not_equal(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    start_at(cluster, 1, 1)
    assert found(cluster, 3) == GOOD._replace(records=2, different=1)


def test_dr_02_a_replica_that_begins_above_its_leader_is_equal_from_there_on(cluster: Cluster) -> None:
    """It led when a deletion began. The next leader had not followed it, and it was not confirmed."""
    write(cluster, 1, 10, 11, 12)
    write(cluster, 2, 10, 11, 12)
    start_at(cluster, 2, 1)
    view = publish(cluster, 3)
    assert TopicLogs(view, TOPIC, may_delete=True).check(ALL) == GOOD
    assert check_logs(view, TOPIC, ALL) == GOOD._replace(different=1), "of such a topic nothing is deleted"


def test_what_was_read_and_is_gone_is_missing(cluster: Cluster) -> None:
    write(cluster, 1, 10, 11, 12)
    start_at(cluster, 1, 1)
    logs = TopicLogs(publish(cluster, 3), TOPIC)
    assert logs.starts == {0: 1}
    assert logs.missing([AcknowledgedRecord(0, 0, 99), AcknowledgedRecord(0, 1, 11)]) == 0
    assert logs.missing([AcknowledgedRecord(0, 1, 12), AcknowledgedRecord(0, 2, 12), AcknowledgedRecord(0, 3, 13)]) == 2


@pytest.mark.parametrize("fault", ["lost", "duplicated", "offsets_missing_or_doubled", "contradictions", "different"])
def test_each_fault_counts(fault: str) -> None:
    assert not GOOD._replace(**{fault: 1}).is_good


def in_compacted(cluster: Cluster, high_watermark: int, *acknowledged: AcknowledgedRecord) -> Findings:
    return TopicLogs(publish(cluster, high_watermark), TOPIC, is_compacted=True).check(acknowledged)


def write_keyed(cluster: Cluster, broker: int, *numbers: int) -> None:
    """Appends numbers with their keys, a batch each, and cleans the log of broker 1."""
    log = log_of(cluster, broker)
    lead(log, P0, epoch=0)
    for place, number in enumerate(numbers):
        rows = keyed((key_of(number, 1), str(number).encode()))
        send(log, request(P0, 1, place), tables={P0: rows})
    to_clean = log_to_clean(log.refresh().partition(P0), len(numbers), 0, CleanerConfig(0.0, 0, 2**63 - 1, 0))
    assert broker != 1 or (to_clean and clean(log, P0, to_clean, 0, 0, 2**40, "test"))


NUMBERS = 10, 10 + KEYS, 11, 10 + 2 * KEYS
SENT = [AcknowledgedRecord(0, offset, number) for offset, number in enumerate(NUMBERS)]


def test_lc_01_in_a_compacted_topic_a_record_may_go_for_a_later_one_of_its_key(cluster: Cluster) -> None:
    write_keyed(cluster, 1, *NUMBERS)
    write_keyed(cluster, 2, *NUMBERS)
    assert in_compacted(cluster, 4, *SENT) == GOOD._replace(records=2)
    assert in_compacted(cluster, 3, *SENT) == GOOD._replace(records=2, lost=1)
    assert in_compacted(cluster, 4, *SENT, AcknowledgedRecord(0, 4, 12)) == GOOD._replace(records=2, lost=1)
    assert in_compacted(cluster, 4, AcknowledgedRecord(0, 3, 10)) == GOOD._replace(records=2, lost=1)


def test_lc_01_replicas_of_a_compacted_topic_differ_if_their_newest_records_do(cluster: Cluster) -> None:
    write_keyed(cluster, 1, *NUMBERS)
    write_keyed(cluster, 2, *NUMBERS[:3])
    assert in_compacted(cluster, 4, *SENT) == GOOD._replace(records=2, different=1)
