"""`bench kafka` without Kafka: it compares the records of both sides before it shows a time."""

import sys
from unittest.mock import MagicMock

import pytest

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.verification.bench.beside_kafka import (
    LARGE,
    PARTITIONS,
    QUICK_KAFKA,
    READ,
    SMALL,
    TOPIC,
    compare,
    kafka_figures,
    kafka_rows,
    measure_beside_kafka,
)


class Side:
    """A cluster in memory. It loses the last value of each `loses`-th send."""

    def __init__(self, loses=0):
        self.values = [[] for _ in range(PARTITIONS)]
        self.sends, self.loses = 0, loses

    def send(self, topic, table):
        assert topic == TOPIC
        self.sends += 1
        for value, partition in zip(table["value"].to_pylist(), table["partition"].to_pylist(), strict=True):
            self.values[partition].append(value)
        if self.loses and self.sends % self.loses == 0:
            self.values[-1].pop()

    def read(self):
        return self.values


def test_both_sides_get_the_same_records_and_their_times_are_shown():
    steps, sides = [], (Side(), Side())
    found = compare(QUICK_KAFKA, sides, lambda: steps.append(1))
    assert sides[0].values == sides[1].values
    assert sum(map(len, sides[0].values)) == 3 * PARTITIONS + 3 * QUICK_KAFKA.large.records
    assert len(steps) == QUICK_KAFKA.steps
    assert [(row["what"], row["kafka_mb_per_s"] != "") for row in kafka_rows(found)] == [
        (SMALL, False), (LARGE, True), (READ, True),
    ]  # fmt: skip
    figures = kafka_figures(found)
    assert {side: list(figures[f"{side}_seconds"]) for side in ("lakelog", "kafka")} == {
        "lakelog": [SMALL, LARGE, READ], "kafka": [SMALL, LARGE, READ],
    }  # fmt: skip


@pytest.mark.parametrize("loses", [(1, 0), (0, 6)], ids=["Lakelog", "Kafka"])
def test_no_time_is_shown_if_a_side_lacks_a_record(loses):
    found = compare(QUICK_KAFKA, tuple(map(Side, loses)), lambda: None)
    assert not found.rows_equal
    assert "kafka_seconds" not in kafka_figures(found)


def test_without_kafkas_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "lakelog.verification.clusters.kafka_cluster", raising=False)
    with pytest.raises(InvalidConfigurationException, match=r"^bench kafka needs Kafka's client: pip install"):
        measure_beside_kafka(QUICK_KAFKA)


def test_a_folder_without_kafkas_jars_is_refused_by_its_name(monkeypatch, tmp_path):
    for name in ("confluent_kafka", "confluent_kafka.admin"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.delitem(sys.modules, "lakelog.verification.clusters.kafka_cluster", raising=False)
    monkeypatch.setenv("LAKELOG_KAFKA_JARS", str(tmp_path))
    with pytest.raises(InvalidConfigurationException, match=r"^LAKELOG_KAFKA_JARS is '.*'; allowed: a folder with the"):
        measure_beside_kafka(QUICK_KAFKA)
