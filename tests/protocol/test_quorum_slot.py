"""One root as an acceptor, and what a majority of roots shows."""

import pytest

from lakelog.replication.protocol.quorum_slot import (
    Accept,
    Acceptor,
    Ballot,
    Promise,
    ProposedCommit,
    RootState,
    Vote,
    acceptor_after,
    counts,
    decided,
    is_allowed,
    majority,
    may_be_decided,
    next_number,
    to_propose,
)

X, Y = ProposedCommit("x", "p"), ProposedCommit("y", "q")
LOW, HIGH = Ballot(1, "p"), Ballot(1, "q")
OWNERS = Ballot(0, "z")


def promise(ballot, root="a"):
    return Promise(root, ballot)


def accept(ballot, commit, root="a"):
    return Accept(root, ballot, commit)


@pytest.mark.parametrize(("roots", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_two_majorities_share_a_root(roots, needed):
    assert majority(roots) == needed
    assert 2 * needed > roots


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Acceptor()),
        ([promise(LOW)], Acceptor(LOW)),
        ([accept(OWNERS, X)], Acceptor(OWNERS, accept(OWNERS, X))),
        ([accept(OWNERS, X), promise(LOW)], Acceptor(LOW, accept(OWNERS, X))),
        ([promise(LOW), accept(LOW, X), accept(HIGH, Y)], Acceptor(HIGH, accept(HIGH, Y))),
    ],
)
def test_the_state_of_an_acceptor_follows_from_its_events(events, expected):
    assert acceptor_after(events) == expected


@pytest.mark.parametrize(
    ("promised", "event", "expected"),
    [
        (None, accept(OWNERS, X), True),
        (None, promise(LOW), True),
        (LOW, accept(LOW, X), True),
        (LOW, promise(HIGH), True),
        (LOW, accept(HIGH, Y), True),
        (LOW, accept(OWNERS, X), False),
        (HIGH, promise(LOW), False),
        (HIGH, accept(LOW, X), False),
    ],
)
def test_an_acceptor_takes_no_lower_ballot_than_it_has_promised(promised, event, expected):
    assert is_allowed(Acceptor(promised), event) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (RootState("a", True, False), True),
        (RootState(None, True, False), False),
        (RootState("b", True, False), False),
        (RootState("a", False, False), False),
        (RootState("a", True, True), False),
    ],
    ids=["as it was", "emptied and filled again", "a copy", "without the version before", "sealed"],
)
def test_an_event_counts_only_at_a_root_that_has_lost_nothing(state, expected):
    assert counts("a", state) is expected


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([[], []], Y),
        ([[promise(LOW)], []], Y),
        ([[accept(OWNERS, X)], []], X),
        ([[accept(OWNERS, X), promise(HIGH)], [accept(LOW, Y)]], Y),
        ([[accept(HIGH, X)], [accept(LOW, Y)]], X),
    ],
)
def test_a_proposer_proposes_what_was_accepted_under_the_highest_ballot(lists, expected):
    assert to_propose([Vote(True, tuple(events)) for events in lists], Y) == expected


@pytest.mark.parametrize(
    ("events", "is_decided", "may_be"),
    [
        ({"a": [], "b": []}, False, False),
        ({"a": [accept(LOW, X, "a")], "b": []}, False, True),
        ({"a": [accept(LOW, X, "a")], "b": [], "c": []}, False, False),
        ({"a": [accept(LOW, X, "a")], "b": [accept(LOW, X, "b")]}, True, True),
        ({"a": [accept(LOW, X, "a")], "b": [accept(HIGH, X, "b")], "c": []}, False, False),
        ({"a": [accept(LOW, X, "a")], "b": [accept(LOW, X, "a")], "c": []}, False, False),
        ({"a": [accept(LOW, X, "a"), promise(HIGH)], "b": [accept(LOW, X, "b"), promise(HIGH)]}, True, True),
    ],
    ids=["empty", "in doubt", "one of three", "a majority", "two ballots", "a copied event", "promised since"],
)  # fmt: skip
def test_a_commit_is_decided_by_a_majority_of_accepts_under_one_ballot(events, is_decided, may_be):
    assert (decided(events, 2) == X) is is_decided
    assert may_be_decided(events, 3) is may_be


def test_the_next_ballot_is_above_all_that_were_seen():
    assert next_number([], 0) == 1
    assert next_number([promise(Ballot(4, "q"))], 2) == 5
    assert next_number([promise(Ballot(1, "q"))], 2) == 3
