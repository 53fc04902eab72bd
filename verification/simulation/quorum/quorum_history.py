"""Random histories of a table on a quorum of three or five cluster roots: several slots, publishing, clean-up, and
roots that are replaced, added and removed.

One step is one request of one process at one root. A root times out with the request done, dropped, or in flight for as
long as the history lasts. It refuses a creation although nothing is there. It is away for all or for one process. It is
emptied, loses its events or its log, is restored from a backup, or becomes a copy of another root. A process freezes
between any two requests, or restarts.

A root's identity is its UUID with the mark that the store gives its file when it writes it, such as the time. So it is
another one after a copy or a restore.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from lakelog.replication.protocol import quorum_slot
from lakelog.replication.protocol.quorum_slot import ProposedCommit, RootState
from lakelog.replication.protocol.rounds.quorum_round import (
    QUORUM_RULES,
    BackOff,
    CreateEvent,
    NotDecided,
    OutcomeUnknown,
    QuorumRules,
    ReadEvent,
    SlotSettled,
    is_enough,
    part_of,
    propose,
    read_newest,
)
from lakelog.verification.simulation.history_events import Violation

SEGMENT = 3  # slots of one seal
PLACES = ("a", "b", "c", "d", "e")
CLIENTS = 3
STEPS = 2_500
AGREEMENT, COMPARE_AND_SET, REAL_TIME = "one_commit_a_slot", "compare_and_set", "a_read_sees_all_acknowledged"
PROGRESS = "without_faults_all_go_on"
AT_A_MAJORITY = "a_majority_has_the_version_before"
PUBLISHED, NO_GAP, NOT_LOST = "published_is_decided", "published_without_gap", "acknowledged_is_kept"


class Habits(NamedTuple):
    """How processes behave outside of the rounds. Each default is right; a sabotage changes one."""

    rules: QuorumRules = QUORUM_RULES
    keeps_session: bool = False
    publishes_early: bool = False
    publishes_out_of_order: bool = False
    deletes_before_seal: bool = False
    refills: bool = False
    writes_previous: bool = False
    reads_after_publishing: bool = True
    copies_from_other_roots: bool = True
    polls_all_places: bool = True
    identity_survives_a_restore: bool = False
    identity_is_elsewhere: bool = False


SHIPPED_HABITS = Habits()


class Request(NamedTuple):
    """One request at a root. `act`: get, create, put or delete."""

    place: str
    act: str
    path: tuple[Any, ...]
    value: Any = None


class RequestTimedOut(Exception):
    """Nobody knows whether the request was carried out."""


class CheckpointFile(NamedTuple):
    """A checkpoint: a version and its commit; all commits up to it are in it."""

    version: int
    commit: ProposedCommit


@dataclass
class Store:
    """One place with its objects by path."""

    objects: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    is_away: bool = False

    def newest(self) -> int:
        """The newest version that is published, or is in the checkpoint; -1 if the log has no beginning."""
        checkpoint = self.objects.get(("checkpoint",))
        version = checkpoint.version if checkpoint else -1
        while ("commit", version + 1) in self.objects:
            version += 1
        return version


class QuorumWorld:
    """The places, the processes, and what the checker knows: settled slots, acknowledged and refused commits."""

    def __init__(self, seed: int, habits: Habits) -> None:
        self.random, self.habits = Random(seed), habits
        self.stores = {place: Store() for place in PLACES}
        self.where = {f"{place}0": place for place in PLACES[: self.random.choice((3, 3, 3, 5))]}
        first = ProposedCommit("first", "nobody", roots=tuple(self.where))
        for root, place in self.where.items():
            self.stores[place].objects = {("root",): root, ("commit", 0): first}
        self.settled: dict[int, ProposedCommit] = {0: first}
        self.won: dict[str, int] = {}
        self.refused: set[str] = set()
        self.newest_won, self.formats = 0, 0
        self.damaged: str | None = None  # the place of a root that must be replaced
        self.without_log: str | None = None  # the place of a root whose commits are published again
        self.unreachable: dict[str, str] = {}  # the place that a process does not reach
        self.backups: list[tuple[str, dict[tuple[Any, ...], Any]]] = []
        self.in_flight: list[Request] = []
        self.trace: list[str] = []
        self.has_faults = True
        self.clients = [QuorumClient(self, f"client{number}") for number in range(CLIENTS)]

    def note(self, text: str) -> None:
        """Adds a line to the trace."""
        self.trace.append(text)

    def settle(self, version: int, commit: ProposedCommit) -> None:
        """A process knows that this commit is decided."""
        if version not in self.settled and version - 1 in self.settled:
            self._check_majority_has(version - 1)
        known = self.settled.setdefault(version, commit)
        if known.nonce != commit.nonce:
            raise Violation(AGREEMENT, f"version {version} is {known.nonce}, and {commit.nonce}")
        if commit.nonce in self.refused:
            raise Violation(COMPARE_AND_SET, f"{commit.nonce} was refused, and is version {version}")
        if version and version - 1 in self.settled and self.settled[version - 1].nonce != commit.previous:
            raise Violation(NO_GAP, f"version {version} follows on {commit.previous}")

    def _check_majority_has(self, version: int) -> None:
        """The next version begins only after a majority of its roots has this one. One may have lost it since."""
        roots = self.settled[version].roots
        stores = [self.stores[self.where[root]] for root in roots]
        have = sum(("commit", version) in store.objects or store.newest() >= version for store in stores)
        if have + (self.damaged is not None or self.without_log is not None) < quorum_slot.majority(len(roots)):
            raise Violation(AT_A_MAJORITY, f"{have} of {', '.join(roots)} have version {version}")

    def perform(self, client: str, request: Request) -> Any:
        """Carries out a request of a process, perhaps with a fault."""
        store, chance = self.stores[request.place], self.random.random() if self.has_faults else 1.0
        if store.is_away or self.unreachable.get(client) == request.place or chance < 0.02:
            raise RequestTimedOut
        if chance < 0.04:
            self._apply(request)
            raise RequestTimedOut
        if chance < 0.06 and request.act in ("create", "put"):
            self.in_flight.append(request)
            raise RequestTimedOut
        if chance < 0.07 and request.act == "create":
            return False
        return self._apply(request)

    def _apply(self, request: Request) -> Any:
        objects = self.stores[request.place].objects
        if request.act == "get":
            return objects.get(request.path)
        if request.act == "delete":
            return objects.pop(request.path, None)
        if request.act == "create" and request.path in objects:
            return False
        if request.path[0] == "checkpoint" and objects.get(request.path, request.value).version > request.value.version:
            return True
        objects[request.path] = request.value
        if request.path[0] == "commit":
            self._check_published(request)
        if request.place == self.without_log and self.stores[request.place].newest() >= max(self.settled):
            self.without_log = None
        return True

    def _check_published(self, request: Request) -> None:
        version = request.path[1]
        self.note(f"{request.place}: commit {version} {request.value.nonce} is published")
        if self.settled.get(version, request.value).nonce != request.value.nonce or version not in self.settled:
            raise Violation(PUBLISHED, f"version {version} of {request.place} is {request.value.nonce}")
        objects = self.stores[request.place].objects
        is_sound = ("root",) in objects and request.place not in (self.damaged, self.without_log)
        has_previous = ("commit", version - 1) in objects or self.stores[request.place].newest() >= version - 1
        if is_sound and not has_previous:
            raise Violation(NO_GAP, f"{request.place} has version {version} without the one before")

    def take_step(self) -> None:
        """One step of one process, or one fault."""
        chance = self.random.random() if self.has_faults else 1.0
        if chance < 0.01 and self.in_flight:
            request = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self.note(f"late {request.place} {request.path}")
            self._apply(request)
        elif chance < 0.016:
            self._damage_or_away()
        elif chance < 0.02:
            client = self.random.choice(self.clients)
            self.random.choice((client.restart, client.freeze))()
        else:
            self.random.choice(self.clients).take_step()

    def _damage_or_away(self) -> None:
        place, chance = self.random.choice(self.places()), self.random.random()
        store = self.stores[place]
        if chance < 0.6:
            was_away = store.is_away
            for other in self.stores.values():
                other.is_away = False
            store.is_away = not was_away
        elif chance < 0.75:
            client = self.random.choice(self.clients).name
            if self.unreachable.pop(client, None) is None:
                self.unreachable[client] = place
        elif chance < 0.8 or self.damaged or self.without_log:
            self.backups.append((place, dict(store.objects)))
        else:
            what = self.random.choice((self._empty, self._copy_another, self._restore, self._lose_events))
            self.random.choice((what, what, what, what, self._lose_log))(place)

    def _empty(self, place: str) -> None:
        self.damaged = place
        self.note(f"{place} is emptied")
        root = self.stores[place].objects.get(("root",))
        self.stores[place].objects = {}
        if self.habits.refills:
            source = self.stores[self.random.choice(self._others(place))].objects
            self.stores[place].objects = {**_parts_of(source, "commit", "checkpoint"), ("root",): root}

    def _copy_another(self, place: str) -> None:
        self.damaged = place
        copied = self.random.choice(self._others(place))
        self.note(f"{place} is a copy of {copied}")
        self.stores[place].objects = dict(self.stores[copied].objects)

    def _restore(self, place: str) -> None:
        backups = [objects for of, objects in self.backups if of == place]
        if not backups:
            return
        self.damaged = place
        self.note(f"{place} is restored from a backup")
        identity = self.stores[place].objects.get(("root",))
        mark = identity if self.habits.identity_survives_a_restore else f"restored {len(self.trace)}"
        self.stores[place].objects = {**self.random.choice(backups), ("root",): mark}

    def _lose_events(self, place: str) -> None:
        """The folder of the events is deleted, where the identity is."""
        self.damaged = place
        self.note(f"{place} loses its events")
        kept = ("commit", "checkpoint", *(("root",) if self.habits.identity_is_elsewhere else ()))
        self.stores[place].objects = _parts_of(self.stores[place].objects, *kept)

    def _lose_log(self, place: str) -> None:
        """The folder of the commits is deleted. The root has forgotten no vote."""
        self.without_log = place
        self.note(f"{place} loses its log")
        self.stores[place].objects = _parts_of(self.stores[place].objects, "event", "sealed", "root")

    def _others(self, place: str) -> list[str]:
        """The places of the present roots but for this one."""
        return [other for other in self.places() if other != place]

    def places(self) -> list[str]:
        """The places of the roots that vote on the next version."""
        return [self.where[root] for root in self.settled[max(self.settled)].roots]

    def format(self, place: str) -> str:
        """A new root at a damaged place, with the published commits of another one."""
        self.formats += 1
        root = f"{place}{self.formats}"
        others = self._others(place)
        whole = [other for other in others if self.stores[other].newest() >= 0] or others
        objects = self.stores[self.random.choice(whole)].objects
        self.stores[place].objects = {**_parts_of(objects, "commit", "checkpoint", "sealed"), ("root",): root}
        self.where[root] = place
        self.without_log = None if self.without_log == place else self.without_log
        self.note(f"{place} is formatted as {root}")
        return root


def _parts_of(objects: dict[tuple[Any, ...], Any], *kinds: str) -> dict[tuple[Any, ...], Any]:
    return {path: value for path, value in objects.items() if path[0] in kinds}


class QuorumClient:
    """A process: it commits, reads, publishes, cleans up, and replaces a damaged root."""

    def __init__(self, world: QuorumWorld, name: str) -> None:
        self.name, self._world, self._lives, self._commits = name, world, 0, 0
        self.version, self.commit = 0, world.settled[0]
        self.restart()

    def restart(self) -> None:
        """A new life. It starts from what it knew, as a process with an old snapshot."""
        if not self._world.habits.keeps_session or not self._lives:
            self._lives += 1
        self.session = f"{self.name}.{self._lives}"
        self._known = {self.version: self.commit}
        self._sleeps = 0
        self._work: Any = self._live()
        self._parts: dict[str, tuple[Any, Any]] = {}
        self._answers: dict[str, Any] = {}
        self._step: Any = None
        self._todo = next(self._work)
        self._prepare()

    def freeze(self) -> None:
        """It takes no step for long."""
        self._sleeps = self._world.random.choice((20, 200, 800, STEPS))

    def wake(self) -> None:
        """It is frozen no more."""
        self._sleeps = 0

    def take_step(self) -> None:
        """One request."""
        if self._sleeps:
            self._sleeps -= 1
            return
        if isinstance(self._todo, Request):
            self._resume(self._performed(self._todo))
            return
        if self._parts:
            root = self._world.random.choice(sorted(self._parts))
            work, request = self._parts.pop(root)
            answer = self._performed(self._at(root, request))
            if not isinstance(answer, RequestTimedOut):
                self._go_on(root, work, answer)
            elif isinstance(request, CreateEvent):
                self._go_on(root, work, False)
        rules = self._world.habits.rules
        roots = len(self.commit.roots)
        if not self._parts or (
            is_enough(self._step, self._answers, rules.majority(roots), roots) and self._world.random.random() < 0.7
        ):
            for root, (_, request) in self._parts.items():
                if isinstance(request, CreateEvent):
                    self._world.in_flight.append(self._at(root, request))
            self._parts = {}
            self._resume(self._answers)

    def _performed(self, request: Request) -> Any:
        try:
            if request.act == "state":
                return self._root_state(request)
            return self._world.perform(self.name, request)
        except RequestTimedOut as error:
            return error

    def _root_state(self, request: Request) -> RootState:
        get = lambda path: self._world.perform(self.name, Request(request.place, "get", path))  # noqa: E731
        slot = request.path[0]
        if self._world.habits.writes_previous and get(("root",)) is not None:
            self._world.perform(self.name, Request(request.place, "create", ("commit", slot - 1), self.commit))
        has_previous = get(("commit", slot - 1)) is not None
        return RootState(get(("root",)), has_previous, get(("sealed", slot // SEGMENT)) is not None)

    def _at(self, root: str, request: Any) -> Request:
        place = self._world.where[root]
        if isinstance(request, CreateEvent):
            return Request(place, "create", ("event", request.slot, request.number), request.event)
        if isinstance(request, ReadEvent):
            return Request(place, "get", ("event", request.slot, request.number))
        return Request(place, "state", (request.slot,))

    def _go_on(self, root: str, work: Any, answer: Any) -> None:
        try:
            request = work.send(answer)
        except StopIteration as end:
            if end.value is not None:
                self._answers[root] = end.value
            return
        self._parts[root] = (work, request)

    def _resume(self, answer: Any) -> None:
        if isinstance(answer, RequestTimedOut):
            self._todo = self._work.throw(answer)
        else:
            self._todo = self._work.send(answer)
        self._prepare()

    def _prepare(self) -> None:
        while isinstance(self._todo, BackOff):
            self._sleeps = self._world.random.randrange(30)
            self._todo = self._work.send(None)
        if not isinstance(self._todo, Request):
            self._step, self._answers, self._parts = self._todo, {}, {}
            for root in self.commit.roots:
                self._go_on(root, part_of(self._step, root, self._world.habits.rules), None)

    def _live(self) -> Iterator[Any]:
        random = self._world.random
        while True:
            act = random.choices(self._acts(), (10, 6, 4, 2, 1, 4))[0]
            try:
                yield from act()
            except RequestTimedOut:
                self._world.note(f"{self.name} has given up {act.__name__}")

    def _acts(self) -> tuple[Any, ...]:
        return self._commit, self.read, self._clean_up, self._replace, self._resize, self._poll

    def _renew(self) -> None:
        if not self._world.habits.keeps_session:
            self._lives += 1
            self.session = f"{self.name}.{self._lives}"

    def _advance(self, version: int, commit: ProposedCommit) -> None:
        self._world.settle(version, commit)
        self.version, self.commit = version, commit
        self._known[version] = commit

    def _commit(self, roots: tuple[str, ...] | None = None) -> Iterator[Any]:
        world, slot = self._world, self.version + 1
        self._commits += 1
        own = ProposedCommit(
            f"{self.name}:{self._commits}", self.session, self.commit.nonce, roots or self.commit.roots
        )
        if world.habits.publishes_early:
            yield from self._publish_at(world.where[self.commit.roots[0]], {**self._known, slot: own}, slot)
        outcome = yield from propose(
            slot, own, self.session, len(self.commit.roots), 3, self.commit.session == self.session, world.habits.rules
        )
        world.note(f"{self.name} proposes {own.nonce} in {slot}: {outcome}")
        if isinstance(outcome, SlotSettled):
            if outcome.commit.nonce == own.nonce:
                world.won[own.nonce] = slot
                world.newest_won = max(world.newest_won, slot)
            else:
                world.refused.add(own.nonce)
            self._advance(slot, outcome.commit)
            if outcome.commit.nonce != own.nonce:
                self._renew()
            yield from self._publish()
        else:
            self._renew()
            yield from self._poll()
            yield from self._publish()

    def read(self) -> Iterator[Any]:
        """A linearizable read."""
        must_see = self._world.newest_won
        while True:
            self._renew()
            slot = self.version + 1
            outcome = yield from read_newest(slot, self.session, len(self.commit.roots), 3, self._world.habits.rules)
            if isinstance(outcome, NotDecided):
                if self.version < must_see:
                    raise Violation(REAL_TIME, f"{self.name} reads {self.version}, {must_see} was acknowledged")
                return
            if isinstance(outcome, OutcomeUnknown):
                yield from self._poll()
                return
            self._world.note(f"{self.name} reads {slot} {outcome.commit.nonce}")
            self._advance(slot, outcome.commit)
            yield from self._publish()

    def _poll(self) -> Iterator[Any]:
        """A cheap read of one place: its checkpoint and its next published commits. They are decided wherever they are,
        so a process whose roots have all been replaced finds the present ones."""
        place = self._world.random.choice(PLACES)
        if not self._world.habits.polls_all_places:
            root = self._world.random.choice(self.commit.roots)
            place = self._world.where[root]
            if (yield Request(place, "get", ("root",))) != root:
                return
        checkpoint = yield Request(place, "get", ("checkpoint",))
        if checkpoint is not None and checkpoint.version > self.version:
            self._advance(checkpoint.version, checkpoint.commit)
        while (found := (yield Request(place, "get", ("commit", self.version + 1)))) is not None:
            self._advance(self.version + 1, found)

    def _publish(self) -> Iterator[Any]:
        roots = {*self.commit.roots, *self._known.get(self.version - 1, self.commit).roots}
        for root in sorted(roots):
            try:
                place = self._world.where[root]
                if (yield Request(place, "get", ("root",))) == root:
                    yield from self._publish_at(place, self._known, self.version)
            except RequestTimedOut:
                continue

    def _publish_at(self, place: str, known: dict[int, ProposedCommit], newest: int) -> Iterator[Any]:
        """Publishes in order. Commits that it does not know it copies from other roots, or their checkpoint."""
        missing = [newest]
        while not self._world.habits.publishes_out_of_order and missing[-1] > 0:
            if (yield Request(place, "get", ("commit", missing[-1] - 1))):
                break
            missing.append(missing[-1] - 1)
            if missing[-1] in known:
                continue
            found = yield from self._copied(missing[-1])
            if isinstance(found, CheckpointFile):
                yield Request(place, "put", ("checkpoint",), found)
                missing = [version for version in missing if version > found.version]
                yield Request(place, "create", ("commit", found.version), found.commit)
                break
            if found is None:
                return
            known[missing[-1]] = found
        for version in reversed(missing):
            is_there = yield Request(place, "create", ("commit", version), known[version])
            if not is_there and self._world.habits.reads_after_publishing:
                is_there = yield Request(place, "get", ("commit", version))
            if not is_there and self._world.habits.reads_after_publishing:
                return  # refused although nothing is there: the next one would leave a gap

    def _copied(self, version: int) -> Generator[Any, Any, Any]:
        for root in self.commit.roots if self._world.habits.copies_from_other_roots else ():
            place = self._world.where[root]
            try:
                if (yield Request(place, "get", ("root",))) == root:
                    if found := (yield Request(place, "get", ("commit", version))):
                        return found
                    checkpoint = yield Request(place, "get", ("checkpoint",))
                    if checkpoint is not None and version <= checkpoint.version <= self.version:
                        return checkpoint
            except RequestTimedOut:
                continue
        return None

    def _clean_up(self) -> Iterator[Any]:
        """Checkpoint, seal, then delete, in this order."""
        root = self._world.random.choice(self.commit.roots)
        place = self._world.where[root]
        if (yield Request(place, "get", ("root",))) != root or not (
            yield Request(place, "get", ("commit", self.version))
        ):
            return
        yield Request(place, "put", ("checkpoint",), CheckpointFile(self.version, self.commit))
        segment = self.version // SEGMENT - 1
        if segment < 0:
            return
        if not self._world.habits.deletes_before_seal:
            for sealed in range(segment + 1):
                yield Request(place, "create", ("sealed", sealed), True)
                if (yield Request(place, "get", ("sealed", sealed))) is None:
                    return
        slots = range(max(0, (segment - 1) * SEGMENT), (segment + 1) * SEGMENT)
        paths: list[tuple[Any, ...]] = [("commit", slot) for slot in slots]
        paths += [("event", slot, number) for slot in slots for number in range(6)]
        self._world.random.shuffle(paths)
        for path in paths:
            yield Request(place, "delete", path)
        if self._world.habits.deletes_before_seal:
            yield Request(place, "create", ("sealed", segment), True)

    def _replace(self) -> Iterator[Any]:
        world = self._world
        place = world.damaged
        old = next((root for root in self.commit.roots if world.where[root] == place), None)
        if place is None or old is None:
            return
        if world.stores[place].objects.get(("root",)) == old:  # another process has replaced it already
            world.damaged = None
            return
        fresh = self._root_at(place)
        yield from self._commit(tuple(fresh if root == old else root for root in self.commit.roots))
        is_there = world.stores[place].objects.get(("root",)) == fresh  # it may be damaged again
        if fresh in self.commit.roots and world.damaged == place and is_there:
            world.damaged = None

    def _root_at(self, place: str) -> str:
        """The root at a place that a next set has. A second format would lose the votes of the first."""
        stored = self._world.stores[place].objects.get(("root",))
        return stored if stored and stored[0] == place else self._world.format(place)

    def _resize(self) -> Iterator[Any]:
        """From three roots to five, or back."""
        world, roots = self._world, self.commit.roots
        if len(roots) == 5:
            yield from self._commit(tuple(world.random.sample(roots, 3)))
            if world.damaged not in world.places():
                world.damaged = None  # it is formatted again before it is added
        elif world.damaged is None:
            unused = [place for place in PLACES if place not in [world.where[root] for root in roots]]
            yield from self._commit((*roots, *(self._root_at(place) for place in unused)))


class QuorumHistory(NamedTuple):
    """A history and its end."""

    seed: int
    steps: int
    violation: Violation | None
    trace: tuple[str, ...]
    commits: int
    replaced: int

    @property
    def about(self) -> str:
        """Its settings as text."""
        return f"{CLIENTS} clients, {self.commits} acknowledged commits, {self.replaced} new roots"


def run_quorum(seed: int, habits: Habits = SHIPPED_HABITS) -> QuorumHistory:
    """Runs the history of a seed, then without faults until all processes have read the end."""
    world, violation, steps = QuorumWorld(seed, habits), None, 0
    try:
        for steps in range(1, STEPS + 1):  # noqa: B007
            world.take_step()
        _check_end(world)
    except Violation as found:
        violation = found
    return QuorumHistory(seed, steps, violation, tuple(world.trace), len(world.won), world.formats)


def _check_end(world: QuorumWorld) -> None:
    world.has_faults = False
    world.unreachable.clear()
    for store in world.stores.values():
        store.is_away = False
    for client in world.clients:
        client.wake()
    acknowledged = world.newest_won
    for _ in range(20_000):
        world.take_step()
        if world.newest_won > acknowledged and all(client.version >= acknowledged for client in world.clients):
            break
    else:
        raise Violation(PROGRESS, f"{[client.version for client in world.clients]} of {world.newest_won}")
    for nonce, version in world.won.items():
        if world.settled[version].nonce != nonce:
            raise Violation(NOT_LOST, f"{nonce} of version {version}")
