"""The round in which a broker takes up the roles that the metadata gives it. Kafka: `ReplicaManager.applyDelta`.

It also handles replicas with a broken file: they go offline, and are fetched again if other brokers have their records.
[BL-03, OL-01]
"""

from __future__ import annotations

from collections.abc import Collection

from lakelog.replication.protocol.partition_registration import Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.broker_rounds import RULES, BrokerRules, BrokerState
from lakelog.replication.protocol.rounds.broker_steps import (
    DeleteLogs,
    FenceIsrChanges,
    OwnLogs,
    PublishReplicas,
    ReadOwnLogs,
    RepairLogs,
    Round,
    StopFetching,
)


def take_up_roles(
    broker_id: int, broker_epoch: int, memory: BrokerState, metadata: Registrations, rules: BrokerRules = RULES
) -> Round[None]:
    """Moves a broker's process from its roles to those that the metadata gives it; unchanged replicas stay as they are.

    Broken files without batches of an assigned partition are deleted first.
    """
    hosted, offline = memory.hosted, memory.offline
    given = rules.given_to(broker_id, broker_epoch, metadata)
    hosted.update({p: rules.follow_registration(h, given[p]) for p, h in hosted.items() if p in given})
    before = {p: h.registration for p, h in hosted.items()}
    own: OwnLogs = yield ReadOwnLogs(given)
    if own.has_broken_files:
        yield DeleteLogs(())
        own = yield ReadOwnLogs(given)
    has_changed = offline.poll(own.faults, given)
    kept = offline.without_led
    steps = rules.become_leader_or_follower(broker_id, kept(before), kept(given), kept(own.logs))
    if has_changed:
        steps = [StopFetching(tuple(offline.faults)), *steps, PublishReplicas("offline replicas")]
    for step in steps:
        _ = yield step  # not `yield from`: a list's iterator cannot receive answers
    yield from _repair(memory)


def _repair(memory: BrokerState) -> Round[None]:
    """Removes the broken batches of replicas that can be fetched again and that no leader can be adding to its ISR.

    A leader may have read such a replica's row when it was in order, and be about to add it. So this commits to the
    metadata first, once each time a replica goes offline. That commit finds the replica outside the ISR, and every
    earlier change of the ISR loses.
    """
    repairable, offline = memory.offline.repairable(memory.published()), memory.offline
    unfenced = tuple(sorted(repairable.keys() - offline.fenced))
    if unfenced:
        fenced: Collection[TopicIdPartition] = yield FenceIsrChanges(unfenced)
        offline.fenced |= set(fenced)
    given_up = {p: epoch for p, epoch in repairable.items() if p in offline.fenced}
    if given_up:
        yield RepairLogs(given_up)
