"""What happens to a controller, under Kafka's names, and the queue that it waits in. [EV-01, EV-04, EV-05]

Kafka: `ControllerEvent`, `ControllerEventManager`. What Kafka is told by responses of brokers, their rows tell here:
`BrokerModifications` is any of these. What it is told by watches, a look at the tables tells.
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
    """This process has been elected: it takes over. [EV-04, FO-01]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class BrokerChange:
    """Brokers have come, gone, or begun a new epoch. `before` is how they were. [BC-02]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class LogDirEventNotification:
    """Live brokers have other replicas with broken files than before. `before` is how the brokers were. [LI-04]"""

    before: Mapping[int, BrokerView]


@dataclass(frozen=True)
class BrokerModifications:
    """Brokers have carried out newer metadata: replicas may be deleted by now. [TD-03, LI-07]"""


@dataclass(frozen=True)
class ControlledShutdown:
    """A broker wants to go. [CS-04]"""

    broker_id: int


@dataclass(frozen=True)
class IsrChangeNotification:
    """Leaders have changed ISRs: reassignments may have caught up. [LI-05, RA-02]"""


@dataclass(frozen=True)
class AutoPreferredReplicaLeaderElection:
    """The balance of leaders is to be looked at. [AR-01]"""


@dataclass(frozen=True)
class TopicChange:
    """A topic is to be made. [LI-02]"""

    request: AdminRequest


@dataclass(frozen=True)
class PartitionModifications:
    """A topic is to get more partitions. [LI-07]"""

    request: AdminRequest


@dataclass(frozen=True)
class TopicConfigChange:
    """A topic is to get other settings, which may allow unclean elections. Kafka: TopicUncleanLeaderElectionEnable."""

    request: AdminRequest


@dataclass(frozen=True)
class BrokerConfigChange:
    """A broker is to get other settings. Kafka has no event for it: there it is not the controller that writes them."""

    request: AdminRequest


@dataclass(frozen=True)
class TopicDeletion:
    """A topic is to go. [TD-01, LI-03]"""

    request: AdminRequest


@dataclass(frozen=True)
class PartitionReassignment:
    """Partitions are to be moved, or to stay where they were. [RA-01, LI-06]"""

    request: AdminRequest


@dataclass(frozen=True)
class ReplicaLeaderElection:
    """Leaders are to be elected, preferred or unclean. Kafka: PreferredReplicaLeaderElection before KIP-460. [PE-01]"""

    request: AdminRequest


RequestEvent: TypeAlias = (
    TopicChange
    | PartitionModifications
    | TopicConfigChange
    | BrokerConfigChange
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
    "delete_topic": TopicDeletion,
    "alter_partition_reassignments": PartitionReassignment,
    "elect_leaders": ReplicaLeaderElection,
}


class ControllerEventManager:
    """The queue. One thread puts events in and takes them out, in order. [EV-01]"""

    def __init__(self, process: Callable[[Event], Generator[Any, Any, None]], clock: Callable[[], float]) -> None:
        self._process = process
        self._clock = clock
        self._queue: deque[tuple[Event, float]] = deque()
        self.state = "Idle"

    def put(self, event: Event) -> None:
        """Queues an event, unless the very same one is waiting already."""
        if all(queued != event for queued, _ in self._queue):
            self._queue.append((event, self._clock()))

    def process_all(self) -> Generator[Any, Any, None]:
        """Processes what is queued. An event whose processing raises, or is not carried out to its end, stays at the
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
