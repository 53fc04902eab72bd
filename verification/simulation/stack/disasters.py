"""Faults of brokers and their roots: kills, freezes, power cuts, torn files, emptied and restored roots, sleeps.

They lose no more than Lakelog promises to survive. Only one broker at a time loses its log or a part of it. Meanwhile
another member of the ISR has all acknowledged records, and it neither ends nor freezes until the controller has seen
the loss. The damaged root stays reachable, so producers may append to a log that has lost its end and still has
its broker as the leader. If a torn commit makes a root unreadable, an operator empties it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from random import Random
from typing import Protocol

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster, format_broker
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import LOG, REPLICAS
from lakelog.verification.memory_root import File, MemoryStore
from lakelog.verification.simulation.stack.faulty_store import FaultyStore, StoreUser, lose_end, tear_commit, tear_end
from lakelog.verification.simulation.stack.one_thread import Clock
from lakelog.verification.simulation.stack.rates import (
    ASLEEP,
    DOUBLED,
    EMPTIED,
    KILLED,
    LITTERED,
    LOSES_END,
    OUTDATED,
    RESTORED,
    STOPPED,
    TORN,
    Rates,
)
from lakelog.verification.simulation.stack.stack_processes import Process, StackBroker, StackController

BROKERS = (1, 2, 3)
_LOSSES = LOSES_END, TORN, EMPTIED, RESTORED  # faults that lose records: only for a broker that `_may_lose` allows
_LANDS = 0.5  # the probability that a late commit lands before a fault
_BACKS_UP = 0.5  # the probability that the drawn broker's root is backed up before a fault
_ASLEEP_SECONDS = 30, 400, 4_000, 90_000
_LITTER = "part-0000.parquet", "a b%20c.parquet", ".hidden", "_delta_log/00000000000000000003.json.tmp", "x/y.parquet"


class HasRoot(Protocol):
    """What lies at the address of the cluster root."""

    @property
    def is_right(self) -> bool:
        """Whether it is the right one, and is not being recovered."""

    def lead_astray(self, node: StackBroker) -> None:
        """Starts a broker on a cluster root that has come back after it was recovered elsewhere, if that is drawn."""


class BreakableWorld(Protocol):
    """What can be broken in a world, and where that is noted."""

    rates: Rates
    clock: Clock
    store: MemoryStore
    faults: FaultyStore
    cluster: Cluster
    nodes: dict[int, StackBroker]
    trace: list[str]


class DisasterWorld(BreakableWorld, Protocol):
    """The part of the world that `Disasters` needs."""

    rng: Random
    controllers: list[StackController]

    def acting(self, actor: StoreUser | None) -> AbstractContextManager[None]:
        """Inside the block this process uses the store; None is the simulation itself."""

    def is_busy(self, process: Process) -> bool:
        """Whether the process is in the middle of a step."""

    @property
    def roots(self) -> HasRoot:
        """What lies at the address of the cluster root."""

    def partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        """The metadata of all partitions now."""


class Disasters:
    """The faults of one world's brokers. `damaged`: brokers that have lost records, each with its last broker epoch
    before the loss."""

    def __init__(self, world: DisasterWorld) -> None:
        self._world = world
        self.damaged: dict[int, int] = {}
        self._formatted_anew: set[int] = set()
        self._backups: dict[int, tuple[int, Mapping[str, Mapping[str, File]]]] = {}

    def happen(self) -> None:
        """Draws a fault and a broker, and carries it out if it is allowed."""
        disasters: dict[str, Callable[[StackBroker], None]] = {
            KILLED: self.kill, STOPPED: self._freeze, LOSES_END: self.cut_power, TORN: self.tear,
            EMPTIED: self.empty_root, RESTORED: self.restore, ASLEEP: self._sleep, LITTERED: self._litter,
            DOUBLED: self._start_another,
        }  # fmt: skip
        rng, rates = self._world.rng, self._world.rates
        (disaster,) = rng.choices([*rates.brokers], [*rates.brokers.values()])
        nodes = [self._world.nodes[number] for number in rng.sample(BROKERS, len(BROKERS))]
        if disaster in _LOSSES and not self._world.roots.is_right:
            return  # no controller could see the loss
        with self._world.acting(None):
            if rng.random() < _LANDS and self._world.roots.is_right:  # what was sent to the wrong root stays there
                self._world.faults.land()
            if disaster != RESTORED and rates.brokers.get(RESTORED) and rng.random() < _BACKS_UP:
                self.back_up(nodes[0])
            for node in nodes if disaster in _LOSSES else nodes[:1]:
                may_befall = self._may_lose if disaster in _LOSSES else self.may_end
                is_there = disaster != RESTORED or node.number in self._backups
                if is_there and not self._world.is_busy(node) and may_befall(node):
                    disasters[disaster](node)
                    return

    def is_whole(self) -> bool:
        """Whether no broker has lost records that it has not got again."""
        self._note_whole()
        return not self.damaged

    def kill(self, node: StackBroker) -> None:
        """Kills a broker. Its next step starts a new process."""
        self._tell(KILLED, f"kill {node.name}")
        node.kill()
        node.frozen_until = self._world.clock.now + self._world.rng.choice([0, 0, 3, 12])

    def _start_another(self, node: StackBroker) -> None:
        """Starts a second process of a broker beside the first."""
        if node.runs:
            self._tell(DOUBLED, f"{node.name} is started once more")
            with self._world.acting(node):
                node.start_another()

    def _freeze(self, node: StackBroker | StackController) -> None:
        actor = self._world.rng.choice([node, *self._world.controllers])
        self._tell(STOPPED, f"freeze {actor.name}")
        actor.frozen_until = self._world.clock.now + self._world.rng.choice([2, 8, 15])

    def cut_power(self, node: StackBroker, commits: int | None = None) -> None:
        """A power cut: a broker goes down and loses the last commits of its log, and perhaps of `replicas`."""
        self.damage(node)
        counts = (commits or self._world.rng.randrange(1, 8), commits or self._world.rng.randrange(8))
        tables = (node.root.child(LOG.name), node.root.child(REPLICAS.name))
        lost = [lose_end(table, count) for table, count in zip(tables, counts, strict=True)]
        self._tell(LOSES_END, f"{node.name} loses the last {lost} commits")

    def tear(self, node: StackBroker) -> None:
        """A power cut: a broker goes down, and one of its tables keeps only a part of its last files or last commit."""
        self.damage(node)
        table = node.root.child(self._world.rng.choice([LOG.name, LOG.name, LOG.name, REPLICAS.name]))
        part = self._world.rng.choice([0, 0.5])
        if self._world.rng.random() < 0.7:
            torn = tear_end(table, self._world.rng.randrange(1, 4), part)
        else:
            torn = tear_commit(table, part)
        self._tell(TORN, f"{node.name}: {part} is left of {torn}")

    def empty_root(self, node: StackBroker) -> None:
        """A broker goes down, and its root is emptied and formatted again."""
        self.damage(node)
        self._format_anew(node)
        self._tell(EMPTIED, f"{node.name} loses its root")

    def restore(self, node: StackBroker) -> None:
        """A broker goes down, and gets an old backup of its root, maybe from before the cluster root was recovered."""
        generation, backup = self._backups[node.number]
        self.damage(node)
        node.root.delete_folder()
        self._world.store.folders.update({folder: dict(files) for folder, files in backup.items()})
        is_outdated = generation < self._world.cluster.generation
        self._tell(OUTDATED if is_outdated else RESTORED, f"{node.name} gets an old copy of its root")
        if is_outdated:
            self._world.roots.lead_astray(node)

    def restore_from_before(self) -> None:
        """Gives a broker a copy of its root of before the last recovery, once, if there is one and it may lose its
        log."""
        now = self._world.cluster.generation
        for number in [number for number, (generation, _) in self._backups.items() if generation < now]:
            node = self._world.nodes[number]
            if not self._world.is_busy(node) and self._may_lose(node):
                self.restore(node)
                del self._backups[number]
                return

    def back_up(self, node: StackBroker) -> None:
        """Keeps a copy of a broker's root as it is now."""
        root, folders = node.root.uri, self._world.store.folders
        copied = {f: dict(files) for f, files in folders.items() if f.startswith(f"{root}/")}
        self._backups[node.number] = self._world.cluster.generation, copied

    def replace_lost_root(self, node: StackBroker) -> None:
        """Gives a broker an empty root. Its own was lost with the cluster root, and the new one knows no registration
        of it."""
        self._world.faults.lose_late(node.root)
        self._format_anew(node)
        self.damaged[node.number] = 0

    def _sleep(self, _: StackBroker) -> None:
        """Nothing runs for a while, as if all machines were suspended. Later, old files and commits are cleaned up."""
        seconds = self._world.rng.choice(_ASLEEP_SECONDS)
        self._world.clock.now += seconds
        self._tell(ASLEEP, f"everybody sleeps for {seconds} s")

    def _litter(self, node: StackBroker) -> None:
        """Puts foreign files into a table."""
        table = node.root.child(self._world.rng.choice([LOG.name, REPLICAS.name]))
        name = self._world.rng.choice(_LITTER)
        table.write(name, b"foreign")
        self._tell(LITTERED, f"{node.name} finds {name}")

    def _format_anew(self, node: StackBroker) -> None:
        node.root.delete_folder()
        format_broker(node.root, self._world.cluster.cluster_id, node.number)
        self._formatted_anew.add(node.number)

    def mend(self, node: StackBroker) -> None:
        """Acts as an operator: empties a damaged root that cannot be read.

        A commit under way when a root was emptied may land in the new table at any later time, and leave a gap. The
        operator then empties the root once more, as soon as others have all its records.
        """
        if not self._world.roots.is_right:
            return
        with self._world.acting(None):
            is_new = node.number in self._formatted_anew
            if node.number in self.damaged:
                may_replace = node.cannot_be_read or (is_new and node.log_has_gap)
            else:
                may_replace = is_new and node.log_has_gap and self._may_lose(node)
        if may_replace:
            self._replace_root(node)

    def _replace_root(self, node: StackBroker) -> None:
        with self._world.acting(None):
            node.kill()
            self._world.faults.lose_late(node.root)
            self._note_damage(node)
            self._format_anew(node)
            self._tell("replaced", f"{node.name} gets an empty root")

    def _tell(self, what: str, text: str) -> None:
        self._world.trace.append(f"{self._world.clock.now:.1f} {text}")
        self._world.faults.count(what)

    def damage(self, node: StackBroker) -> None:
        """Kills a broker that is about to lose records. Late commits to its root are lost, too."""
        self.kill(node)
        self._world.faults.lose_late(node.root)
        self._note_damage(node)
        if self._world.rng.random() < 0.3:  # the broker may be back before a controller sees the loss
            for controller in self._world.controllers:
                controller.frozen_until = self._world.clock.now + 3

    def _note_damage(self, node: StackBroker) -> None:
        """Notes its epoch before the loss. While the cluster is getting more roots, its registration cannot be read;
        then the epoch is that of its last ISR."""
        try:
            found = BrokerTable.open_or_create(self._world.cluster.root, node.number).registration
            epoch = found.broker_epoch if found else 0
        except KafkaStorageException:
            registrations = self._world.partitions().values()
            epoch = max((r.isr_epoch(node.number) for r in registrations if node.number in r.isr), default=0)
        self.damaged[node.number] = epoch

    def _may_lose(self, node: StackBroker) -> bool:
        """Whether each ISR has another member that is alive, is known to be, and has all acknowledged records."""
        self._world.faults.land(all_of_them=True)
        self._note_whole()
        seen = [
            n for n in self._world.nodes.values() if n is not node and not self._world.is_busy(n) and n.is_known_to_live
        ]
        others = {n.number: n.epoch for n in seen if self._world.clock.now >= n.frozen_until}
        keeping = [
            [n for n, epoch in others.items() if r.isr_epoch(n) == epoch] for r in self._world.partitions().values()
        ]
        return not self.damaged and all(keeping)

    def may_end(self, node: StackBroker) -> bool:
        """Whether a broker may end. It may not while another one has lost records and is still in an ISR."""
        with self._world.acting(None):
            self._note_whole()
            return not self.is_awaited() or set(self.damaged) == {node.number}

    def is_awaited(self) -> bool:
        """Whether a broker that has lost records is still in an ISR under an epoch before the loss. Until the
        controller removes it, nothing else breaks."""
        registrations = self._world.partitions().values() if self.damaged else ()
        return any(n in r.isr and r.isr_epoch(n) <= epoch for r in registrations for n, epoch in self.damaged.items())

    def _note_whole(self) -> None:
        """Drops from `damaged` the brokers that are back in every ISR under a newer epoch: they have all records."""
        registrations = self._world.partitions().values()
        for number, epoch in list(self.damaged.items()):
            if all(number in r.isr and r.isr_epoch(number) > epoch for r in registrations):
                del self.damaged[number]
