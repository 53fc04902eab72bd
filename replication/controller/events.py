"""The events of a controller, under Kafka's names, and their queue. [EV-01, EV-04, EV-05]

Kafka: `ControllerEvent`, `ControllerEventManager`. Kafka's controller gets responses from brokers. Here it reads their
rows instead, and `BrokerModifications` stands for all responses. It reads tables where Kafka has watches.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.protocol.admin_request import AdminRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerChange:
    """This process was elected. `before` has the live brokers while the last controller worked. [EV-04, FO-01]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class BrokerChange:
    """Brokers have started, failed or begun a new epoch. `before` has the live brokers before that. [BC-02]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class LogDirEventNotification:
    """Live brokers report other replicas with broken files. `before` has the live brokers before that. [LI-04]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class BrokerModifications:
    """Brokers have applied newer metadata, so they may have deleted replicas. [TD-03, LI-07]"""


@dataclass(frozen=True)
class ControlledShutdown:
    """A broker asks for a controlled shutdown. [CS-04]"""

    broker_id: int


@dataclass(frozen=True)
class IsrChangeNotification:
    """Leaders have changed ISRs, so reassignments may be complete. [LI-05, RA-02]"""


@dataclass(frozen=True)
class AutoPreferredReplicaLeaderElection:
    """The check of the balance of leaders is due. [AR-01]"""


@dataclass(frozen=True)
class TopicChange:
    """A request to create a topic. [LI-02]"""

    request: AdminRequest


@dataclass(frozen=True)
class PartitionModifications:
    """A request to add partitions to a topic. [LI-07]"""

    request: AdminRequest


@dataclass(frozen=True)
class TopicConfigChange:
    """A request to change a topic's settings; may allow unclean elections. Kafka: TopicUncleanLeaderElectionEnable."""

    request: AdminRequest


@dataclass(frozen=True)
class BrokerConfigChange:
    """A request to change settings of brokers. Kafka has no such event, as its controller does not write them."""

    request: AdminRequest


@dataclass(frozen=True)
class BrokerUnregistration:
    """A request to unregister a broker. Kafka: `ClusterControlManager.unregisterBroker`."""

    request: AdminRequest


@dataclass(frozen=True)
class TopicDeletion:
    """A request to delete a topic. [TD-01, LI-03]"""

    request: AdminRequest


@dataclass(frozen=True)
class PartitionReassignment:
    """A request to move partitions, or to cancel their moves. [RA-01, LI-06]"""

    request: AdminRequest


@dataclass(frozen=True)
class ReplicaLeaderElection:
    """A request to elect preferred or unclean leaders. Kafka: PreferredReplicaLeaderElection before KIP-460. [PE-01]"""

    request: AdminRequest


RequestEvent: TypeAlias = (
    TopicChange
    | PartitionModifications
    | TopicConfigChange
    | BrokerConfigChange
    | BrokerUnregistration
    | TopicDeletion
    | PartitionReassignment
    | ReplicaLeaderElection
)
Event: TypeAlias = (
    ControllerChange
    | BrokerChange
    | LogDirEventNotification
    | BrokerModifications
    | ControlledShutdown
    | IsrChangeNotification
    | AutoPreferredReplicaLeaderElection
    | RequestEvent
)

EVENT_OF_REQUEST: Mapping[str, Callable[[AdminRequest], RequestEvent]] = {
    "create_topic": TopicChange,
    "create_partitions": PartitionModifications,
    "alter_configs": TopicConfigChange,
    "alter_broker_configs": BrokerConfigChange,
    "unregister_broker": BrokerUnregistration,
    "delete_topic": TopicDeletion,
    "alter_partition_reassignments": PartitionReassignment,
    "elect_leaders": ReplicaLeaderElection,
}


class ControllerEventManager:
    """The queue of events. One thread adds events and processes them in order. [EV-01]"""

    def __init__(self, process: Callable[[Event], Generator[Any, Any, None]], clock: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._queue: deque[tuple[Event, float]] = deque()
        self.state = "Idle"

    def put(self, event: Event) -> None:
        """Queues an event, unless an equal one is waiting."""
        if all(queued != event for queued, _ in self._queue):
            self._queue.append((event, self._clock()))

    def process_all(self) -> Generator[Any, Any, None]:
        """Processes all queued events. If the processing of an event raises or stops midway, the event stays at the
        head of the queue."""
        while self._queue:
            event, queued_at = self._queue[0]
            began, self.state = self._clock(), type(event).__name__
            try:
                yield from self._process(event)
            finally:
                self.state = "Idle"
            self._queue.popleft()
            logger.debug(
                "%s: waited %.0f ms, took %.0f ms",
                type(event).__name__, (began - queued_at) * 1000, (self._clock() - began) * 1000,
            )  # fmt: skip
