"""Explores every interleaving of a few proposers and readers on one slot, with a bounded number of faults.

Between any two requests any other process may act, any request may land, and a fault may happen. States that differ
only in the order of the roots are one, and each is explored once. So the number of interleavings is counted, not run.

Each part of a step stops when its process goes on. Its request in flight may then land at any time, or never.

A request at an event that is already there has the same answer at any later time, as events are never changed. With
`is_reduced` it comes at once, before all other moves: their order makes no difference. (A partial-order reduction.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from lakelog.replication.protocol.quorum_slot import (
    Accept,
    Promise,
    ProposedCommit,
    RootState,
    SlotEvent,
    Vote,
    majority,
)
from lakelog.replication.protocol.rounds.quorum_round import (
    QUORUM_RULES,
    BackOff,
    CreateEvent,
    NotDecided,
    OutcomeUnknown,
    QuorumRules,
    ReadEvent,
    ReadRootState,
    SlotSettled,
    SlotStep,
    is_enough,
    part_of,
    propose,
    read_newest,
)

SLOT = 7

CRASH, ROOT_LOST, ANSWER_LOST, LATE, REFUSED = "crash", "root lost", "answer lost", "late", "refused"
FAULTS = (CRASH, ROOT_LOST, ANSWER_LOST, LATE, REFUSED)


class SlotProcess(NamedTuple):
    """A process that proposes a commit in the slot, or reads it. `attempts`: the ballots that it tries above 0.
    `session`: its name if empty."""

    name: str
    attempts: int = 1
    has_ballot_0: bool = False
    is_reader: bool = False
    session: str = ""


class Progress(NamedTuple):
    """The state of a process. `steps`: the number of answered steps. `must_see`: the commit that a reader must see, as
    it was acknowledged before the read began."""

    is_running: bool
    steps: int = 0
    outcome: Any = None
    must_see: str | None = None


class Part(NamedTuple):
    """One root's share of a process: its answers to the steps before (None if it came too late), and the answers that
    the current part has received."""

    answers: tuple[Any, ...] = ()
    received: tuple[Any, ...] = ()


class Column(NamedTuple):
    """One root: its events, with the roots left out; whether it is lost; requests in flight that nobody waits for; and
    its part in each process."""

    events: tuple[SlotEvent, ...]
    is_lost: bool
    in_flight: frozenset[tuple[int, SlotEvent]]
    parts: tuple[Part, ...]


class SlotState(NamedTuple):
    """A state of the whole. `columns` are numbers of columns, sorted. `faults` are those that may still happen."""

    columns: tuple[int, ...]
    processes: tuple[Progress, ...]
    faults: int
    acknowledged: str | None


Move: TypeAlias = tuple[str, list[Column], tuple[Progress, ...], int]


class SlotViolation(Exception):
    """An invariant does not hold. `moves` lead there."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.moves: list[str] = []


class Explored(NamedTuple):
    """The counts of an exploration: different states, moves between them, and interleavings from start to end; and for
    each process the number of states by the name of its outcome."""

    states: int
    moves: int
    interleavings: int
    outcomes: frozenset[tuple[str, str]]


@dataclass
class SlotExplorer:
    """Explores all histories of these processes. `faults` of the kinds in `kinds` may happen in each history."""

    processes: tuple[SlotProcess, ...]
    faults: int = 0
    kinds: tuple[str, ...] = FAULTS
    roots: int = 3
    rules: QuorumRules = QUORUM_RULES
    is_reduced: bool = False
    _numbers: dict[Column, int] = field(default_factory=dict)
    _columns: list[Column] = field(default_factory=list)
    _counts: dict[SlotState, int] = field(default_factory=dict)
    _moves: int = 0
    _outcomes: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._names = tuple(f"root{number}" for number in range(self.roots))
        self._next = cache(self._replayed)
        self._part = cache(self._replayed_part)
        self._decided = cache(self._decided_by)

    def run(self) -> Explored:
        """Explores from the start.

        Raises:
            SlotViolation: an invariant does not hold in some state.
        """
        column = Column((), False, frozenset(), tuple(Part() for _ in self.processes))
        processes = tuple(Progress(not process.is_reader) for process in self.processes)
        state = self._state([column] * self.roots, processes, self.faults, None)
        interleavings = self._explore(state)
        return Explored(len(self._counts), self._moves, interleavings, frozenset(self._outcomes))

    def _state(
        self, columns: Iterable[Column], processes: tuple[Progress, ...], faults: int, acknowledged: str | None
    ) -> SlotState:  # fmt: skip
        return SlotState(tuple(sorted(self._number(column) for column in columns)), processes, faults, acknowledged)

    def _number(self, column: Column) -> int:
        landed = len(column.events)
        if any(number < landed for number, _ in column.in_flight) or (column.is_lost and column.in_flight):
            left = () if column.is_lost else (late for late in column.in_flight if late[0] >= landed)
            column = column._replace(in_flight=frozenset(left))
        number = self._numbers.setdefault(column, len(self._columns))
        if number == len(self._columns):
            self._columns.append(column)
        return number

    def _explore(self, state: SlotState) -> int:
        known = self._counts.get(state)
        if known is not None:
            return known
        columns = [self._columns[number] for number in state.columns]
        total = 0
        for what, after, processes, faults in self._moves_from(state, columns):
            self._moves += 1
            try:
                acknowledged = self._checked(after, state, processes)
                total += self._explore(self._state(after, processes, faults, acknowledged))
            except SlotViolation as violation:
                violation.moves.insert(0, what)
                raise
        self._counts[state] = total or 1
        return total or 1

    def _checked(self, columns: list[Column], before: SlotState, processes: tuple[Progress, ...]) -> str | None:
        """Checks the state, and returns the acknowledged commit. [Agreement, compare-and-set, real time]"""
        found = self._decided(tuple(sorted((column.events for column in columns), key=hash)))
        acknowledged = before.acknowledged
        for process, was, progress in zip(self.processes, before.processes, processes, strict=True):
            outcome = progress.outcome
            if outcome is None or outcome == was.outcome:
                continue
            self._outcomes.add((process.name, _word(process, outcome)))
            if isinstance(outcome, SlotSettled):
                if outcome.commit.nonce != found:
                    raise SlotViolation(f"{process.name} settles on {outcome.commit.nonce}, decided is {found}")
                acknowledged = outcome.commit.nonce
            if isinstance(outcome, NotDecided) and progress.must_see is not None:
                raise SlotViolation(f"{process.name} sees nothing, {progress.must_see} was acknowledged before")
        if acknowledged is not None and found != acknowledged:
            raise SlotViolation(f"{acknowledged} was acknowledged, decided is {found}")
        return acknowledged

    def _decided_by(self, events: tuple[tuple[SlotEvent, ...], ...]) -> str | None:
        """The nonce of the decided commit. It counts by itself, without the rules that may be broken."""
        accepts: dict[tuple[Any, str], int] = {}
        for own in events:
            for key in {(event.ballot, event.commit.nonce) for event in own if isinstance(event, Accept)}:
                accepts[key] = accepts.get(key, 0) + 1
        found = sorted({nonce for (_, nonce), count in accepts.items() if count >= majority(self.roots)})
        if len(found) > 1:
            raise SlotViolation(f"two commits are decided: {', '.join(found)}")
        return found[0] if found else None

    def _moves_from(self, state: SlotState, columns: list[Column]) -> Iterator[Move]:
        settled = self._settled_move(state, columns) if self.is_reduced else None
        if settled is not None:
            yield settled
            return
        for place, column in enumerate(columns):
            if column.is_lost:
                continue
            for late in column.in_flight:
                changed = column._replace(events=(*column.events, late[1])) if late[0] == len(column.events) else None
                if changed is not None:
                    yield f"late {_text(late[1])} lands", _put(columns, place, changed), state.processes, state.faults
            if state.faults and ROOT_LOST in self.kinds and not any(other.is_lost for other in columns):
                lost = _put(columns, place, column._replace(is_lost=True))
                yield "a root is lost", lost, state.processes, state.faults - 1
        for number, progress in enumerate(state.processes):
            process = self.processes[number]
            if process.is_reader and not progress.is_running and progress.outcome is None and not progress.steps:
                begun = progress._replace(is_running=True, must_see=state.acknowledged)
                yield f"{process.name} begins", columns, _put(state.processes, number, begun), state.faults
            elif progress.is_running:
                yield from self._moves_of(number, state, columns)

    def _settled_move(self, state: SlotState, columns: list[Column]) -> Move | None:
        """A request that meets another's event. Its own event would end the part, and its process may go on without."""
        for number, progress in enumerate(state.processes):
            if not progress.is_running:
                continue
            step = self._next(number, tuple(column.parts[number].answers for column in columns))
            for place, column in enumerate(columns):
                request, _ = (None, None) if column.is_lost else self._part(step, place, column.parts[number].received)
                if request is None or request.number >= len(column.events):
                    continue
                event = column.events[request.number]
                if event.ballot.session != (self.processes[number].session or self.processes[number].name):
                    ((what, changed, _),) = self._requests(number, request, column, 0)
                    return what, _put(columns, place, changed), state.processes, state.faults
        return None

    def _moves_of(self, number: int, state: SlotState, columns: list[Column]) -> Iterator[Move]:
        process, progress = self.processes[number], state.processes[number]
        step = self._next(number, tuple(column.parts[number].answers for column in columns))
        answers: dict[int, Any] = {}
        is_waiting = False
        for place, column in enumerate(columns):
            if column.is_lost:
                continue
            request, answer = self._part(step, place, column.parts[number].received)
            if request is None:
                answers[place] = answer
                continue
            is_waiting = True
            for what, changed, faults in self._requests(number, request, column, state.faults):
                yield f"{process.name}: {what}", _put(columns, place, changed), state.processes, faults
        given = {place: answer for place, answer in answers.items() if answer is not None}
        needed = self.rules.majority(self.roots)
        found = {self._names[place]: answer for place, answer in given.items()}
        if not is_waiting or is_enough(step, found, needed, self.roots):
            yield self._go_on(number, step, given, state, columns)
        if state.faults and CRASH in self.kinds:
            left = [self._left(number, step, place, column, None) for place, column in enumerate(columns)]
            left, crashed = _without(number, left), progress._replace(is_running=False, steps=1, must_see=None)
            yield f"{process.name} crashes", left, _put(state.processes, number, crashed), state.faults - 1

    def _requests(self, number: int, request: Any, column: Column, faults: int) -> Iterator[tuple[str, Column, int]]:
        if isinstance(request, ReadEvent):
            is_there = request.number < len(column.events)
            yield (
                f"reads {request.number}",
                _received(column, number, column.events[request.number] if is_there else None),
                faults,
            )
            return
        event = request.event._replace(root="")
        is_free = request.number == len(column.events)
        written = column._replace(events=(*column.events, event)) if is_free else column
        what = f"creates {request.number} {_text(event)}" + ("" if is_free else ", refused")
        yield what, _received(written, number, is_free), faults
        if faults and is_free:
            if ANSWER_LOST in self.kinds:
                yield f"{what}, answer lost", _received(written, number, False), faults - 1
            if REFUSED in self.kinds:
                yield f"{what}, refused with nothing there", _received(column, number, False), faults - 1
            if LATE in self.kinds:
                late = column._replace(in_flight=column.in_flight | {(request.number, event)})
                yield f"{what}, in flight after a timeout", _received(late, number, False), faults - 1

    def _go_on(
        self, number: int, step: SlotStep, given: dict[int, Any], state: SlotState, columns: list[Column]
    ) -> Move:
        left = [
            self._left(number, step, place, column, _without_root(given.get(place)))
            for place, column in enumerate(columns)
        ]
        before = state.processes[number]
        after = self._next(number, tuple(column.parts[number].answers for column in left))
        progress = before._replace(steps=before.steps + 1)
        if isinstance(after, SlotSettled | NotDecided | OutcomeUnknown):
            progress = progress._replace(is_running=False, outcome=after)
            left = _without(number, left)
        return f"{self.processes[number].name} goes on", left, _put(state.processes, number, progress), state.faults

    def _left(self, number: int, step: SlotStep, place: int, column: Column, answer: Any) -> Column:
        """The column after the process has gone on: its request that is in flight may still land."""
        part = column.parts[number]
        request, _ = self._part(step, place, part.received)
        if isinstance(request, CreateEvent) and not column.is_lost:
            late = (request.number, request.event._replace(root=""))
            column = column._replace(in_flight=column.in_flight | {late})
        return column._replace(parts=_put(column.parts, number, Part((*part.answers, answer), ())))

    def _replayed(self, number: int, answers: tuple[tuple[Any, ...], ...]) -> Any:
        """The step of a process after these answers, for each root in order, or its outcome."""
        process = self.processes[number]
        session = process.session or process.name
        own = ProposedCommit(process.name, session)
        work: Any = (
            read_newest(SLOT, session, self.roots, process.attempts, self.rules)
            if process.is_reader
            else propose(SLOT, own, session, self.roots, process.attempts, process.has_ballot_0, self.rules)
        )
        try:
            step = next(work)
            for answered in zip(*answers, strict=True):
                named = zip(self._names, answered, strict=True)
                step = work.send({root: _with_root(root, answer) for root, answer in named if answer is not None})
                while isinstance(step, BackOff):
                    step = work.send(None)
        except StopIteration as end:
            return end.value
        return step

    def _replayed_part(self, step: Any, place: int, received: tuple[Any, ...]) -> tuple[Any, Any]:
        """The request of a root's part after these answers, or None and its result."""
        root = self._names[place]
        work: Any = part_of(step, root, self.rules)
        answers = iter(received)
        try:
            request = next(work)
            while True:
                if isinstance(request, ReadRootState):
                    request = work.send(RootState(root, True, False))
                    continue
                try:
                    answer = next(answers)
                except StopIteration:
                    return request, None
                request = work.send(answer._replace(root=root) if isinstance(answer, Promise | Accept) else answer)
        except StopIteration as end:
            return None, end.value


def _received(column: Column, number: int, answer: Any) -> Column:
    part = column.parts[number]
    return column._replace(parts=_put(column.parts, number, part._replace(received=(*part.received, answer))))


def _put(items: Any, place: int, item: Any) -> Any:
    changed = list(items)
    changed[place] = item
    return changed if isinstance(items, list) else tuple(changed)


def _without(number: int, columns: list[Column]) -> list[Column]:
    """The columns without the parts of a process that has ended."""
    return [column._replace(parts=_put(column.parts, number, Part())) for column in columns]


def _renamed(answer: Any, root: str) -> Any:
    if isinstance(answer, Vote):
        return Vote(answer.is_granted, tuple(event._replace(root=root) for event in answer.events))
    return None if answer is None else tuple(event._replace(root=root) for event in answer)


def _without_root(answer: Any) -> Any:
    return _renamed(answer, "")


def _with_root(root: str, answer: Any) -> Any:
    return _renamed(answer, root)


def _text(event: SlotEvent) -> str:
    ballot = f"{event.ballot.number}.{event.ballot.session}"
    return f"accept {ballot} {event.commit.nonce}" if isinstance(event, Accept) else f"promise {ballot}"


def _word(process: SlotProcess, outcome: Any) -> str:
    if isinstance(outcome, SlotSettled):
        return "won" if outcome.commit.nonce == process.name else "conflict"
    return "not decided" if isinstance(outcome, NotDecided) else "unknown"


_LAST_WRITER, _READER = SlotProcess("writer", has_ballot_0=True), SlotProcess("reader", is_reader=True)
_ONE, _OTHER = SlotProcess("one"), SlotProcess("other")

EXPLORATIONS: Mapping[str, Callable[[], SlotExplorer]] = {
    "two proposers, a crash": lambda: SlotExplorer((_ONE, _OTHER), 1, (CRASH,), is_reduced=True),
    "two proposers, a lost root": lambda: SlotExplorer((_ONE, _OTHER), 1, (ROOT_LOST,), is_reduced=True),
    "two proposers, a lost answer": lambda: SlotExplorer((_ONE, _OTHER), 1, (ANSWER_LOST, LATE), is_reduced=True),
    "the last writer and another, a crash": lambda: SlotExplorer((_LAST_WRITER, _OTHER), 1, (CRASH,), is_reduced=True),
    "the last writer and a reader, a crash": lambda: SlotExplorer(
        (_LAST_WRITER, _READER), 1, (CRASH,), is_reduced=True
    ),
}
