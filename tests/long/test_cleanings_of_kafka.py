"""A real Kafka leaves what `tests/kafka_cleanings.json` says, which the daily tests compare with Lakelog. [LC-01]"""

import os
import time

import pytest

from lakelog.verification.clusters.kafka_cluster import VERSION, KafkaCluster, running_kafka
from tests.cleanings import LIVES, Kept, Life, Row
from tests.processes import wait_until

_SEGMENT_MS = 30_000  # a record that is a minute younger begins a segment
_PATIENCE = 60.0  # s


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def _configs(life: Life, number: int) -> dict[str, object]:
    return {
        "cleanup.policy": "delete" if number < life.plain_rounds else "compact",
        "segment.ms": _SEGMENT_MS,
        "retention.ms": -1,
        "min.cleanable.dirty.ratio": 0,
        "min.compaction.lag.ms": life.lag,
        "delete.retention.ms": life.retention,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _wait_for_the_cleaner(kafka: KafkaCluster, topic: str, stop: int) -> None:
    wait_until(lambda: kafka.cleaned_to(topic) >= stop, f"the cleaner comes to {stop} of {topic}", _PATIENCE)


def _live(kafka: KafkaCluster, topic: str, life: Life) -> list[list[Row]]:
    """What Kafka has left after each round."""
    kept, begin = list[list[Row]](), int(time.time() * 1000)
    for number in range(len(life.rounds)):
        if number == 0:
            kafka.create_topic(topic, 1, _configs(life, 0))
        else:
            kafka.alter_topic(topic, _configs(life, number))
        *batches, last = life.batches(number)
        for records in batches:
            assert not kafka.send(topic, records, begin - life.age(number))
        # A minute later, as the records of the next round, so it begins a segment that they share.
        assert not kafka.send(topic, last, begin - life.age(number) + 45_000)
        _wait_for_the_cleaner(kafka, topic, life.cleanable(number))
        kept.append([(offset, _text(key), _text(value)) for offset, key, value in kafka.read(topic)[0]])
    return kept


def test_lc_01_kafka_leaves_what_the_daily_tests_expect(kafka):
    found = Kept(VERSION, {name: _live(kafka, f"life-{n}", life) for n, (name, life) in enumerate(LIVES.items())})
    if os.environ.get("LAKELOG_RECORD_KAFKA"):
        found.write()
    known = Kept.read()
    assert known.version == VERSION
    for name, kept in found.rows.items():
        assert kept == known.rows[name], name


def test_lc_01_kafka_refuses_a_record_without_a_key(kafka):
    kafka.create_topic("keys", 1, {"cleanup.policy": "compact"})
    assert kafka.send("keys", [(None, b"1")], 1_000_000) == ["INVALID_RECORD"]
