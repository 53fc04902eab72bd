"""After a failed or interrupted send the producer takes a new identity: other records never count as its retry."""

import pyarrow as pa
import pytest

from lakelog.replication.clients import sender
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import DuplicateSequenceException, KafkaStorageException, LeaderNotAvailableException
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.clients.world import LONG, World
from tests.storage.delta.answers import lose_an_answer
from tests.storage.logs import P0, P1, TOPIC, fill, follow, lead, values

OUT_OF_REACH = KafkaStorageException("out of reach")


@pytest.fixture
def world(root):
    made = World(root)
    made.say(0)
    return made


def records(*given, partition=0):
    return pa.table({"value": pa.array(given, pa.binary()), "partition": [partition] * len(given)})


def is_append(_, cause):
    return cause.get("why") == "append"


def out_of_reach(*_):
    raise OUT_OF_REACH


def lose_all_after_an_append(monkeypatch):
    """Loses the answer of an append that lands. After it neither logs nor the metadata can be read."""

    def lands(log, cause):
        found = is_append(log, cause)
        if found:
            monkeypatch.setattr(ReplicaLog, "_refresh", out_of_reach)
            monkeypatch.setattr(TopicView, "partitions", out_of_reach)
        return found

    lose_an_answer(monkeypatch, lands)


@pytest.mark.parametrize("name", [None, "importer"])
@pytest.mark.parametrize("acks", [1, "all"])
def test_ap_06_what_is_sent_after_a_lost_answer_and_an_outage_is_no_repeat(world, monkeypatch, acks, name):
    producer = Producer(world.uri, acks, name)
    with monkeypatch.context() as outage:
        lose_all_after_an_append(outage)
        (failed,) = producer.send(TOPIC, records(b"first"), timeout_ms=30).values()
    assert isinstance(failed.error, KafkaStorageException)
    assert failed.base_offset == -1
    producer.send(TOPIC, records(b"second"), timeout_ms=30)
    producer.send(TOPIC, records(b"third"), timeout_ms=30)
    assert values(world.logs[1]) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(), OSError("reset by peer"), MemoryError()])
def test_ap_06_what_is_sent_after_an_interrupted_send_is_no_repeat(world, monkeypatch, interrupt):
    producer = Producer(world.uri, acks=1)
    with monkeypatch.context() as lost:
        lose_an_answer(lost, is_append, error=interrupt)
        with pytest.raises(type(interrupt)):
            producer.send(TOPIC, records(b"first"))
    (answer,) = producer.send(TOPIC, records(b"second")).values()
    assert (answer.base_offset, answer.error) == (1, None)
    assert values(world.logs[1]) == [b"first", b"second"]


def test_ap_06_records_of_a_copied_producer_are_never_acknowledged_and_in_no_log(world, monkeypatch):
    """A restored machine has the producer id and the sequences of the original. Kafka answers that its batch is a
    repeat."""
    monkeypatch.setattr("lakelog.replication.clients.producer.new_producer_id", lambda: 77)
    original, copy = Producer(world.uri, acks=1), Producer(world.uri, acks=1)
    monkeypatch.undo()
    acknowledged = []
    for number in range(3):
        for who, producer in (("original", original), ("copy", copy)):
            value = f"{who} {number}".encode()
            (answer,) = producer.send(TOPIC, records(value), timeout_ms=LONG).values()
            if answer.error is None:
                acknowledged.append(value)
            else:
                assert isinstance(answer.error, DuplicateSequenceException)
    assert acknowledged == values(world.logs[1])
    assert len(acknowledged) == 5, "the copy takes an identity of its own after the first error"


def test_ap_06_a_producer_whose_table_is_out_of_reach_sends_nothing_before_it_has_a_new_epoch(world, monkeypatch):
    producer, producers = Producer(world.uri, acks=1, name="importer"), world.cluster.root.child("producers")
    lose_an_answer(monkeypatch, is_append, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        producer.send(TOPIC, records(b"first"))
    assert last_version(producers) == 1, "the next epoch is taken by the next send"
    with monkeypatch.context() as outage:
        outage.setattr(DeltaLog, "commit", refuse)
        with pytest.raises(KafkaStorageException, match="refused"):
            producer.send(TOPIC, records(b"never"))
    producer.send(TOPIC, records(b"second"))
    assert last_version(producers) == 2
    assert values(world.logs[1]) == [b"first", b"second"]


def refuse(*_, **__):
    raise CommitUnknown("connection refused")


def test_ap_06_only_a_send_that_succeeded_as_a_whole_leaves_its_identity_to_the_next(world):
    producer, both = Producer(world.uri, acks=1), pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
    for _ in range(2):
        producer.send(TOPIC, both)
    follow(world.logs[1], P1, epoch=1)
    for _ in range(2):
        producer.send(TOPIC, both, timeout_ms=1)
    headers = [batch.header for batch in world.logs[1].refresh().partition(P0).batches]
    first, second, third, last = [(header.producer_id, header.base_sequence) for header in headers]
    assert (first[0], second, third) == (second[0], (first[0], 1), (first[0], 2))
    assert last[0] != first[0]


def lead_elsewhere(world):
    """Makes broker 2 the leader. It has only the producer's first record."""
    world.change(leader=2, leader_epoch=1, isr=(2,), partition_epoch=1)
    lead(world.logs[2], P0, epoch=1)


def test_ap_06_a_sequence_does_not_start_over_once_a_log_may_hold_the_send(world, monkeypatch):
    """The new leader lacks an earlier record. The old one may lead again, has the send, and would have it twice."""
    producer, commit = Producer(world.uri, acks=1), DeltaLog.commit
    producer.send(TOPIC, records(b"a"))
    identity = producer._identity.id_and_epoch
    producer.send(TOPIC, records(b"b"))
    lead(world.logs[2], P0, epoch=0)
    fill(world.logs[2], P0, 1, producer_id=identity.producer_id)

    def lands_and_fails(log, cause, *args, **options):
        version = commit(log, cause, *args, **options)
        if is_append(log, cause) and "broker-1" in log.root.uri:
            lead_elsewhere(world)
            raise OUT_OF_REACH
        return version

    monkeypatch.setattr(DeltaLog, "commit", lands_and_fails)
    (answer,) = producer.send(TOPIC, records(b"c")).values()
    assert answer.error is not None
    assert answer.error.name == "OutOfOrderSequenceException"
    assert (values(world.logs[1]), values(world.logs[2])) == ([b"a", b"b", b"c"], [b"0"])


@pytest.mark.parametrize("retries", [{}, {"retries": 0}], ids=["retries", "none"])
@pytest.mark.parametrize("acks", [1, "all"])
def test_mc_04_without_a_leader_until_the_time_is_over(world, acks, retries):
    """As in Kafka it times out, with the last error as cause. Waiting for a leader is not a retry."""
    world.change(leader=-1, leader_epoch=1)
    (answer,) = Producer(world.uri, acks, **retries).send(TOPIC, records(b"a"), timeout_ms=20).values()
    assert answer.error is not None
    assert answer.error.name == "TimeoutException"
    assert isinstance(answer.error.__cause__, LeaderNotAvailableException)
    for text in (f"{TOPIC}-0: 1 records", "within 20 ms", "LeaderNotAvailableException", "no leader; replicas are"):
        assert text in str(answer.error)


def test_mc_04_records_that_wait_for_a_leader_are_sent_to_it_without_retries(world, monkeypatch):
    """Nothing was sent before, so this is the only attempt. A partition that had its attempt gets no other."""
    follow(world.logs[1], P1, epoch=1)
    both = pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
    world.change(leader=-1)
    monkeypatch.setattr(sender, "pause", lambda *_: world.change(leader=1))
    answers = Producer(world.uri, acks=1, retries=0).send(TOPIC, both, timeout_ms=LONG)
    assert [answer.error and answer.error.name for answer in answers.values()] == [None, "FencedLeaderEpochException"]
    assert values(world.logs[1]) == [b"a"]


def test_ap_07_a_leader_that_goes_before_it_acknowledges_is_named(world, monkeypatch):
    producer, commit = Producer(world.uri), DeltaLog.commit
    identity = producer._identity.id_and_epoch

    def lands_and_goes(log, cause, *args, **options):
        version = commit(log, cause, *args, **options)
        if is_append(log, cause):
            world.change(leader=-1, leader_epoch=1)
        return version

    monkeypatch.setattr(DeltaLog, "commit", lands_and_goes)
    (answer,) = producer.send(TOPIC, records(b"a"), timeout_ms=0).values()
    assert answer.error is not None
    assert (answer.base_offset, answer.error.name) == (0, "TimeoutException")
    assert isinstance(answer.error.__cause__, LeaderNotAvailableException)
    assert "were appended but not acknowledged" in str(answer.error)
    assert "the last error was LeaderNotAvailableException: flights-0: no leader" in str(answer.error)
    assert producer._identity is not identity


def test_ap_07_metadata_that_cannot_be_read_for_a_while_is_waited_for(world, monkeypatch, while_waiting):
    leaderships = TopicView.leaderships

    def is_back():
        monkeypatch.setattr(TopicView, "leaderships", leaderships)
        world.say(1)

    monkeypatch.setattr(TopicView, "leaderships", out_of_reach)
    while_waiting(lambda: None, is_back)
    (answer,) = Producer(world.uri).send(TOPIC, records(b"a"), timeout_ms=LONG).values()
    assert (answer.base_offset, answer.error) == (0, None)


def test_ap_07_metadata_that_cannot_be_read_until_the_time_is_over_is_named(world, monkeypatch, while_waiting):
    monkeypatch.setattr(TopicView, "leaderships", out_of_reach)
    while_waiting(*[lambda: None] * 100_000)
    (answer,) = Producer(world.uri).send(TOPIC, records(b"a"), timeout_ms=50).values()
    assert answer.error is not None
    assert (answer.base_offset, answer.error.name, answer.error.__cause__) == (0, "TimeoutException", OUT_OF_REACH)
    assert "the last error was KafkaStorageException: out of reach" in str(answer.error)


def test_ap_07_a_follower_that_cannot_be_asked_is_named(world, monkeypatch, while_waiting):
    replicas = TopicView.replicas

    def of_broker_1(view, broker, max_staleness=None):
        return replicas(view, broker, max_staleness) if broker == 1 else out_of_reach()

    monkeypatch.setattr(TopicView, "replicas", of_broker_1)
    while_waiting(*[lambda: None] * 100_000)
    (answer,) = Producer(world.uri).send(TOPIC, records(b"a"), timeout_ms=50).values()
    assert answer.error is not None
    assert str(answer.error).endswith("within 50 ms: broker 2 cannot be read (out of reach)")


def test_ap_06_a_partition_that_goes_while_it_is_sent_to(world, monkeypatch):
    """The topic was created again with fewer partitions."""
    partitions, looks = TopicView.partitions, []

    def fewer(view, topic, max_staleness=None):
        looks.append(topic)
        found = partitions(view, topic, max_staleness)
        return found if len(looks) == 1 else {0: found[0]}

    monkeypatch.setattr(TopicView, "partitions", fewer)
    (answer,) = Producer(world.uri, acks=1).send(TOPIC, records(b"a", partition=1), timeout_ms=0).values()
    assert answer.error is not None
    assert (answer.error.name, str(answer.error)) == (
        "UnknownTopicOrPartitionException", f"{TOPIC}-1: no such partition any more",
    )  # fmt: skip
