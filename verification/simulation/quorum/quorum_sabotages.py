"""Broken rules of the quorum of cluster roots, one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lakelog.replication.protocol import quorum_slot
from lakelog.replication.protocol.quorum_slot import ProposedCommit, RootState, Vote
from lakelog.replication.protocol.rounds.quorum_round import QuorumRules
from lakelog.verification.simulation.quorum.quorum_history import Habits


class QuorumSabotage(NamedTuple):
    """A description of the break, and the habits with it."""

    what: str
    habits: Habits


def _own_first(votes: Iterable[Vote], own: ProposedCommit | None) -> ProposedCommit | None:
    return own or quorum_slot.to_propose(votes, own)


def _without_uuid(_: str, state: RootState) -> bool:
    return state.has_previous and not state.is_sealed


def _without_previous(root: str, state: RootState) -> bool:
    return state.root == root and not state.is_sealed


def _without_seal(root: str, state: RootState) -> bool:
    return state.root == root and state.has_previous


def _uuid_only(root: str, state: RootState) -> bool:
    return state.root == root


def _previous_only(_: str, state: RootState) -> bool:
    return state.has_previous


def _rules(**broken: object) -> Habits:
    return Habits(rules=QuorumRules(**broken))  # type: ignore[arg-type]


QUORUM_SABOTAGES = {
    "majority_of_one": QuorumSabotage("one root is enough", _rules(majority=lambda _: 1)),
    "skips_promises": QuorumSabotage("another writer skips phase 1", _rules(asks_for_promises=False)),
    "proposes_its_own": QuorumSabotage("a proposer ignores accepted commits", _rules(to_propose=_own_first)),
    "accepts_lower_ballots": QuorumSabotage("a root forgets its promise", _rules(is_allowed=lambda *_: True)),
    "refusal_is_its_own": QuorumSabotage(
        "a refused creation counts as landed when nothing is there", _rules(reads_after_refusal=False)
    ),
    "reads_to_the_first_rejection": QuorumSabotage(
        "a rejected proposer does not look for the highest ballot", _rules(reads_to_the_end=False)
    ),
    "reads_no_doubt": QuorumSabotage(
        "a reader takes two answers of three for absent", _rules(may_be_decided=lambda *_: False)
    ),
    "keeps_its_session": QuorumSabotage("a restarted process uses its ballots again", Habits(keeps_session=True)),
    "counts_any_root": QuorumSabotage(
        "a root counts without its UUID", _rules(counts=_without_uuid, counts_for_read=_without_uuid)
    ),
    "counts_without_previous_and_seal": QuorumSabotage(
        "a root counts that misses the version before, or has deleted events",
        _rules(counts=_uuid_only, counts_for_read=_uuid_only),
    ),
    "votes_without_previous": QuorumSabotage(
        "a root votes that misses the version before", _rules(counts=_without_previous)
    ),
    "votes_in_a_sealed_segment": QuorumSabotage("a seal is ignored", _rules(counts=_without_seal)),
    "reads_any_root": QuorumSabotage("a reader counts a root of any state", _rules(counts_for_read=lambda *_: True)),
    "reads_without_uuid_and_seal": QuorumSabotage(
        "a reader only looks whether the version before is there", _rules(counts_for_read=_previous_only)
    ),
    "publishes_without_reading": QuorumSabotage(
        "a refused publish is taken for published", Habits(reads_after_publishing=False)
    ),
    "copies_nothing": QuorumSabotage(
        "a process publishes only what it knows itself, so a root that is behind stays so",
        Habits(copies_from_other_roots=False),
    ),
    "polls_its_own_roots": QuorumSabotage(
        "a process whose roots have all been replaced asks no others", Habits(polls_all_places=False)
    ),
    "publishes_early": QuorumSabotage("a commit is published before it is decided", Habits(publishes_early=True)),
    "publishes_out_of_order": QuorumSabotage(
        "a commit is published at a root that misses the one before", Habits(publishes_out_of_order=True)
    ),
    "deletes_before_seal": QuorumSabotage("clean-up deletes before it seals", Habits(deletes_before_seal=True)),
    "voter_writes_previous": QuorumSabotage(
        "a voter publishes the version before itself", Habits(writes_previous=True)
    ),
    "keeps_its_identity_in_a_restore": QuorumSabotage(
        "a root that was restored from a backup counts as before", Habits(identity_survives_a_restore=True)
    ),
    "keeps_its_identity_without_events": QuorumSabotage(
        "a root's identity lies in another folder than its events", Habits(identity_is_elsewhere=True)
    ),
    "refills_an_emptied_root": QuorumSabotage("an emptied root is filled again by itself", Habits(refills=True)),
}
