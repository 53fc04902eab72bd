"""The changes that one event makes. Those to `metadata` go into one commit.

Kafka collects LeaderAndIsr, UpdateMetadata and StopReplica requests in a `ControllerBrokerRequestBatch`. Here the rows
of `metadata` replace all three, and brokers read them. [CH-01, CH-02]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from lakelog.replication.controller.controller_context import ControllerContext, PartitionAndReplica
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.elections import is_unclean
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_states import ReplicaState
from lakelog.replication.protocol.topic import Entity, Topic

Key = TypeVar("Key")

state_changes = logging.getLogger("state.change.logger")


class DecisionInterrupted(Exception):
    """A decision was given up before its end, and nothing of it is written. `__cause__` is the error, if any."""


def uninterrupted() -> None:
    """The default `keep_lease`: it never interrupts a decision."""


class StateChange(NamedTuple):
    """A move of a partition or a replica from one state to another, for the log of state changes."""

    what: str
    before: str
    after: str
    is_valid: bool = True


class Decision:
    """The changes of one event. Each change builds on the earlier ones; the context itself is not changed.

    Each step calls `keep_lease`, which renews the lease. It raises DecisionInterrupted if the lease cannot be renewed
    or the controller is being stopped. So a decision on many partitions does not lose the lease, and does not delay a
    stop.
    """

    def __init__(self, context: ControllerContext, why: str, keep_lease: Callable[[], None] = uninterrupted) -> None:
        self.context = context
        self.why = why
        self.keep_lease = keep_lease
        self.live = context.live_brokers
        self.cordoned = context.cordoned_brokers
        self.changed: dict[TopicIdPartition, PartitionRegistration] = {}
        self.removed: set[TopicIdPartition] = set()
        self.topics: dict[str, Topic] = {}
        self.configs: dict[Entity, Mapping[str, str]] = {}
        self.unregistered: set[int] = set()
        self.dropped: set[str] = set()
        self.deletions_begun: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.state_changes: list[StateChange] = []
        self._partition_states: dict[TopicIdPartition, str] = {}
        self._replica_states: dict[PartitionAndReplica, str] = {}

    def live_for(self, partition: TopicIdPartition) -> frozenset[int]:
        """The brokers that may be elected for a partition: they are live, have no broken file of it, and still have the
        log with which they were in sync. [OL-01, LI-04]"""
        return self.whole_for(partition) - self.without_log(self.registration(partition))

    def whole_for(self, partition: TopicIdPartition) -> frozenset[int]:
        """The live brokers without a broken file of a partition; they may have lost its log. A process that is in the
        ISR under its current epoch counts, also while that epoch is handled as a failure. [OL-01, BC-01]"""
        brokers, registration = self.context.brokers, self.registration(partition)
        known = {b for b in registration.isr if b in brokers and registration.isr_epoch(b) == brokers[b].broker_epoch}
        live = self.live | (known & self.context.live_brokers)
        return frozenset(b for b in live if b not in brokers or partition not in brokers[b].offline)

    def without_log(self, registration: PartitionRegistration) -> frozenset[int]:
        """The ISR members that have another log now than when they joined the ISR or were elected. [LI-04]"""
        brokers = self.context.brokers
        members = (b for b in registration.isr if b in brokers)
        return frozenset(b for b in members if registration.isr_epoch(b) < brokers[b].log_epoch)

    def registration(self, partition: TopicIdPartition) -> PartitionRegistration:
        """The partition as decided so far. Raises KeyError if there is none."""
        return self.changed.get(partition) or self.context.partitions[partition]

    def put(self, registration: PartitionRegistration) -> None:
        """Changes or adds a partition. If it differs, its epochs rise by one, however often it is changed. [LE-06]

        A broker that is elected or joins the ISR does so under its current broker epoch. [BC-01]
        """
        self.keep_lease()
        partition = registration.topic_id_partition
        brokers = self.context.brokers
        known = registration.isr_epochs
        joined = {**{b: brokers[b].broker_epoch for b in registration.isr if b in brokers}, **known}
        registration = replace(registration, isr_epochs={b: joined[b] for b in registration.isr if b in joined})
        before = self.context.partitions.get(partition)
        controller_epoch = self.context.controller_epoch
        if before is None:
            self.changed[partition] = replace(registration, controller_epoch=controller_epoch)
        elif partition in self.changed or _facts(before) != _facts(registration):
            # Also if the event has undone its own change: actions under the old epochs must be fenced.
            self.changed[partition] = replace(
                registration, controller_epoch=controller_epoch,
                leader_epoch=before.leader_epoch + 1, partition_epoch=before.partition_epoch + 1,
            )  # fmt: skip

    def keep(self, partition: TopicIdPartition) -> None:
        """Withdraws the changes to a partition: it stays as it is in the table."""
        self.changed.pop(partition, None)

    def fence_isr_changes(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Makes pending ISR changes of these partitions fail: raises only the partition epoch. [IS-05, BC-01]"""
        for partition in partitions:
            if partition not in self.changed:
                before = self.context.partitions[partition]
                self.changed[partition] = replace(before, partition_epoch=before.partition_epoch + 1)

    def remove(self, partition: TopicIdPartition) -> None:
        """Removes a partition from the metadata."""
        self.changed.pop(partition, None)
        self.removed.add(partition)

    def topic(self, name: str) -> Topic | None:
        """The topic as decided so far; None if there is none."""
        return self.topics.get(name) or self.context.topics.get(name)

    def configs_of(self, entity: Entity) -> Mapping[str, str]:
        """The settings of an entity as decided so far."""
        return {**self.context.configs, **self.configs}.get(entity, {})

    def mark_for_deletion(self, topic: Topic) -> None:
        """Queues the topic for deletion. [TD-01]"""
        self.topics[topic.topic] = replace(topic, deleting=True)

    def topics_to_be_deleted(self) -> list[Topic]:
        """The topics that are queued for deletion and not dropped yet, in order of their names."""
        known = {**self.context.topics, **self.topics}
        return [topic for name, topic in sorted(known.items()) if topic.deleting and name not in self.dropped]

    def is_being_deleted(self, registration: PartitionRegistration) -> bool:
        """Whether the partition's topic is queued for deletion. [TD-05]"""
        topic = self.topic(registration.topic)
        return topic is not None and topic.deleting and topic.topic_id == registration.topic_id

    def is_left_alone(self, registration: PartitionRegistration) -> bool:
        """Whether broker changes leave the partition alone, because its topic is queued for deletion. A partition that
        is being reassigned is not left alone: its deletion waits for the reassignment, which may need a leader.
        [TD-01, TD-05]"""
        return self.is_being_deleted(registration) and not is_reassigning(registration)

    def partitions_of(self, topic: Topic) -> list[PartitionRegistration]:
        """The topic's partitions as decided so far, in order of their numbers."""
        known = {**self.context.partitions, **self.changed}
        found = [r for p, r in known.items() if p.topic_id == topic.topic_id and p not in self.removed]
        return sorted(found, key=lambda registration: registration.partition)

    def partition_state(self, partition: TopicIdPartition) -> str:
        """The partition's state as decided so far."""
        known = self._partition_states.get(partition) or self.context.partition_states.get(partition)
        return known or PartitionState.NON_EXISTENT

    def replica_state(self, replica: PartitionAndReplica) -> str:
        """The replica's state as decided so far."""
        known = self._replica_states.get(replica) or self.context.replica_states.get(replica)
        return known or ReplicaState.NON_EXISTENT

    def move_partition(self, registration: PartitionRegistration, state: str) -> None:
        """Sets a partition's state and notes the move for the log."""
        self.keep_lease()
        partition = registration.topic_id_partition
        before, self._partition_states[partition] = self.partition_state(partition), state
        if before != state:
            self.state_changes.append(StateChange(registration.name, before, state))

    def move_replica(self, replica: PartitionAndReplica, state: str) -> None:
        """Sets a replica's state and notes the move for the log."""
        self.keep_lease()
        before, self._replica_states[replica] = self.replica_state(replica), state
        if before != state:
            self.state_changes.append(StateChange(self.name_of(replica), before, state))

    def name_of(self, replica: PartitionAndReplica) -> str:
        """The name of a replica in logs, such as `replica 1 of orders-0`."""
        registration = self.registration(replica.topic_id_partition)
        return f"replica {replica.broker_id} of {registration.name}"

    def refuse_move(self, what: str, before: str, after: str) -> None:
        """Notes for the log a move that the state machine does not allow. The move is left out. [PS-01, RS-01]"""
        self.state_changes.append(StateChange(what, before, after, is_valid=False))

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return self.touches_metadata or bool(self.topics or self.configs or self.dropped or self.unregistered)

    @property
    def touches_metadata(self) -> bool:
        """Whether there is anything to write to `metadata`."""
        return bool(self.changed or self.removed)

    def applied(self, metadata_version: int) -> ControllerContext:
        """The context after all changes were written, those to `metadata` as version `metadata_version`."""
        context = self.context
        topics = {name: topic for name, topic in {**context.topics, **self.topics}.items() if name not in self.dropped}
        configs = {entity: found for entity, found in {**context.configs, **self.configs}.items() if found}
        partitions = {p: r for p, r in {**context.partitions, **self.changed}.items() if p not in self.removed}
        known = {**context.deletions, **dict.fromkeys(self.deletions_begun, metadata_version)}
        deletions = {t.topic_id: known[t.topic_id] for t in self.topics_to_be_deleted() if t.topic_id in known}
        return replace(
            context, topics=topics, configs=configs, partitions=partitions, deletions=deletions,
            registered=context.registered - self.unregistered, unregistered=context.unregistered | self.unregistered,
            partition_states=_kept(context.partition_states, self._partition_states, PartitionState.NON_EXISTENT),
            replica_states=_kept(context.replica_states, self._replica_states, ReplicaState.NON_EXISTENT),
        )  # fmt: skip

    @property
    def unclean_elections(self) -> dict[TopicIdPartition, PartitionRegistration]:
        """The partitions that get a leader which was not in the ISR, or has lost the log with which it was: committed
        records may be lost. Kafka: `ControllerStats.uncleanLeaderElectionRate`. [LE-02]"""
        known = self.context.partitions
        return {
            partition: after for partition, after in self.changed.items()
            if (before := known.get(partition)) is not None and before.isr
            and is_unclean(before, after, self.without_log(before))
        }  # fmt: skip

    def log(self) -> None:
        """Writes controller epoch, partition, old and new state and the cause to `state.change.logger`. Moves of
        replicas have level DEBUG. [BL-12]"""
        for change in self.state_changes:
            level = logging.DEBUG if change.what.startswith("replica") else logging.INFO
            fault = "" if change.is_valid else "invalid move, left out: "
            state_changes.log(
                level if change.is_valid else logging.ERROR, "controller epoch %d: %s%s: %s -> %s (%s)",
                self.context.controller_epoch, fault, change.what, change.before, change.after, self.why,
            )  # fmt: skip
        unclean = self.unclean_elections
        for partition, after in self.changed.items():
            before = self.context.partitions.get(partition)
            state_changes.info(
                "controller epoch %d: %s: leader %s -> %d, ISR %s -> %s, leader epoch %d (%s%s)",
                self.context.controller_epoch, after.name, before.leader if before else "none",
                after.leader, before.isr if before else (), after.isr, after.leader_epoch, self.why,
                ", unclean" if partition in unclean else "",
            )  # fmt: skip


def _facts(registration: PartitionRegistration) -> tuple[object, ...]:
    r = registration
    return r.leader, r.isr, r.isr_epochs, r.replicas, r.adding_replicas, r.removing_replicas


def _kept(before: Mapping[Key, str], moved: Mapping[Key, str], without: str) -> dict[Key, str]:
    return {key: state for key, state in {**before, **moved}.items() if state != without}
