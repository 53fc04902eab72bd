"""The proposer's and the reader's rounds, and one root's part, over roots in memory."""

import pytest

from lakelog.replication.protocol.quorum_slot import Accept, Ballot, Promise, ProposedCommit, RootState, Vote
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.quorum_round import (
    CREATE_TRIES,
    AskForPromises,
    AskToAccept,
    BackOff,
    CreateEvent,
    NotDecided,
    OutcomeUnknown,
    ReadEvent,
    ReadRootState,
    ReadSlot,
    SlotSettled,
    append_event,
    is_enough,
    part_of,
    propose,
    read_newest,
)

MINE, OTHERS = ProposedCommit("mine", "me"), ProposedCommit("other's", "other")
HIGHER = Ballot(3, "other")


class Roots:
    """Roots in memory. Those in `away` do not answer. `steps`: the steps that were carried out."""

    def __init__(self, *names, away=()):
        self.events = {name: [] for name in names}
        self.away, self.steps, self.requests = away, [], 0

    def create(self, step):
        self.requests += 1
        is_free = step.number == len(self.events[step.root])
        self.events[step.root] += [step.event] if is_free else []
        return is_free

    def read(self, step):
        self.requests += 1
        return dict(enumerate(self.events[step.root])).get(step.number)

    def part(self, work):
        handlers = {CreateEvent: self.create, ReadEvent: self.read,
                    ReadRootState: lambda step: RootState(step.root, True, False)}  # fmt: skip
        return carry_out(work, handlers)

    def ask(self, step):
        self.steps.append(step)
        return {root: self.part(part_of(step, root)) for root in self.events if root not in self.away}

    def run(self, work):
        handlers = {AskForPromises: self.ask, AskToAccept: self.ask, ReadSlot: self.ask, BackOff: self.steps.append}
        return carry_out(work, handlers)

    @property
    def kinds(self):
        return [type(step) for step in self.steps]


def three(**settings):
    return Roots("a", "b", "c", **settings)


@pytest.mark.parametrize("away", ["", "a", "c"])
def test_the_last_writer_commits_in_one_round_of_one_request_a_root(away):
    roots = three(away=away)
    assert roots.run(propose(8, MINE, "me", 3, 1, has_ballot_0=True)).commit == MINE
    assert roots.kinds == [AskToAccept]
    assert roots.requests == 3 - len(away)


def test_another_writer_commits_in_two_rounds_of_one_request_a_root():
    roots = three()
    assert roots.run(propose(8, MINE, "me", 3, 1)) == SlotSettled(MINE)
    assert roots.kinds == [AskForPromises, AskToAccept]
    assert roots.requests == 6


def test_a_slot_that_may_be_decided_is_finished_with_the_commit_that_is_there():
    roots = three(away="b")
    roots.events["a"].append(Accept("a", Ballot(0, "other"), OTHERS))
    assert roots.run(propose(8, MINE, "me", 3, 1)) == SlotSettled(OTHERS)


def test_a_rejected_proposer_backs_off_and_tries_above_the_ballot_that_it_has_seen():
    roots = three()
    for name, events in roots.events.items():
        events += [Promise(name, Ballot(1, "other")), Promise(name, HIGHER)]
    assert roots.run(propose(8, MINE, "me", 3, 2, has_ballot_0=True)).commit == MINE
    assert roots.kinds == [AskToAccept, AskForPromises, AskToAccept]
    assert roots.steps[-1].ballot == Ballot(4, "me")


def test_without_a_majority_nothing_is_known():
    roots = three(away="bc")
    assert roots.run(propose(8, MINE, "me", 3, 2, has_ballot_0=True)) == OutcomeUnknown()
    assert BackOff in roots.kinds
    assert roots.run(read_newest(8, "me", 3, 1)) == OutcomeUnknown()


def test_a_read_of_the_newest_version_is_one_round_of_one_request_a_root():
    roots = three(away="b")
    assert roots.run(read_newest(8, "me", 3, 1)) == NotDecided()
    assert roots.kinds == [ReadSlot]
    assert roots.requests == 2


def test_a_read_finishes_a_commit_in_doubt():
    roots = three(away="b")
    roots.events["a"].append(Accept("a", Ballot(0, "other"), OTHERS))
    assert roots.run(read_newest(8, "me", 3, 1)).commit == OTHERS
    assert roots.kinds == [ReadSlot, AskForPromises, AskToAccept]
    assert roots.run(read_newest(8, "me again", 3, 1)).commit == OTHERS
    assert roots.kinds[3:] == [ReadSlot]


def test_a_read_that_finds_a_lone_accept_among_all_roots_leaves_it():
    roots = three()
    roots.events["a"].append(Accept("a", Ballot(0, "other"), OTHERS))
    assert roots.run(read_newest(8, "me", 3, 1)) == NotDecided()


@pytest.mark.parametrize(
    ("answers", "vote"),
    [
        ([True], True),
        ([False, "own"], True),
        ([False, None, True], True),
        ([False, "lower", True], True),
        ([False, "higher", "highest", None], False),
        ([*[False, None] * CREATE_TRIES, None], False),
    ],
    ids=["created", "answer lost", "refused with nothing there", "after another's", "rejected", "never created"],
)
def test_after_each_refusal_a_root_is_read(answers, vote):
    event = Accept("a", Ballot(1, "me"), MINE)
    found = {
        "own": event,
        "lower": Promise("a", Ballot(0, "z")),
        "higher": Promise("a", HIGHER),
        "highest": Promise("a", Ballot(9, "other")),
    }
    left = [found.get(answer, answer) if isinstance(answer, str) else answer for answer in answers]
    handlers = {CreateEvent: lambda _: left.pop(0), ReadEvent: lambda _: left.pop(0),
                ReadRootState: lambda _: RootState("a", True, False)}  # fmt: skip
    assert carry_out(append_event(8, event), handlers).is_granted is vote
    assert not left


def test_a_vote_at_a_root_that_has_lost_its_past_does_not_count():
    event = Accept("a", Ballot(1, "me"), MINE)
    handlers = {CreateEvent: lambda _: True, ReadRootState: lambda _: RootState(None, True, False)}
    assert carry_out(append_event(8, event), handlers) == Vote(False, (event,))


@pytest.mark.parametrize(
    ("granted", "refused", "roots", "expected"),
    [
        (1, 1, 3, False), (2, 0, 3, True), (0, 2, 3, True), (0, 1, 3, False),
        (2, 2, 5, False), (3, 0, 5, True), (1, 3, 5, True), (2, 3, 5, True),
    ],
)  # fmt: skip
def test_a_vote_ends_once_a_majority_has_granted_it_or_none_can(granted, refused, roots, expected):
    """Else it would wait for a root that hangs, though that changes nothing."""
    votes = [Vote(True, ())] * granted + [Vote(False, ())] * refused
    answers = {str(number): vote for number, vote in enumerate(votes)}
    for step in (AskForPromises(1, HIGHER), AskToAccept(1, HIGHER, MINE)):
        assert is_enough(step, answers, roots // 2 + 1, roots) == expected
