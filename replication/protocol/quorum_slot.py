"""A slot of a quorum of cluster roots: consensus on one version of one table, over stores that run no code.

Each root is a Paxos acceptor without a process. Its state for a slot is a list of events, objects `0`, `1`, `2`, … that
are created and never changed. A proposer appends an event by creating the first absent object, after it has read all
earlier ones. Creation fails if the object is there (put-if-absent), so each root orders the events of a slot, and a
request that lands hours late is either refused, or is the next event after exactly the events that its sender had read.

Sources: Paxos (Lamport), Active Disk Paxos (Chockler, Malkhi 2002), CASPaxos (Rystsov 2018), Howard and Mortier 2019.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Ballot(NamedTuple):
    """The number of a proposal. Ballots are ordered by number, then by session. A session is the UUID of one process
    life and table, so no two proposers share a ballot. Number 0 belongs to the session whose commit won the version
    before; it needs no promises, as no ballot is lower."""

    number: int
    session: str


class ProposedCommit(NamedTuple):
    """The value of a slot: one whole commit.

    `nonce` tells it from all others. `session` won the slot if it is decided, so it owns ballot 0 of the next one.
    `previous` is the nonce of the version before. `roots`: the identities of the roots that vote on the next version.
    """

    nonce: str
    session: str
    previous: str = ""
    roots: tuple[str, ...] = ()
    content: bytes = b""


class Promise(NamedTuple):
    """The acceptor accepts no lower ballot from now on (phase 1 of Paxos). `root`: the identity of the root that it is
    for; at another root, after a copy, it is void."""

    root: str
    ballot: Ballot


class Accept(NamedTuple):
    """The acceptor accepts the commit under this ballot (phase 2 of Paxos). `root`: as in `Promise`."""

    root: str
    ballot: Ballot
    commit: ProposedCommit


SlotEvent: TypeAlias = Promise | Accept


class Acceptor(NamedTuple):
    """The state of one root for one slot: the highest ballot promised, and the last accepted proposal."""

    promised: Ballot | None = None
    accepted: Accept | None = None


class RootState(NamedTuple):
    """The state of a root, read after an event: its identity (None if it has none), whether the version before the slot
    is published there, and whether the slot's segment is sealed.

    The identity lies in the folder of the events, in a file that is written once. It is the UUID in the file together
    with a mark that the store gives the file when it writes it, which a copy or a restored backup does not have. So a
    root that may have forgotten events has another identity, or none.
    """

    root: str | None
    has_previous: bool
    is_sealed: bool


class Vote(NamedTuple):
    """A root's answer to an event. `is_granted`: the event is in its list and counts. `events`: all events of the slot
    that were read or written there, in order, the own event included."""

    is_granted: bool
    events: tuple[SlotEvent, ...]


def majority(roots: int) -> int:
    """The size of the smallest majority of `roots` roots. Any two majorities share a root."""
    return roots // 2 + 1


def after(acceptor: Acceptor, event: SlotEvent) -> Acceptor:
    """The acceptor's state after one more event."""
    return Acceptor(event.ballot, event if isinstance(event, Accept) else acceptor.accepted)


def acceptor_after(events: Iterable[SlotEvent]) -> Acceptor:
    """The acceptor's state after these events, in order."""
    state = Acceptor()
    for event in events:
        state = after(state, event)
    return state


def is_allowed(acceptor: Acceptor, event: SlotEvent) -> bool:
    """Whether the acceptor may take the event: it has promised no higher ballot."""
    return acceptor.promised is None or event.ballot >= acceptor.promised


def counts(root: str, state: RootState) -> bool:
    """Whether an event at the root counts as a vote. `state` must be read after the event was written.

    A root that misses the version before is behind, or was filled again. In a sealed segment events may have been
    deleted, so an event that was created there may follow on others that nobody sees any more.
    """
    return state.root == root and state.has_previous and not state.is_sealed


def to_propose(votes: Iterable[Vote], own: ProposedCommit | None) -> ProposedCommit | None:
    """The commit that a proposer with a majority of promises proposes: the one accepted under the highest ballot, as it
    may be decided; its own only if no root has accepted any."""
    accepted = [event for vote in votes for event in vote.events if isinstance(event, Accept)]
    return max(accepted, key=_ballot).commit if accepted else own


def decided(events: Mapping[str, Sequence[SlotEvent]], needed: int) -> ProposedCommit | None:
    """The commit that `needed` roots have accepted under one ballot; None if these events show none."""
    for accepts in accepts_by_ballot(events).values():
        if len(accepts) >= needed:
            return next(iter(accepts.values())).commit
    return None


def may_be_decided(events: Mapping[str, Sequence[SlotEvent]], roots: int) -> bool:
    """Whether a commit may have been decided before these events were read at a majority: it has a majority if each
    root that has not answered accepted it too."""
    unread = roots - len(events)
    return any(len(accepts) + unread >= majority(roots) for accepts in accepts_by_ballot(events).values())


def accepts_by_ballot(events: Mapping[str, Sequence[SlotEvent]]) -> dict[Ballot, dict[str, Accept]]:
    """The accepts under each ballot, by root. An event that names another root is void."""
    found = defaultdict[Ballot, dict[str, Accept]](dict)
    for root, own in events.items():
        for event in own:
            if isinstance(event, Accept) and event.root == root:
                found[event.ballot][root] = event
    return found


def next_number(events: Collection[SlotEvent], last: int) -> int:
    """A ballot number above the own last one, and above all events seen."""
    return max([last, *(event.ballot.number for event in events)]) + 1


def _ballot(event: SlotEvent) -> Ballot:
    return event.ballot
