"""Sabotages of the checks that tell a cluster root, a replica and a producer from another one that looks the same."""

from __future__ import annotations

from typing import Any

from lakelog.replication.protocol.partition_log import NO_ROLE, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.verification.simulation.stack.breaks import StackSabotage, all_of, at
from lakelog.verification.simulation.stack.schedules import identity


def _nothing(*_: Any) -> None:
    """Checks nothing."""


def _is_deleted(registration: PartitionRegistration | None, _hosted: Any, log: PartitionLog | None) -> Role:
    """The role of a replica that is not in the metadata: it is deleted, whether they explain it or not."""
    recorded = log.role if log is not None else NO_ROLE
    epochs = recorded.before_stray.leader_epoch, registration.leader_epoch if registration else -1
    return Role(max(epochs), STOPPED)


# Each root is believed. It does not find that replicas are lost: brokers keep those that the metadata do not explain.
ANY_ROOT = at(
    ("storage.delta.root_guard.ClusterRootGuard._check", _nothing),
    ("storage.delta.root_guard.ClusterRootGuard._accept", _nothing),
    ("storage.delta.root_guard.ClusterRootGuard.seen", lambda *_: None),
)

IDENTITY: dict[str, StackSabotage] = {
    "any_root_is_believed": StackSabotage(
        "a process believes any cluster root at the address that it knows",
        ANY_ROOT,
        identity.start_on_an_older_root,
    ),
    "stray_replicas_are_deleted": StackSabotage(
        "a broker that believes any root deletes replicas that the metadata do not explain",
        all_of(ANY_ROOT, at(("protocol.become_leader_or_follower._ended", _is_deleted))),
        identity.root_of_others,
    ),
    "the_note_is_not_read": StackSabotage(
        "a broker that starts does not look at what its earlier process has seen of the cluster root",
        at(("storage.cluster.Cluster.seen_by", lambda *_: {})),
        identity.start_on_an_older_root,
    ),
    "a_known_sequence_is_a_repeat": StackSabotage(
        "records under a known sequence count as a repeat, whatever they are",
        at(("protocol.append.check_same_records", _nothing)),
        identity.copied_producer,
    ),
}
