"""A controller: elections, reassignments, deletions, at random and often on a wrong idea of who is alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from replication.errors import ControllerMovedException
from replication.protocol.leader_election import new_partition
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.simulation.actor import Actor, Work
from replication.simulation.events import AnswerLost
from replication.simulation.tables import Metadata

if TYPE_CHECKING:
    from replication.simulation.world import World

Partitions: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]
Changes: TypeAlias = dict[TopicIdPartition, PartitionRegistration | None]  # None: deleted
Action: TypeAlias = Callable[[Partitions, Random], Changes]

_WRONG = 0.3  # how often a controller is wrong about who is alive


class Controller(Actor):
    """One of several. Each claims `metadata` before it writes there, and claims it again when another has."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._epoch = 0
        self._seen_epochs: dict[int, int] = {}
        self._live: set[int] = set()
        self._broker = 0
        self._actions: list[tuple[int, Action]] = [
            (30, self._broker_failure), (30, self._elect_offline), (10, self._elect_preferred),
            (10, self._controlled_shutdown), (8 * world.setting.reassigns, self._reassign),
            (2 * world.setting.deletes, self._delete_and_make_again), (30, self._do_nothing),
        ]  # fmt: skip

    def work(self) -> Work:
        while True:
            try:
                yield from self.transact(self.world.metadata, self._claim, "claim")
                while True:
                    yield from self.act(self._chosen)
            except (AnswerLost, ControllerMovedException) as error:
                self.say("stops to be the controller: %r", error)

    def calm(self) -> Work:
        """What a controller does when all is quiet: it elects where nobody leads, cleanly if it can."""
        yield from self.transact(self.world.metadata, self._claim, "claim")
        yield from self.act(self._elect_all)

    def _elect_all(self, partitions: Partitions, _: Random) -> Changes:
        live = self.world.live()
        offline = {p: r for p, r in partitions.items() if r.leader == NO_LEADER}
        return _done({p: self.world.rules.elect_offline(r, live, not r.isr) for p, r in offline.items()})

    def _claim(self, _: int, metadata: Metadata) -> Metadata:
        self._epoch = metadata.controller_epoch + 1
        return metadata._replace(controller_epoch=self._epoch)

    def act(self, action: Action) -> Work:
        """One change of the metadata, decided anew whenever somebody else was faster."""
        salt: list[int] = []

        def decide(_: int, metadata: Metadata) -> Metadata | None:
            if metadata.controller_epoch > self._epoch:
                raise ControllerMovedException(f"controller epoch {metadata.controller_epoch} has claimed")
            if not salt:
                salt.append(self.turn.salt)
                self._look_around(Random(salt[0]))
            changes = action(metadata.partitions, Random(salt[0]))
            return metadata._replace(partitions=self._after(metadata.partitions, changes)) if changes else None

        yield from self.transact(self.world.metadata, decide, action.__name__.strip("_"))

    def _after(self, partitions: Partitions, changes: Changes) -> Partitions:
        merged = {**partitions, **changes}
        return {p: replace(r, controller_epoch=self._epoch) if p in changes else r for p, r in merged.items() if r}

    def _chosen(self, partitions: Partitions, random: Random) -> Changes:
        """Some action that there is an occasion for, or none."""
        weights, actions = zip(*self._actions, strict=True)
        for action in random.choices(actions, weights, k=3):
            changes = action(partitions, random)
            if changes or action == self._do_nothing:
                return changes
        return {}

    def _do_nothing(self, _: Partitions, __: Random) -> Changes:
        return {}

    def _look_around(self, random: Random) -> None:
        """Who is believed to be alive, and which broker to see to: a dead or restarted one, or just any."""
        brokers, registry = self.world.broker_ids, self.world.registry.at(self.world.registry.newest)
        live = self.world.live()
        self._live = live if random.random() > _WRONG else set(random.sample(brokers, random.randint(1, len(brokers))))
        due = [b for b in brokers if b not in live or registry[b].broker_epoch != self._seen_epochs.get(b, 1)]
        if not due and random.random() > _WRONG:
            self._broker = 0
            return
        self._broker = random.choice(due or brokers)
        self._seen_epochs[self._broker] = registry[self._broker].broker_epoch

    def _broker_failure(self, partitions: Partitions, random: Random) -> Changes:
        """Also for a broker with a new broker epoch: a failure, then a start-up."""
        if not self._broker:
            return {}
        unclean = self.world.setting.unclean_allowed and random.random() < 0.5
        failed = {
            p: self.world.rules.broker_failure(r, self._broker, self._live, unclean) for p, r in partitions.items()
        }
        return {p: r for p, r in failed.items() if r != partitions[p]}

    def _elect_offline(self, partitions: Partitions, random: Random) -> Changes:
        unclean = self.world.setting.unclean_allowed and random.random() < 0.5
        offline = {p: r for p, r in partitions.items() if r.leader == NO_LEADER}
        return _done({p: self.world.rules.elect_offline(r, self._live, unclean) for p, r in offline.items()})

    def _elect_preferred(self, partitions: Partitions, _: Random) -> Changes:
        wanted = {p: r for p, r in partitions.items() if r.leader != r.replicas[0]}
        return _done({p: self.world.rules.elect_preferred(r, self._live) for p, r in wanted.items()})

    def _controlled_shutdown(self, partitions: Partitions, _: Random) -> Changes:
        registry = self.world.registry.at(self.world.registry.newest)
        going = {broker for broker, row in registry.items() if row.shutting_down}
        led = {p: r for p, r in partitions.items() if r.leader in going}
        return _done({p: self.world.rules.elect_controlled_shutdown(r, self._live, going) for p, r in led.items()})

    def _reassign(self, partitions: Partitions, random: Random) -> Changes:
        partition = random.choice(sorted(partitions))
        registration = partitions[partition]
        others = [broker for broker in self.world.broker_ids if broker not in registration.replicas]
        if others and (len(registration.replicas) < 2 or random.random() < 0.6):
            target = [*registration.replicas, random.choice(others)]
        else:
            target = random.sample(registration.replicas, max(1, len(registration.replicas) - 1))
        return _done({partition: self.world.rules.with_replicas(registration, target, self._live)})

    def _delete_and_make_again(self, partitions: Partitions, random: Random) -> Changes:
        partition = random.choice(sorted(partitions))
        gone = partitions[partition]
        self.world.topic_ids += 1
        made = new_partition(gone.topic, f"t{self.world.topic_ids}", gone.partition, gone.replicas, self._live)
        return {partition: None, made.topic_id_partition: made}


def _done(elected: Mapping[TopicIdPartition, PartitionRegistration | None]) -> Changes:
    return {partition: registration for partition, registration in elected.items() if registration is not None}
