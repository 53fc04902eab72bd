"""Handles brokers that start, fail, return or shut down.

Kafka: `KafkaController.onBrokerStartup`, `onBrokerFailure`, `doControlledShutdown`. [BC-02, BU-01, BD-01, CS-04]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from lakelog.replication.controller import partition_state_machine, replica_state_machine, topic_deletion_manager
from lakelog.replication.controller.controller_context import BrokerView, PartitionAndReplica
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.partition_state_machine import Strategy, trigger_online_partition_state_change
from lakelog.replication.errors import BrokerNotAvailableException, InvalidRequestException
from lakelog.replication.protocol.elections import with_leader
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_states import ReplicaState
from lakelog.replication.protocol.topic import BROKER_TYPE, Entity

_SHOWN = 10  # the most partitions in an error text


def on_broker_change(decision: Decision, before: Mapping[int, BrokerView]) -> None:
    """Handles the difference from `before`, the earlier live brokers: new ones start up, missing ones have failed.

    A broker with a new broker epoch has failed and started up again, however briefly it was away (KIP-380). All of it
    goes into one commit. Kafka: `KafkaController.processBrokerChange`. [BC-02, BU-02, BD-01]
    """
    now, live = decision.context.brokers, decision.context.live_brokers
    new, dead = now.keys() - before.keys(), before.keys() - now.keys()
    bounced = {b for b in now.keys() & before.keys() if now[b].broker_epoch != before[b].broker_epoch}
    decision.live = live - bounced
    on_broker_failure(decision, dead | bounced)
    decision.fence_isr_changes(r.topic_id_partition for r in replica_state_machine.replicas_on(decision, bounced))
    decision.live = live
    _expel_older_processes(decision)
    on_broker_startup(decision, new | bounced)
    take_offline(decision)


def unregister(decision: Decision, broker: int) -> str:
    """Removes the registration of a broker that is gone for good, and its settings. Returns the result as text.

    A broker that was unregistered before is no error: the last controller may have died before it removed the settings
    or answered. Its replicas of topics that are being deleted count as deleted: else the deletions would wait for it
    for ever. Raises BrokerNotAvailableException for an unknown broker, and InvalidRequestException for one that is
    alive or has other replicas.

    Kafka: `ClusterControlManager.unregisterBroker`, which checks neither. [BC-01, TD-04]
    """
    context, entity = decision.context, Entity(BROKER_TYPE, str(broker))
    on_it = (r for r in context.partitions.values() if broker in r.replicas)
    held = sorted(r.name for r in on_it if not decision.is_being_deleted(r))
    if broker in context.brokers:
        raise InvalidRequestException(
            f"broker {broker} is alive: stop it, and wait until its last heartbeat is older than "
            f"{context.config.broker_session_timeout_ms / 1000:g} s (broker.session.timeout.ms)"
        )
    if held:
        raise InvalidRequestException(
            f"broker {broker} has {len(held)} replica{'' if len(held) == 1 else 's'} ({first_names(held, _SHOWN)}): "
            f"`reassign-partitions --drain {broker} --execute` moves them to other brokers"
        )
    if broker not in context.registered | context.unregistered:
        there = ", ".join(map(str, sorted(context.registered))) or "none"
        raise BrokerNotAvailableException(f"no broker {broker} has registered; there are: {there}")
    if broker in context.registered:
        decision.unregistered.add(broker)
        topic_deletion_manager.resume_deletions(decision)
    if entity in context.configs:
        decision.configs[entity] = {}
    return "is unregistered"


def _expel_older_processes(decision: Decision) -> None:
    """Removes ISR members that have a newer broker epoch than when they joined, even if no controller saw the restart.

    If no other live member is left, they stay, except those that have lost their logs. Those stay only if no live
    member with its log is left. KIP-380, KIP-903. [BC-01, BU-02, LI-04]
    """
    expelled: list[PartitionAndReplica] = []
    for partition in decision.context.partitions:
        registration, older = decision.registration(partition), _older(decision, decision.registration(partition))
        if older and not decision.is_left_alone(registration):
            stays = _stays(decision, registration, older)
            expelled += [PartitionAndReplica(partition, b) for b in older if b not in stays]
            _renew(decision, registration, older & stays)
    replica_state_machine.handle_state_changes(decision, expelled, ReplicaState.OFFLINE)
    replica_state_machine.handle_state_changes(decision, expelled, ReplicaState.ONLINE)


def _older(decision: Decision, registration: PartitionRegistration) -> set[int]:
    brokers = decision.context.brokers
    return {b for b in registration.isr if b in brokers and registration.isr_epoch(b) < brokers[b].broker_epoch}


def _stays(decision: Decision, registration: PartitionRegistration, older: set[int]) -> set[int]:
    """The members that stay: the live ones that never restarted, else the live ones with their logs, else all."""
    members, lost = set(registration.isr), decision.without_log(registration)
    return (members - older) & decision.live or (members - lost) & decision.live or members


def _renew(decision: Decision, registration: PartitionRegistration, members: set[int]) -> None:
    """Takes the leadership from a restarted leader, and gives staying `members` with logs their current epochs."""
    partition, brokers = registration.topic_id_partition, decision.context.brokers
    now = {b: brokers[b].broker_epoch for b in members - decision.without_log(registration)}
    renewed = replace(registration, isr_epochs={**registration.isr_epochs, **now})
    if registration.leader in _older(decision, registration):
        renewed = with_leader(renewed, NO_LEADER, renewed.isr)
        partition_state_machine.handle_state_changes(decision, [partition], PartitionState.OFFLINE)
    decision.put(renewed)


def _go_offline(decision: Decision, replicas: Collection[PartitionAndReplica]) -> None:
    """Elects other leaders for these replicas, and removes them from each ISR of which they are not the last member."""
    led = [
        r.topic_id_partition for r in replicas
        if decision.registration(r.topic_id_partition).leader == r.broker_id
        and decision.partition_state(r.topic_id_partition) == PartitionState.ONLINE
    ]  # fmt: skip
    partition_state_machine.handle_state_changes(decision, led, PartitionState.OFFLINE)
    replica_state_machine.handle_state_changes(decision, replicas, ReplicaState.OFFLINE)
    if led:
        trigger_online_partition_state_change(decision)


def on_broker_startup(decision: Decision, brokers: Collection[int]) -> None:
    """Sets the brokers' replicas online, elects leaders for partitions that wait for one, and resumes deletions.

    Kafka: `KafkaController.onBrokerStartup`. [BU-01, BU-02]
    """
    if brokers:
        held = replica_state_machine.replicas_on(decision, brokers)
        replicas = [
            r for r in held
            if decision.replica_state(r) != ReplicaState.DELETION_SUCCESSFUL
            and r.topic_id_partition not in decision.context.brokers[r.broker_id].offline
        ]  # fmt: skip
        replica_state_machine.handle_state_changes(decision, replicas, ReplicaState.ONLINE)
        trigger_online_partition_state_change(decision)
        topic_deletion_manager.resume_deletions(decision)


def on_broker_failure(decision: Decision, brokers: Collection[int]) -> None:
    """Elects other leaders and removes the brokers from each ISR of which they are not the last member. Deletions wait.

    Brokers that have lost their logs leave first, so that the last member still has its log if any does. A restarted
    broker that already leads or is in the ISR under its new epoch stays: only its old process has failed, and the new
    one may be the only one with all records.

    Kafka: `KafkaController.onBrokerFailure`. [BD-01, BD-02, BD-03, BC-01]
    """
    if not brokers:
        return
    known = decision.context.partitions
    led = [
        p for p in known
        if (leader := decision.registration(p).leader) in brokers and not _has_joined_since(decision, p, leader)
        and decision.partition_state(p) == PartitionState.ONLINE
    ]  # fmt: skip
    partition_state_machine.handle_state_changes(decision, led, PartitionState.OFFLINE)
    trigger_online_partition_state_change(decision)
    held = replica_state_machine.replicas_on(decision, brokers)
    deleted = [r for r in held if decision.is_left_alone(decision.registration(r.topic_id_partition))]
    kept = [
        r for r in held
        if not decision.is_left_alone(decision.registration(r.topic_id_partition))
        and not _has_joined_since(decision, r.topic_id_partition, r.broker_id)
    ]  # fmt: skip
    kept.sort(key=lambda r: r.broker_id not in decision.without_log(decision.registration(r.topic_id_partition)))
    replica_state_machine.handle_state_changes(decision, kept, ReplicaState.OFFLINE)
    topic_deletion_manager.fail_replica_deletion(decision, deleted)


def _has_joined_since(decision: Decision, partition: TopicIdPartition, broker: int) -> bool:
    """Whether a broker is in the ISR under its current broker epoch or a later one."""
    registration, view = decision.registration(partition), decision.context.brokers.get(broker)
    is_member = broker in registration.isr
    return view is not None and is_member and registration.isr_epoch(broker) >= view.broker_epoch


def on_log_dir_event(decision: Decision, before: Mapping[int, BrokerView]) -> None:
    """Sets replicas with broken files offline, and replicas whose files work again online.

    Kafka: `KafkaController.processLogDirEventNotification`, `onReplicasBecomeOffline`. KIP-112. [LI-04, OL-01]
    """
    brokers, live = decision.context.brokers, decision.context.live_brokers
    healed = [
        replica
        for replica in replica_state_machine.replicas_on(decision, live & before.keys())
        if replica.topic_id_partition in before[replica.broker_id].offline - brokers[replica.broker_id].offline
        and not decision.is_left_alone(decision.registration(replica.topic_id_partition))
    ]
    replica_state_machine.handle_state_changes(decision, healed, ReplicaState.ONLINE)
    if healed:
        trigger_online_partition_state_change(decision)
    take_offline(decision)


def take_offline(decision: Decision) -> None:
    """Sets replicas with a broken file offline: they lead nothing, and leave each ISR unless they are its last member.

    It also makes pending ISR changes fail: a leader may have decided to add the replica while its files worked. Topics
    in deletion are left alone. [LI-04, OL-01, IS-05]
    """
    offline = [
        replica
        for replica in decision.context.offline_replicas
        if decision.replica_state(replica) != ReplicaState.OFFLINE
        and not decision.is_left_alone(decision.registration(replica.topic_id_partition))
    ]
    _go_offline(decision, offline)
    decision.fence_isr_changes(replica.topic_id_partition for replica in offline)


def on_controlled_shutdown(decision: Decision, broker: int) -> None:
    """Moves the broker's leaderships to other in-sync replicas, and removes the broker from the ISRs it follows in.

    It leaves a partition without another replica alone: the broker leads it until it stops.

    Kafka: `KafkaController.doControlledShutdown`. [CS-04, CS-05, CS-06]
    """
    context = decision.context
    held = [
        r for r in replica_state_machine.replicas_on(decision, {broker})
        if len(context.partitions[r.topic_id_partition].replicas) > 1
        and not decision.is_left_alone(decision.registration(r.topic_id_partition))
    ]  # fmt: skip
    led = [r.topic_id_partition for r in held if decision.registration(r.topic_id_partition).leader == broker]
    partition_state_machine.handle_state_changes(decision, led, PartitionState.ONLINE, Strategy.CONTROLLED_SHUTDOWN)
    followed = [r for r in held if context.partitions[r.topic_id_partition].leader != broker]
    replica_state_machine.handle_state_changes(decision, followed, ReplicaState.OFFLINE)


def on_failover(decision: Decision, before: Mapping[int, BrokerView]) -> None:
    """Finishes the work of the last controller, and handles brokers that died unseen. [FO-03, FO-04, RS-04, PS-03]

    `before` has the live brokers at the time when the last controller was last known to work. Kafka:
    `KafkaController.onControllerFailover`.
    """
    replicas = replica_state_machine.replicas_on(decision, decision.context.brokers)
    replica_state_machine.handle_state_changes(decision, replicas, ReplicaState.ONLINE)
    on_broker_change(decision, {**dict.fromkeys(_gone(decision), BrokerView(-1)), **before})
    take_offline(decision)
    trigger_online_partition_state_change(decision)
    for broker in sorted(decision.context.shutting_down_brokers):
        on_controlled_shutdown(decision, broker)
    topic_deletion_manager.resume_deletions(decision)
    topic_deletion_manager.complete_replica_deletions(decision)  # brokers that have reported do not report again


def _gone(decision: Decision) -> set[int]:
    """The dead brokers that hold replicas."""
    held = {broker for registration in decision.context.partitions.values() for broker in registration.replicas}
    return held - decision.context.brokers.keys()
