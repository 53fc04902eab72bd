"""The rounds of a quorum of cluster roots: a proposer's, a reader's, and one root's part of each. See `quorum_slot`.

A round yields steps that go to all roots in parallel. The executor of a step runs each root's part. It answers once a
majority has granted the step, once no majority can, or when no more answers come. The answer has only the roots that
have answered by then. A request that is still on its way may land at any later time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakelog.replication.protocol import quorum_slot
from lakelog.replication.protocol.quorum_slot import (
    Accept,
    Ballot,
    Promise,
    ProposedCommit,
    RootState,
    SlotEvent,
    Vote,
)
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.carry_out import Result

CREATE_TRIES = 3  # creations of one event at one root that are refused although nothing is there


class CreateEvent(NamedTuple):
    """Creates event `number` of the slot at one root, if it is absent. Answer: True once created; False if refused, or
    if nobody knows, as after a timeout. A store may refuse although nothing is there (S3's 409 for racing requests)."""

    root: str
    slot: int
    number: int
    event: SlotEvent


class ReadEvent(NamedTuple):
    """Reads event `number` of the slot at one root. Answer: the event, None if it is absent."""

    root: str
    slot: int
    number: int


class ReadRootState(NamedTuple):
    """Reads what decides whether the root's events count, or answers from a read of this process that is seconds old.
    Answer: `RootState`."""

    root: str
    slot: int


RootStep: TypeAlias = CreateEvent | ReadEvent | ReadRootState


class AskForPromises(NamedTuple):
    """Phase 1 at all roots: `append_event` of a promise. Answer: the `Vote` of each root that has answered."""

    slot: int
    ballot: Ballot


class AskToAccept(NamedTuple):
    """Phase 2 at all roots: `append_event` of an accept. `known`: the events that each root is known to have. Answer:
    the `Vote` of each root that has answered."""

    slot: int
    ballot: Ballot
    commit: ProposedCommit
    known: tuple[tuple[str, tuple[SlotEvent, ...]], ...] = ()


class ReadSlot(NamedTuple):
    """Reads the slot's events at all roots: `read_events`. Answer: the events of each root that has answered and
    counts; wait for a majority."""

    slot: int


class BackOff(NamedTuple):
    """Waits for a random time that grows with `rejections`, as another proposer is at work."""

    rejections: int


SlotStep: TypeAlias = AskForPromises | AskToAccept | ReadSlot | BackOff
Round: TypeAlias = carry_out.Round[SlotStep, Result]
RootRound: TypeAlias = carry_out.Round[RootStep, Result]


class SlotSettled(NamedTuple):
    """The slot is decided: this commit has won."""

    commit: ProposedCommit


class NotDecided(NamedTuple):
    """No commit was decided in the slot when the round began."""


class OutcomeUnknown(NamedTuple):
    """No majority has answered. The own commit, and any other, may be decided already, or later."""


@dataclass(frozen=True)
class QuorumRules:
    """The rules that the rounds call, as fields, so that the simulation can replace one."""

    majority: Callable[[int], int] = quorum_slot.majority
    to_propose: Callable[[Iterable[Vote], ProposedCommit | None], ProposedCommit | None] = quorum_slot.to_propose
    may_be_decided: Callable[[Mapping[str, tuple[SlotEvent, ...]], int], bool] = quorum_slot.may_be_decided
    is_allowed: Callable[[quorum_slot.Acceptor, SlotEvent], bool] = quorum_slot.is_allowed
    counts: Callable[[str, RootState], bool] = quorum_slot.counts
    counts_for_read: Callable[[str, RootState], bool] = quorum_slot.counts
    asks_for_promises: bool = True
    reads_after_refusal: bool = True
    reads_to_the_end: bool = True


QUORUM_RULES = QuorumRules()


def append_event(
    slot: int, event: SlotEvent, known: tuple[SlotEvent, ...] = (), rules: QuorumRules = QUORUM_RULES
) -> RootRound[Vote]:
    """One root's part of a vote: appends the event to the root's list, unless a higher ballot is there.

    `known`: events that the root is known to have, from its start. After each refusal it reads what is there: another's
    event, its own whose answer was lost, or nothing. A rejected proposer reads to the end of the list, so that its next
    ballot is above all that are there: else it would rise by one a try, past the ballots of all earlier proposers.
    """
    events, tries = list(known), 0
    state = quorum_slot.acceptor_after(events)
    while rules.is_allowed(state, event):
        found: SlotEvent | None = event
        if not (yield CreateEvent(event.root, slot, len(events), event)):
            found = yield ReadEvent(event.root, slot, len(events))
            if found is None and rules.reads_after_refusal:
                tries += 1
                if tries == CREATE_TRIES:
                    break
                continue
        if found is not None:
            events.append(found)
            state = quorum_slot.after(state, found)
        if found is None or found == event:
            root_state = yield ReadRootState(event.root, slot)
            return Vote(rules.counts(event.root, root_state), tuple(events))
    while rules.reads_to_the_end and (found := (yield ReadEvent(event.root, slot, len(events)))) is not None:
        events.append(found)
    return Vote(False, tuple(events))


def read_events(root: str, slot: int, rules: QuorumRules = QUORUM_RULES) -> RootRound[tuple[SlotEvent, ...] | None]:
    """One root's part of a read: all its events of the slot. None if the root does not count."""
    events: list[SlotEvent] = []
    while (found := (yield ReadEvent(root, slot, len(events)))) is not None:
        events.append(found)
    root_state = yield ReadRootState(root, slot)
    return tuple(events) if rules.counts_for_read(root, root_state) else None


def propose(
    slot: int, own: ProposedCommit | None, session: str, roots: int, attempts: int, has_ballot_0: bool = False,
    rules: QuorumRules = QUORUM_RULES,
) -> Round[SlotSettled | NotDecided | OutcomeUnknown]:  # fmt: skip
    """Settles the slot: proposes the own commit, or finishes another's that may be decided.

    Args:
        slot: the version.
        own: the commit to propose. None proposes nothing, and only finishes another's; `NotDecided` if there is none.
        session: the proposer's. It must not have proposed in this slot before.
        roots: the number of roots that vote on the slot.
        attempts: how many ballots to try above 0.
        has_ballot_0: the session has won the version before, so it may propose in one phase.
    """
    needed = rules.majority(roots)
    seen: list[SlotEvent] = []
    number = 0
    if own is not None and (has_ballot_0 or not rules.asks_for_promises):
        ballot = Ballot(0 if has_ballot_0 else 1, session)
        votes: Mapping[str, Vote] = yield AskToAccept(slot, ballot, own)
        if len(_granted(votes)) >= needed:
            return SlotSettled(own)
        seen += _events(votes)
    for rejections in range(1, attempts + 1):
        number = quorum_slot.next_number(seen, number)
        ballot = Ballot(number, session)
        promises: Mapping[str, Vote] = yield AskForPromises(slot, ballot)
        seen += _events(promises)
        if len(granted := _granted(promises)) >= needed:
            commit = rules.to_propose(granted.values(), own)
            if commit is None:
                return NotDecided()
            known = tuple(sorted((root, vote.events) for root, vote in promises.items()))
            votes = yield AskToAccept(slot, ballot, commit, known)
            if len(_granted(votes)) >= needed:
                return SlotSettled(commit)
            seen += _events(votes)
        if rejections < attempts:
            yield BackOff(rejections)
    return OutcomeUnknown()


def read_newest(
    slot: int, session: str, roots: int, attempts: int, rules: QuorumRules = QUORUM_RULES
) -> Round[SlotSettled | NotDecided | OutcomeUnknown]:
    """A linearizable read of the slot after the newest version that the reader knows.

    `NotDecided`: no commit was acknowledged in it before the read began. A commit of which only some roots are known to
    have accepted it is in doubt: the reader finishes it, under a ballot of its own `session`.
    """
    events: Mapping[str, tuple[SlotEvent, ...]] = yield ReadSlot(slot)
    if len(events) < rules.majority(roots):
        return OutcomeUnknown()
    commit = quorum_slot.decided(events, rules.majority(roots))
    if commit is not None:
        return SlotSettled(commit)
    if not rules.may_be_decided(events, roots):
        return NotDecided()
    return (yield from propose(slot, None, session, roots, attempts, rules=rules))


def part_of(
    step: AskForPromises | AskToAccept | ReadSlot, root: str, rules: QuorumRules = QUORUM_RULES
) -> RootRound[Vote] | RootRound[tuple[SlotEvent, ...] | None]:
    """One root's part of a step."""
    match step:
        case AskForPromises(slot, ballot):
            return append_event(slot, Promise(root, ballot), rules=rules)
        case AskToAccept(slot, ballot, commit, known):
            return append_event(slot, Accept(root, ballot, commit), dict(known).get(root, ()), rules)
        case ReadSlot(slot):
            return read_events(root, slot, rules)


def is_enough(step: SlotStep, answers: Mapping[str, Vote | tuple[SlotEvent, ...]], needed: int, roots: int) -> bool:
    """Whether the answers that have come settle the step: `needed` of the roots have granted it or can be read, or so
    many have not granted it that no more answers can make it a majority."""
    if isinstance(step, ReadSlot):
        return len(answers) >= needed
    granted = sum(isinstance(answer, Vote) and answer.is_granted for answer in answers.values())
    return granted >= needed or len(answers) - granted > roots - needed


def _granted(votes: Mapping[str, Vote]) -> dict[str, Vote]:
    return {root: vote for root, vote in votes.items() if vote.is_granted}


def _events(votes: Mapping[str, Vote]) -> list[SlotEvent]:
    return [event for vote in votes.values() for event in vote.events]
