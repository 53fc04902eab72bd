"""Several sends in flight: each partition keeps the order of the sends, and no record is lost or doubled."""

from collections import deque
from functools import partial
from itertools import pairwise

import pytest

from lakelog.replication.errors import KafkaStorageException, LakelogException, OutOfOrderSequenceException
from lakelog.replication.protocol.producer_identity import SendSequences, Turn
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, SendInFlight, StepOf
from lakelog.replication.protocol.rounds.send_round import Pause
from tests.protocol.rounds.pipelined import PARTITIONS, Interrupted, World

LOST = KafkaStorageException("no answer")


def storm(seed, **options):
    """A producer sends while leaders change and answers are lost. Then all is calm, and it sends once more."""
    world = World(seed, **options)
    for _ in range(6):
        for _ in range(world.rng.randrange(1, 4)):
            world.put_some()
        left = iter(range(world.rng.randrange(12)))
        world.go_on(lambda left=left: next(left, None) is None)
    world.calm()
    world.go_on()
    world.put(dict.fromkeys(PARTITIONS, 1), 20.0)
    world.go_on()
    world.calm()
    return world


def faults(world):
    """The broken promises: each record once at most, in the order of the sends, and the acknowledged ones at all.

    An error of Python, as of a broken rule that names what was renamed, breaks no promise: it is raised.
    """
    for sent in world.sent:
        if not isinstance(sent.error, LakelogException | Interrupted | None):
            raise sent.error
    for partition in PARTITIONS:
        values = world.values(partition)
        if len(set(values)) < len(values):
            yield "doubled"
        if any(one > other for one, other in pairwise(values)):
            yield "reordered"
        sends = [sent for sent in world.sent if partition in sent.values]
        if not {value for sent in sends for value in sent.acknowledged(partition)} <= set(values):
            yield "lost"
        failed = [sent for sent in sends if not sent.acknowledged(partition)]
        if failed and failed[0].answers and isinstance(failed[0].answers[partition].error, OutOfOrderSequenceException):
            yield "out of order without an earlier failure"
    if not all(world.sent[-1].acknowledged(partition) for partition in PARTITIONS):
        yield "does not heal"


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_ap_06_no_history_loses_doubles_or_reorders_a_record(first):
    worlds = {seed: storm(seed) for seed in range(first, first + 50)}
    assert {seed: found for seed, world in worlds.items() if (found := list(faults(world)))} == {}
    answers = [sent.answers or {} for world in worlds.values() for sent in world.sent]
    assert sum(answer.error is None for found in answers for answer in found.values()) > 500
    assert max(world.most_in_flight for world in worlds.values()) == 5


shipped = SendSequences.turn, SendSequences.settle


def overtakes(send, partition):
    """A send does not wait for those before it."""
    turn = shipped[0](send, partition)
    return Turn.NOW if turn is Turn.LATER else turn


def renews_at_once(send, partition):
    """A partition takes a new identity while sends under the old one are in flight."""
    sends = send._places[partition.partition]
    if sends.is_used_up and partition.partition not in send._written:
        if send.identity.needs_renewal(sends):
            return Turn.NEEDS_IDENTITY
        sends.take(send.identity.id_and_epoch)
    return shipped[0](send, partition)


def keeps_its_identity(send, _):
    """A failed send leaves its sequences to the next one."""
    shipped[1](send, send._places)


def starts_over(send, partition):
    """A send that a log may hold begins at 0 under a new identity."""
    if not send.follows(partition):
        send._places[partition.partition].is_used_up = True
        send._written.discard(partition.partition)
    return True


BROKEN = {
    "turn, overtakes": ("turn", overtakes),
    "turn, renews at once": ("turn", renews_at_once),
    "settle": ("settle", keeps_its_identity),
    "note_out_of_order": ("note_out_of_order", starts_over),
    "follows": ("follows", lambda *_: False),
}


@pytest.mark.parametrize("name", BROKEN)
def test_ap_06_a_broken_rule_is_noticed(monkeypatch, name):
    monkeypatch.setattr(SendSequences, *BROKEN[name])
    assert any(list(faults(storm(seed))) for seed in range(400))


def test_a_break_that_shows_only_as_an_error_of_python_is_none(monkeypatch):
    monkeypatch.setattr(SendSequences, "turn", lambda send, _: send.renamed)
    with pytest.raises(AttributeError, match="renamed"):
        list(faults(storm(0)))


class Pipeline:
    """Sends whose rounds are lists: a step's name, an error to be raised by it, or a pause. `told`: what happened."""

    def __init__(self, *sends, max_in_flight=2, wakes=()):
        self.told, self.now, self.waiting = [], 0.0, deque(enumerate(sends))
        self.wakes = deque(wakes)
        self.round = PipelineRound(self.next_send, max_in_flight, lambda: self.now, 1.0)

    def next_send(self):
        if not self.waiting:
            return None
        number, steps = self.waiting.popleft()
        execute = partial(self.execute, number)
        return SendInFlight(self.work(steps), 10.0 - number, execute, lambda *ended: self.told.append((number, *ended)))

    def work(self, steps):
        for step in steps:
            yield {"pause": Pause(9.0), "backoff": Pause(9.0, True)}.get(step, step)
        return "answers"

    def run(self, until=lambda: False):
        carry_out(self.round.run(until), {StepOf: StepOf.answer, Pause: self.pause})
        return self.told

    def execute(self, number, step):
        self.told.append(f"{step} of {number}")
        if isinstance(step, BaseException):
            raise step

    def pause(self, step):
        self.told.append(f"{'backoff' if step.is_backoff else 'pause'} until {step.deadline}")
        self.now += 1.0
        return self.wakes.popleft() if self.wakes else None


def test_ap_06_a_send_begins_while_those_before_it_wait_and_all_look_after_one_pause():
    pipeline = Pipeline(["append", "pause", "poll"], ["append", "pause", "poll"])
    assert pipeline.run() == [
        "append of 0", "append of 1", "pause until 9.0", "poll of 0", (0, "answers", None), "poll of 1",
        (1, "answers", None),
    ]  # fmt: skip


def test_ap_06_a_pause_of_all_is_a_backoff_as_long_as_one_of_them_is_about_to_try_again():
    pipeline = Pipeline(["append", "backoff", "retry", "pause", "poll"], ["append", "pause", "poll", "pause", "again"])
    assert pipeline.run() == [
        "append of 0", "append of 1", "backoff until 9.0", "retry of 0", "poll of 1", "pause until 9.0", "poll of 0",
        (0, "answers", None), "again of 1", (1, "answers", None),
    ]  # fmt: skip


def test_ap_06_no_more_sends_are_in_flight_than_allowed():
    pipeline = Pipeline(*[["append", "pause"]] * 3, max_in_flight=1)
    once = ["append of {0}", "pause until {1}"]
    told = [step for step in pipeline.run() if isinstance(step, str)]
    assert told == [line.format(n, 10.0 - n) for n in range(3) for line in once]


def test_ap_06_a_pause_that_was_cut_short_begins_what_is_new_and_looks_later():
    pipeline = Pipeline(["append", "pause", "poll"], wakes=[True])
    told, wait = pipeline.told, pipeline.pause

    def put_meanwhile(step):
        pipeline.waiting.extend([(1, ["append"])] if len(told) == 1 else [])
        woken = wait(step)
        pipeline.now = 0.0
        return woken

    pipeline.pause = put_meanwhile
    assert pipeline.run()[1:] == [
        "pause until 10.0", "append of 1", (1, "answers", None), "pause until 10.0", "poll of 0",
        (0, "answers", None),
    ]  # fmt: skip


def test_ap_06_while_sends_begin_the_others_look_when_it_is_time():
    pipeline = Pipeline(["append", "pause", "poll"], *[["append"]] * 3)
    begin = pipeline.next_send

    def take_long():
        pipeline.now += 0.7
        return begin()

    pipeline.round._next_send = take_long
    assert pipeline.run().index("poll of 0") < pipeline.told.index("append of 3")


def test_ap_06_an_error_of_a_send_ends_no_other():
    pipeline = Pipeline(["append", LOST], ["append", "pause", "poll"])
    assert [ended for ended in pipeline.run() if isinstance(ended, tuple)] == [(0, None, LOST), (1, "answers", None)]


def test_ap_06_an_interruption_ends_all_sends_in_flight_and_no_other():
    pipeline = Pipeline(["append", "pause", "poll"], ["append", Interrupted()], ["append"])
    with pytest.raises(Interrupted) as interrupted:
        pipeline.run()
    pipeline.round.abort(interrupted.value)
    assert pipeline.told[-2:] == [(0, None, interrupted.value), (1, None, interrupted.value)]
    pipeline.told.clear()
    assert pipeline.run() == ["append of 2", (2, "answers", None)]


def test_ap_06_what_is_left_goes_on_later():
    pipeline = Pipeline(["append", "pause", "poll"], ["append"])
    assert pipeline.run(lambda: (1, "answers", None) in pipeline.told)[-1] == (1, "answers", None)
    assert pipeline.round.in_flight == 1
    assert pipeline.run()[-1] == (0, "answers", None)
