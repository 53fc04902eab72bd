"""The states that the controller keeps a partition in, and the moves between them.

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

# State -> the states that a partition may come from. There are no others: a partition never becomes New again once it
# has had a leader, and it is taken out of service before it is deleted.
VALID_PREVIOUS_STATES: Final = {
    _NEW: frozenset({_NON_EXISTENT}),
    _ONLINE: frozenset({_NEW, _ONLINE, _OFFLINE}),
    _OFFLINE: frozenset({_NEW, _ONLINE, _OFFLINE}),
    _NON_EXISTENT: frozenset({_OFFLINE}),
}


def is_valid(before: str, after: str) -> bool:
    """Whether a partition may move from one state to the other. A move that is not valid is logged and left out.

    Online to Online is an election while the partition has a leader: preferred, reassigned, controlled shutdown.

    Kafka: `ControllerContext.checkValidPartitionStateChange`. [PS-01]
    """
    return before in VALID_PREVIOUS_STATES[after]


def initial_state(registration: PartitionRegistration, live: Mapping[int, int]) -> str:
    """The state of a partition when a controller starts: New if it never had a leader, Online under a live one.

    It is Offline otherwise, under a dead leader as without one. `live`: the broker epochs of those that live. A leader
    that has another than it was elected under is a new process, which does not lead (KIP-380).

    `NO_LEADER` does not tell New from Offline, as a partition that has lost its leader has it too. The ISR does: only
    that of a partition which never had a leader is empty. Any live replica may lead a New partition, as every log is
    empty; an Offline one has records to lose.

    Kafka: `PartitionStateMachine.initializePartitionState`. [PS-03]
    """
    never_led = not registration.isr
    leader_is_live = live.get(registration.leader) == registration.isr_epoch(registration.leader)

    if never_led:
        return PartitionState.NEW
    return PartitionState.ONLINE if leader_is_live else PartitionState.OFFLINE
