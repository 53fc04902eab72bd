"""The controller's states of a replica, and the valid moves between them. A follower's fetch state is in `fetch_state`.

Kafka: `ReplicaState`, `ReplicaStateMachine`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final


class ReplicaState:
    """The seven states, under Kafka's names. [RS-01]"""

    NON_EXISTENT: Final = "NonExistentReplica"
    NEW: Final = "NewReplica"
    ONLINE: Final = "OnlineReplica"
    OFFLINE: Final = "OfflineReplica"
    DELETION_STARTED: Final = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL: Final = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE: Final = "ReplicaDeletionIneligible"


_NON_EXISTENT, _NEW = ReplicaState.NON_EXISTENT, ReplicaState.NEW
_ONLINE, _OFFLINE = ReplicaState.ONLINE, ReplicaState.OFFLINE
_STARTED, _SUCCESSFUL = ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL
_INELIGIBLE = ReplicaState.DELETION_INELIGIBLE

# State -> its valid previous states. A replica goes Offline before it is deleted, and a failed deletion starts again
# from Offline.
VALID_PREVIOUS_STATES: Final = {
    _NEW: frozenset({_NON_EXISTENT}),
    _ONLINE: frozenset({_NEW, _ONLINE, _OFFLINE, _INELIGIBLE}),
    _OFFLINE: frozenset({_NEW, _ONLINE, _OFFLINE, _INELIGIBLE}),
    _STARTED: frozenset({_OFFLINE}),
    _SUCCESSFUL: frozenset({_STARTED}),
    _INELIGIBLE: frozenset({_STARTED, _OFFLINE}),
    _NON_EXISTENT: frozenset({_SUCCESSFUL}),
}


def is_valid(before: str, after: str) -> bool:
    """Whether a replica may move from one state to the other. The controller logs an invalid move and skips it.

    Kafka: `ControllerContext.checkValidReplicaStateChange`. [RS-01]
    """
    return before in VALID_PREVIOUS_STATES[after]


def initial_state(broker: int, live: Collection[int]) -> str:
    """A replica's state when a controller starts: Online if its broker is live, else Ineligible.

    The last controller's state is not stored. It may have been in the middle of a deletion, and from Started the new
    controller would wait for an answer that never comes. From Ineligible a replica can still go Online or be deleted.

    Kafka: `ReplicaStateMachine.initializeReplicaState`. [RS-04]
    """
    return ReplicaState.ONLINE if broker in live else ReplicaState.DELETION_INELIGIBLE
