"""The world of one history: its tables, its actors, its clock, and the checker of every commit."""

from __future__ import annotations

from lakelog.replication.errors import StaleBrokerEpochException
from lakelog.verification.simulation.actor import Actor
from lakelog.verification.simulation.history_events import CRASH, PAUSE, RESUME, SHUTDOWN, START, STEP, Event
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.simulated_broker import SimulatedBrokerProcess
from lakelog.verification.simulation.simulated_clients import (
    RecordDeleter,
    SimulatedAdminClient,
    SimulatedProducer,
    SimulatedReader,
)
from lakelog.verification.simulation.simulated_controller import SimulatedController
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.world_state import WorldSettings

CONTROLLERS = 3


class World(Stage):
    """Everything there is. It changes by `apply` alone, one event after the other."""

    def __init__(self, setting: WorldSettings, rules: Rules) -> None:
        super().__init__(setting, rules)
        self.processes: dict[str, SimulatedBrokerProcess] = {}
        self.others: dict[str, Actor] = {}
        self._started = dict.fromkeys(self.broker_ids, 0)
        self._people()

    def _people(self) -> None:
        for broker in self.broker_ids:
            self.apply(Event(f"broker-{broker}", START))
        clients = [SimulatedProducer(self, f"producer-{n}") for n in range(1, self.setting.producers + 1)]
        actors = [
            *clients,
            SimulatedReader(self, "reader-1"),
            SimulatedAdminClient(self, "admin-1"),
            *(SimulatedController(self, f"controller-{n}") for n in range(1, CONTROLLERS + 1)),
            *([RecordDeleter(self, "deleter-1")] if self.setting.deletes_records else []),
        ]
        self.others = {actor.name: actor for actor in actors}

    def live(self) -> set[int]:
        """The brokers that are at work."""
        return {process.broker_id for process in self.processes.values() if not process.is_paused}

    def runnable(self) -> list[str]:
        """The actors that may take the next step."""
        threads = [t for p in self.processes.values() if not p.is_paused for t in p.threads()]
        return [*threads, *(name for name, actor in self.others.items() if not actor.is_paused)]

    def is_controlled(self) -> bool:
        """Whether a controller is at work."""
        return any(isinstance(actor, SimulatedController) and actor.is_at_work for actor in self.others.values())

    def apply(self, event: Event) -> None:
        """Applies one event. An event whose actor has ended or is paused does nothing."""
        self.now += 0.01 + (event.salt & 63) / 800
        if event.act == STEP:
            self._take(event)
        elif event.act == START:
            self._start(int(event.actor.removeprefix("broker-")))
        elif event.actor in self.processes:
            self._happen(self.processes[event.actor], event.act)
        elif isinstance(self.others.get(event.actor), SimulatedController):
            self._happen_to_controller(event.actor, event.act)

    def _take(self, event: Event) -> None:
        owner, _, thread = event.actor.partition("/")
        process = self.processes.get(owner)
        actor = process.thread(thread) if process else self.others.get(owner)
        if actor is None or actor.is_paused or (process is not None and process.is_paused):
            return
        self.step += 1
        try:
            actor.take(event)
        except StaleBrokerEpochException as error:
            self.say(event.actor, "stops: %s", error)
            self._end(owner)

    def _start(self, broker: int) -> None:
        self.step += 1
        self._started[broker] += 1
        name = f"broker-{broker}.{self._started[broker]}"
        self.processes[name] = SimulatedBrokerProcess(self, name, broker)
        self.say(f"broker-{broker}", "process %s starts", name)

    def _happen(self, process: SimulatedBrokerProcess, act: str) -> None:
        self.step += 1
        self.say(process.name, "%s", act)
        if act == CRASH:
            self._end(process.name)
        elif act in (PAUSE, RESUME):
            process.is_paused = act == PAUSE
        elif act == SHUTDOWN:
            process.is_shutting_down = True

    def _happen_to_controller(self, name: str, act: str) -> None:
        """Applies an event to a controller. One that crashes starts again and stands by."""
        self.step += 1
        self.say(name, "%s", act)
        if act == CRASH:
            self.others[name].stop()
            self.others[name] = SimulatedController(self, name)
        elif act in (PAUSE, RESUME):
            self.others[name].is_paused = act == PAUSE

    def _end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            process.stop()
