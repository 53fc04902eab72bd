"""Steps that write, delete and read records, as consumers see them and from each broker's log."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from lakelog.replication.clients.producer import RecordMetadata
from lakelog.replication.errors import LakelogException, NotLeaderOrFollowerException
from lakelog.verification.scenarios.arguments import OK
from lakelog.verification.scenarios.observation import leadership, observe
from lakelog.verification.scenarios.scene import Observed, Saw, Scene, hold

_HOLD_SECONDS = 5
_CONSUME_SECONDS = 30  # a consumer waits for a leader
_NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"


def produce(
    scene: Scene, *, topic: str, partition: int, count: int, acks: int | str, prefix: str, timeout_s: float,
    retries: int | None, expect: str,
) -> Observed:  # fmt: skip
    """Sends records as one batch, like records that gather while another send is running.

    Without a leader it ends with TimeoutException, as in Kafka, with or without retries; the text names the cause.
    """
    values = scene.next_values(topic, partition, prefix, count)
    started = time.monotonic()
    answer = _send(scene, acks, topic, partition, values, timeout_s, retries)
    first_ack_ms = None if answer.error else round((time.monotonic() - started) * 1000)
    found = answer.error.name if answer.error else OK
    saw = {**_state(scene, topic, partition), "values": values, "error": answer.error and found,
           "base_offset": answer.base_offset, "last_offset": answer.last_offset}  # fmt: skip
    fault = None if found == expect else f"{found}, expected {expect}{f': {answer.error}' if answer.error else ''}"
    words = found if answer.error else f"offsets {answer.base_offset} to {answer.last_offset} in {first_ack_ms} ms"
    return Observed(saw, words, fault, {"first_ack_ms": first_ack_ms})


def _send(
    scene: Scene, acks: int | str, topic: str, partition: int, values: Sequence[str], timeout_s: float,
    retries: int | None,
) -> RecordMetadata:  # fmt: skip
    binary = pa.array([value.encode() for value in values], pa.binary())
    records = pa.table({"value": binary, "partition": pa.array([partition] * len(values), pa.int32())})
    producer, timeout_ms = scene.producer(acks, retries), round(timeout_s * 1000)
    try:
        return producer.send(topic, records, timeout_ms)[partition]
    except LakelogException as error:
        return RecordMetadata(topic, partition, len(values), error=error)


def _state(scene: Scene, topic: str, partition: int) -> Saw:
    """The state of the partition after the send; empty if there is no such partition."""
    try:
        return observe(scene, leadership(scene, topic, partition))
    except LakelogException:
        return {}


def logs(
    scene: Scene, *, topic: str, partition: int, brokers: list[int] | None, same: bool | None,
    expect_values: list[str] | None,
) -> Observed:  # fmt: skip
    """Compares the rows of each broker's log: all columns with each other, values with the expected ones.

    Without `brokers` it compares all replicas, also those of stopped brokers, since a log is a table that stays
    readable.
    """

    def look() -> Observed:
        registration = leadership(scene, topic, partition).registration
        rows = {broker: _log(scene, broker, topic, partition) for broker in brokers or registration.replicas}
        first, *others = rows.values()
        are_same = all(other.equals(first) for other in others)
        values = {broker: _values(table) for broker, table in rows.items()}
        faults = [] if same in (None, are_same) else [f"the logs are {'' if are_same else 'not '}the same"]
        if expect_values is not None:
            faults += [f"broker {b} has {_in_words(v)}" for b, v in values.items() if v != expect_values]
            faults += [f"expected {_in_words(expect_values)}"] if faults else []
        words = ", ".join(f"{broker}: {_in_words(v)}" for broker, v in values.items())
        saw = {"same": are_same, "values": {str(broker): v for broker, v in values.items()}}
        return Observed(saw, words, "; ".join(faults) or None)

    return hold(look, _HOLD_SECONDS)


def _log(scene: Scene, broker: int, topic: str, partition: int) -> pa.Table:
    """A broker's rows of a partition from its log start on. Columns: `schemas.LOG`."""
    key = leadership(scene, topic, partition).registration.topic_id_partition
    log = scene.view.log(broker)
    return log.read(key, log.refresh().partition(key).log_start_offset).combine_chunks()


def _values(rows: pa.Table) -> list[str]:
    return ["" if value is None else value.decode() for value in rows["value"].to_pylist()]


def _in_words(values: Sequence[str]) -> str:
    """Shows up to three values; of more, the first, the last and the count."""
    if len(values) <= 3:
        return " ".join(values) or "nothing"
    return f"{values[0]} … {values[-1]} ({len(values)})"


def delete_records(scene: Scene, *, topic: str, partition: int, before_offset: int, expect: str) -> Observed:
    """Deletes records below an offset, and waits until no live replica has them. [DR-01, DR-02]"""
    found = scene.cluster.admin().delete_records({(topic, partition): before_offset})[topic, partition]
    told = found.name if isinstance(found, LakelogException) else OK
    fault = None if told == expect else f"{told}, expected {expect}{'' if told == OK else f': {found}'}"
    low_watermark = None if isinstance(found, LakelogException) else found
    return Observed({"low_watermark": low_watermark, "error": None if told == OK else told}, f"{found}", fault)


def consume(scene: Scene, *, topic: str, partition: int, expect_values: list[str] | None) -> Observed:
    """Reads from the log start to the high watermark, as a consumer does."""

    def look() -> Observed:
        values = _committed(scene, topic, partition)
        is_right = expect_values in (None, values)
        fault = None if is_right else f"{_in_words(values)}, expected {_in_words(expect_values or [])}"
        return Observed({"values": values}, _in_words(values), fault)

    return hold(look, _CONSUME_SECONDS)


def _committed(scene: Scene, topic: str, partition: int) -> list[str]:
    values: list[str] = []
    offset = leadership(scene, topic, partition).available_row().log_start_offset
    while True:
        fetched = scene.consumer.fetch(topic, {partition: offset}, max_wait_ms=0)[partition]
        if fetched.error:
            raise fetched.error
        values += _values(fetched.records)
        offset += fetched.records.num_rows
        if offset >= fetched.high_watermark or not fetched.records.num_rows:
            return values


def epoch_end(scene: Scene, *, topic: str, partition: int, epochs: list[int]) -> Observed:
    """Asks the leader for the end offsets of epochs. Followers must refuse, because they may still truncate their
    logs."""

    def look() -> Observed:
        registration = leadership(scene, topic, partition).registration
        ends = scene.consumer.epoch_end(topic, partition, epochs)
        answers = {broker: _answer(scene, topic, partition, epochs, broker) for broker in registration.followers}
        faults = [f"follower {broker} answers {told}" for broker, told in answers.items() if told != _NOT_LEADER]
        words = ", ".join(f"epoch {epoch} ends at {end.end_offset}" for epoch, end in ends.items())
        saw = {
            "ends": {str(epoch): end._asdict() for epoch, end in ends.items()},
            "followers": {str(broker): told for broker, told in answers.items()},
        }
        return Observed(saw, words, "; ".join(faults) or None)

    return hold(look, _HOLD_SECONDS)


def _answer(scene: Scene, topic: str, partition: int, epochs: list[int], broker: int) -> str:
    try:
        return str(scene.consumer.epoch_end(topic, partition, epochs, broker))
    except NotLeaderOrFollowerException:
        return _NOT_LEADER
