"""The controller's states of a partition, and the valid moves between them.

Kafka: `PartitionState`, `PartitionStateMachine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakelog.replication.protocol.partition_registration import PartitionRegistration


class PartitionState:
    """The four states, under Kafka's names. [PS-01]"""

    NON_EXISTENT: Final = "NonExistentPartition"
    NEW: Final = "NewPartition"
    ONLINE: Final = "OnlinePartition"
    OFFLINE: Final = "OfflinePartition"


_NON_EXISTENT, _NEW = PartitionState.NON_EXISTENT, PartitionState.NEW
_ONLINE, _OFFLINE = PartitionState.ONLINE, PartitionState.OFFLINE

# State -> its valid previous states. A partition that has had a leader never becomes New again, and it goes Offline
# before it is deleted.
VALID_PREVIOUS_STATES: Final = {
    _NEW: frozenset({_NON_EXISTENT}),
    _ONLINE: frozenset({_NEW, _ONLINE, _OFFLINE}),
    _OFFLINE: frozenset({_NEW, _ONLINE, _OFFLINE}),
    _NON_EXISTENT: frozenset({_OFFLINE}),
}


def is_valid(before: str, after: str) -> bool:
    """Whether a partition may move from one state to the other. The controller logs an invalid move and skips it.

    Online to Online is an election while the partition has a leader: preferred, reassigned, controlled shutdown.

    Kafka: `ControllerContext.checkValidPartitionStateChange`. [PS-01]
    """
    return before in VALID_PREVIOUS_STATES[after]


def initial_state(registration: PartitionRegistration, live: Mapping[int, int]) -> str:
    """A partition's state when a controller starts: New if it never had a leader, Online under a live one, or Offline.

    `live`: the broker epochs of the live brokers. If a leader's epoch differs from the one of its election, it is a new
    process, which does not lead (KIP-380).

    `NO_LEADER` does not distinguish New from Offline, but the ISR does: it is empty only if the partition never had a
    leader. The difference matters: any live replica may lead a New partition, because every log is empty; an Offline
    one has records to lose.

    Kafka: `PartitionStateMachine.initializePartitionState`. [PS-03]
    """
    never_led = not registration.isr
    leader_is_live = live.get(registration.leader) == registration.isr_epoch(registration.leader)

    if never_led:
        return PartitionState.NEW
    return PartitionState.ONLINE if leader_is_live else PartitionState.OFFLINE
