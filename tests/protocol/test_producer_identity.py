"""The sequence numbers of sends in flight: whose turn it is, under which identity and with which first sequence."""

import pytest

from lakelog.replication.protocol import producer_identity
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity, Turn
from lakelog.replication.protocol.record_batch import TopicIdPartition

MANY = 50  # partitions that an identity knows

P, AGAIN = TopicIdPartition("id", 0), TopicIdPartition("made again", 0)
FIRST, SECOND = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(7, 1)


class Sends:
    """Three sends of two records to one partition. An event is a send's number and its progress."""

    def __init__(self):
        self.identity = ProducerIdentity(FIRST)
        self.sends = [self.identity.begin_send("t", [0]) for _ in range(3)]

    def happen(self, number, what):
        send = self.sends[number]
        match what:
            case "tried":
                send.sequence(P)
            case "written":
                send.sequence(P)
                send.note_written([P])
            case "appended" | "appended again":
                partition = P if what == "appended" else AGAIN
                send.sequence(partition)
                send.note_written([partition])
                send.note_appended(partition, 2)
            case "succeeds" | "fails":
                send.settle([0] if what == "succeeds" else [])
            case "out of order":
                assert send.note_out_of_order(P)
            case "used up":
                self.identity.use_up()
            case "renewed":
                send.identity.renew(SECOND)

    def turns(self):
        """The turn of each send, and the sequence if it is its turn."""
        turns = [send.turn(P) for send in self.sends]
        return [
            send.sequence(P) if turn is Turn.NOW else turn.name for send, turn in zip(self.sends, turns, strict=True)
        ]


LATER, NEW = "LATER", "NEEDS_IDENTITY"
TURNS = [
    ("the first one", [], [(7, 0, 0), LATER, LATER]),
    ("appended, so the next", [(0, "appended")], [(7, 0, 0), (7, 0, 2), LATER]),
    ("an unknown outcome holds up the next", [(0, "written")], [(7, 0, 0), LATER, LATER]),
    ("sent again, later ones went further", [(0, "appended"), (1, "appended"), (0, "appended")],
     [(7, 0, 0), (7, 0, 2), (7, 0, 4)]),
    ("to a topic made again in order", [(0, "appended"), (1, "appended again")], [(7, 0, 0), (7, 0, 2), LATER]),
    ("acknowledged", [(0, "appended"), (0, "succeeds")], [None, (7, 0, 2), LATER]),
    ("a failure without an attempt", [(0, "fails")], [None, (7, 0, 0), LATER]),
    ("a failure", [(0, "written"), (0, "fails")], [None, NEW, LATER]),
    ("a failure, renewed", [(0, "written"), (0, "fails"), (1, "renewed")], [None, (7, 1, 0), LATER]),
    ("those in flight go on after a failure", [(0, "appended"), (1, "appended"), (0, "fails")],
     [None, (7, 0, 2), LATER]),
    ("then the next is renewed", [(0, "appended"), (1, "appended"), (0, "fails"), (1, "succeeds")], [None, None, NEW]),
    ("an attempt is made anew", [(0, "appended"), (1, "tried"), (0, "fails"), (1, "renewed")],
     [None, (7, 1, 0), LATER]),
    ("out of order without a write", [(0, "tried"), (0, "out of order")], [NEW, LATER, LATER]),
    ("out of order behind another", [(0, "appended"), (1, "written"), (1, "out of order")],
     [(7, 0, 0), (7, 0, 2), LATER]),
    ("renewed between, others first", [(0, "appended"), (0, "renewed")], [(7, 0, 0), (7, 0, 2), LATER]),
    ("renewed between, then nothing in flight", [(0, "appended"), (0, "renewed"), (0, "succeeds")],
     [None, (7, 1, 0), LATER]),
    ("used up, so what no log may hold waits", [(0, "appended"), (1, "appended"), (0, "used up")],
     [(7, 0, 0), (7, 0, 2), LATER]),
    ("used up after an attempt that wrote nothing", [(0, "appended"), (1, "tried"), (0, "used up")],
     [(7, 0, 0), LATER, LATER]),
    ("used up, then nothing in flight", [(0, "appended"), (0, "used up"), (0, "succeeds")], [None, NEW, LATER]),
    ("used up, then renewed", [(0, "appended"), (0, "used up"), (0, "succeeds"), (1, "renewed")],
     [None, (7, 1, 0), LATER]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "wanted"), [case[1:] for case in TURNS], ids=[case[0] for case in TURNS])
def test_ap_06_a_send_waits_for_earlier_sends_to_its_partition(events, wanted):
    sends = Sends()
    for number, what in events:
        sends.happen(number, what)
    ended = {number for number, what in events if what in ("succeeds", "fails")}
    assert [None if n in ended else turn for n, turn in enumerate(sends.turns())] == wanted


def test_ap_06_a_send_that_a_log_may_hold_is_refused_when_it_is_out_of_order():
    sends = Sends()
    sends.happen(0, "written")
    assert not sends.sends[0].note_out_of_order(P)


def test_ap_06_a_used_up_identity_is_renewed_for_all_partitions():
    identity = ProducerIdentity(FIRST)
    busy = identity.begin_send("t", [0])
    busy.sequence(P)
    identity.use_up()
    other = TopicIdPartition("id", 1)
    assert identity.begin_send("t", [1]).turn(other) is Turn.NEEDS_IDENTITY


@pytest.mark.parametrize("is_first", [True, False])
def test_ap_06_a_log_must_know_the_producer_of_records_that_follow(is_first):
    sends = Sends()
    sends.happen(0, "appended")
    assert sends.sends[0 if is_first else 1].follows(P) is not is_first


def test_ap_06_sequences_that_are_resumed_hold_under_each_topic_id():
    """The topic may be deleted and made again while the records wait for a leader."""
    identity = ProducerIdentity(FIRST)
    identity.resume("t", {0: 50})
    send = identity.begin_send("t", [0])
    assert [send.sequence(TopicIdPartition(topic_id, 0))[2] for topic_id in ("id", "another")] == [50, 50]


def topic_of(number):
    return TopicIdPartition(f"id-{number}", 0)


def sent(identity, number, records=2):
    """A send to partition 0 of a topic, from its beginning to its acknowledgement. Returns its sequence."""
    send, partition = identity.begin_send(f"topic-{number}", [0]), topic_of(number)
    if send.turn(partition) is Turn.NEEDS_IDENTITY:
        send.identity.renew(ProducerIdAndEpoch(8, 0))
        assert send.turn(partition) is Turn.NOW
    found = send.sequence(partition)
    send.note_appended(partition, records)
    send.settle([0])
    return found


def test_ap_06_topics_that_come_and_go_are_forgotten_and_not_used_under_the_same_sequences(monkeypatch):
    monkeypatch.setattr(producer_identity, "_MOST", MANY)
    identity = ProducerIdentity(ProducerIdAndEpoch(7, 0))
    open_send = identity.begin_send("topic-0", [0])
    assert [sent(identity, number) for number in range(1, MANY)] == [(7, 0, 0)] * (MANY - 1)
    assert sent(identity, 1) == (8, 0, 0), "its sequences under 7 are not known any more"
    assert identity.partitions < 10
    assert (open_send.turn(topic_of(0)), open_send.sequence(topic_of(0))) == (Turn.NOW, (8, 0, 0))
    assert sent(identity, 1) == (8, 0, 2)


def test_ap_06_a_producer_with_stored_sequences_forgets_none(monkeypatch):
    monkeypatch.setattr(producer_identity, "_MOST", MANY)
    identity = ProducerIdentity(ProducerIdAndEpoch(7, 0))
    identity.resume("topic-1", {0: 5})
    for number in range(2, MANY + 2):
        sent(identity, number)
    assert sent(identity, 1) == (7, 0, 5)
