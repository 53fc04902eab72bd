"""Every interleaving of small bounds, and the breaks that they catch."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol import quorum_slot
from lakelog.replication.protocol.quorum_slot import Accept
from lakelog.replication.protocol.rounds.quorum_round import QUORUM_RULES
from lakelog.verification.simulation.quorum.slot_explorer import (
    ANSWER_LOST,
    CRASH,
    REFUSED,
    ROOT_LOST,
    SlotExplorer,
    SlotProcess,
    SlotViolation,
)

OWNER = SlotProcess("a", has_ballot_0=True)
OTHER, THIRD = SlotProcess("b"), SlotProcess("c")
READER = SlotProcess("r", is_reader=True)


WON_OR_NOT = {("b", "won"), ("b", "unknown"), ("c", "won"), ("c", "conflict")}


@pytest.mark.parametrize(
    ("is_reduced", "states", "interleavings"),
    [(False, 58_646, 16_919_735_175_152_929_326), (True, 18_043, 2_025_247_932)],
)
def test_two_proposers_agree_in_every_interleaving(is_reduced, states, interleavings):
    explored = SlotExplorer((OTHER, THIRD), is_reduced=is_reduced).run()
    assert (explored.states, explored.interleavings, explored.outcomes) == (states, interleavings, WON_OR_NOT)


def test_two_proposers_agree_in_every_interleaving_with_a_crash():
    explored = SlotExplorer((OTHER, THIRD), 1, (CRASH,), is_reduced=True).run()
    assert (explored.states, explored.interleavings, explored.outcomes) == (28_706, 7_399_616_202, WON_OR_NOT)


@pytest.mark.parametrize("kind", [CRASH, ROOT_LOST, ANSWER_LOST, REFUSED])
def test_an_owner_alone_wins_with_one_fault_in_every_interleaving(kind):
    explored = SlotExplorer((OWNER,), 1, (kind,)).run()
    assert explored.outcomes == {("a", "won")}


def _prefers_its_own(votes, own):
    return own if own is not None else quorum_slot.to_propose(votes, own)


@pytest.mark.parametrize(
    ("processes", "rules", "faults"),
    [
        ((OWNER, OTHER), replace(QUORUM_RULES, majority=lambda _: 1), 0),
        ((OTHER, THIRD), replace(QUORUM_RULES, asks_for_promises=False), 0),
        ((OWNER, OTHER), replace(QUORUM_RULES, to_propose=_prefers_its_own), 0),
        ((OWNER, OTHER), replace(QUORUM_RULES, is_allowed=lambda *_: True), 0),
        ((OWNER, OTHER), replace(QUORUM_RULES, reads_after_refusal=False), 1),
        ((OWNER, READER), replace(QUORUM_RULES, may_be_decided=lambda *_: False), 0),
    ],
    ids=["majority of one", "no promises", "own over accepted", "lower ballots accepted", "refusal taken for its own",
         "2 of 3 answers taken for absent"],
)  # fmt: skip
def test_a_break_is_caught(processes, rules, faults):
    with pytest.raises(SlotViolation):
        SlotExplorer(processes, faults, rules=rules, is_reduced=True).run()


def test_a_session_that_uses_ballot_0_twice_is_caught():
    with pytest.raises(SlotViolation, match="two commits"):
        SlotExplorer((OWNER, SlotProcess("a again", has_ballot_0=True, session="a"), OTHER)).run()


def test_the_checker_counts_accepts_by_ballot_and_commit():
    explorer = SlotExplorer((OWNER,))
    event = Accept("", quorum_slot.Ballot(0, "a"), quorum_slot.ProposedCommit("a", "a"))
    assert explorer._decided(((event,), (event,), ())) == "a"
    assert explorer._decided(((event,), (), ())) is None
