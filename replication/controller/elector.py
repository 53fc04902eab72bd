"""Elects leaders in place of brokers that die, come back or shut down: the controller's part in a local cluster.

One thread, one compare-and-set commit for all that one look at the brokers leads to. Kafka: `KafkaController`,
`PartitionStateMachine`, `ReplicaStateMachine`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from replication.errors import (
    ElectionNotNeededException,
    EligibleLeadersNotAvailableException,
    InvalidRequestException,
    LakelogException,
    PreferredLeaderNotAvailableException,
    UnknownTopicOrPartitionException,
)
from replication.protocol import replica_states
from replication.protocol.leader_election import (
    broker_failure,
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    is_unclean,
    replica_offline,
    with_leader,
)
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.partition_states import PartitionState, initial_state
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.cluster import Cluster
from replication.storage.liveness import Liveness

state_changes = logging.getLogger("state.change.logger")

PREFERRED, UNCLEAN = "preferred", "unclean"


class Elector:
    """Watches brokers by their heartbeats and keeps every partition led by a live member of its ISR."""

    def __init__(self, cluster: Cluster, liveness: Liveness) -> None:
        self._cluster = cluster
        self._liveness = liveness
        self._broker_epochs: dict[int, int] = {}
        self._seen: tuple[set[int], dict[int, int], int] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elector", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, after what it is at."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._cluster.config.lakelog_poll_interval_ms / 1000):
            try:
                self.look()
            except (LakelogException, OSError) as error:
                state_changes.warning("elector: %s", error)

    def look(self) -> None:
        """Looks at the brokers once and elects where that is called for.

        A broker that has begun a new epoch has failed in between and is taken as a failure followed by a start-up.
        [BU-02, BD-01, BD-02, BC-01]
        """
        brokers = self._cluster.refresh_brokers()
        live = self._liveness.look(brokers)
        epochs = {broker: registration.broker_epoch for broker, registration in brokers.items()}
        restarted = {b for b, epoch in epochs.items() if self._broker_epochs.get(b, epoch) != epoch}
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        seen = (live, epochs, self._cluster.metadata.version)
        if seen != self._seen:
            self._change("brokers", lambda registration: self._heal(registration, live, restarted))
            self._broker_epochs = epochs
            self._seen = (live, epochs, self._cluster.metadata.version)

    def _heal(
        self, registration: PartitionRegistration, live: Collection[int], restarted: Collection[int]
    ) -> PartitionRegistration:
        unclean = self._may_be_unclean(registration)
        staying = [broker for broker in live if broker not in restarted]
        healed = registration
        for broker in registration.replicas:
            if broker in restarted or replica_states.initial_state(broker, live) != replica_states.ReplicaState.ONLINE:
                healed = broker_failure(healed, broker, staying, unclean)
        match initial_state(healed, live):
            case PartitionState.NEW:
                alive = [replica for replica in healed.replicas if replica in live]
                return with_leader(healed, alive[0], alive) if alive else healed
            case PartitionState.OFFLINE:
                return elect_offline(healed, live, unclean) or healed
        return healed

    def _may_be_unclean(self, registration: PartitionRegistration) -> bool:
        topic = self._cluster.topics.topics.get(registration.topic)
        return self._cluster.config.topic(topic.configs if topic else {}).unclean_leader_election_enable

    def elect(self, topic: str, partition: int, election_type: str) -> None:
        """Elects by hand: the preferred leader, or, unclean, whoever lives.

        Raises InvalidRequestException; UnknownTopicOrPartitionException; ElectionNotNeededException if the preferred
        leader leads, or, unclean, if anybody does; PreferredLeaderNotAvailableException;
        EligibleLeadersNotAvailableException. [PE-01, LE-02]
        """
        if election_type not in (PREFERRED, UNCLEAN):
            raise InvalidRequestException(f"election type {election_type!r}: it must be {PREFERRED} or {UNCLEAN}")
        live = self._liveness.look(self._cluster.refresh_brokers())
        self._cluster.metadata.refresh()
        if all((r.topic, r.partition) != (topic, partition) for r in self._cluster.metadata.partitions.values()):
            raise UnknownTopicOrPartitionException(f"no partition {topic}-{partition}")

        def choose(registration: PartitionRegistration) -> PartitionRegistration:
            name = f"{topic}-{partition}"
            preferred = election_type == PREFERRED
            if registration.leader == (registration.replicas[0] if preferred else registration.leader) != NO_LEADER:
                raise ElectionNotNeededException(f"{name}: broker {registration.leader} leads already")
            elected = elect_preferred(registration, live) if preferred else elect_offline(registration, live, True)
            if elected is None and preferred:
                raise PreferredLeaderNotAvailableException(
                    f"{name}: broker {registration.replicas[0]} is not alive and in the ISR {registration.isr}"
                )
            if elected is None:
                raise EligibleLeadersNotAvailableException(f"{name}: none of {registration.replicas} is alive")
            return elected

        self._change(f"{election_type} election", choose, lambda r: (r.topic, r.partition) == (topic, partition))

    def controlled_shutdown(self, broker: int) -> None:
        """Gives what a broker leads to others before it stops; what nobody else may lead stays. [CS-05, CS-06]"""
        live = self._liveness.look(self._cluster.refresh_brokers())

        def leave(registration: PartitionRegistration) -> PartitionRegistration:
            if len(registration.replicas) == 1 or broker not in registration.replicas:
                return registration
            if registration.leader == broker:
                return elect_controlled_shutdown(registration, live, {broker}) or registration
            return replica_offline(registration, broker)

        self._change(f"controlled shutdown of broker {broker}", leave)

    def _change(
        self,
        why: str,
        decide: Callable[[PartitionRegistration], PartitionRegistration],
        concerns: Callable[[PartitionRegistration], bool] = lambda _: True,
    ) -> None:
        """Decides on the newest metadata and writes what has changed, in one commit."""

        def choose(partitions: Mapping[TopicIdPartition, PartitionRegistration]) -> list[PartitionRegistration]:
            known = self._cluster.topics.topics
            current = [r for r in partitions.values() if r.topic not in known or known[r.topic].topic_id == r.topic_id]
            chosen = [r for r in current if concerns(r)]
            changed = [(before, decide(before)) for before in chosen]
            for before, after in changed:
                self._log(why, before, after)
            return [after for before, after in changed if after != before]

        self._cluster.metadata.change(choose, {"who": "elector", "why": why})

    def _log(self, why: str, before: PartitionRegistration, after: PartitionRegistration) -> None:
        if after != before:
            state_changes.info(
                "elector: %s-%d: leader %d -> %d, ISR %s -> %s, leader epoch %d (%s%s)",
                before.topic, before.partition, before.leader, after.leader, before.isr, after.isr, after.leader_epoch,
                why, ", unclean" if is_unclean(before, after) else "",
            )  # fmt: skip
