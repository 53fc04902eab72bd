"""Checks `what-if` by doing it: before each kill and stop of a broker the outcome is predicted, and compared later.

The outcome counts at the first version of the metadata in which no broker that is gone leads or stays in an ISR with
others, and every partition that has a live member of its ISR has a leader. What a script does next, such as a start,
may come before that version; then the prediction is not compared. A second kill shortly after the first is predicted on
both. While another root lies in the place of the only cluster root, or none, nothing is predicted.

Left out are partitions that are being reassigned or deleted, and those whose leader has let another live broker into
the ISR, or has removed one, since the prediction was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from lakelog.jobs.admin.cluster_snapshot import context_now
from lakelog.jobs.admin.prediction import Forecast, Loss
from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
)
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.scenarios.scene import Observed, hold
from lakelog.verification.scenarios.script import Step
from lakelog.verification.scenarios.script_cluster import CONTROLLER, MetadataVersion, ScriptCluster

AS_PREDICTED, NOT_COMPARED, NOT_PREDICTED = "as predicted", "not compared", "not predicted"
_STOP = "stop"
_LOSSES = ("kill", _STOP)
_WITHOUT_EFFECT = (
    "produce", "consume", "delete_records", "wait", "describe", "logs", "epoch_end", "sleep", "copy_cluster_root",
    "no_replica_deleted",
)  # fmt: skip
_SETTLE_SECONDS = 20

Partitions = Mapping[TopicIdPartition, PartitionRegistration]


class PredictionOutcome(NamedTuple):
    """The end of a prediction: AS_PREDICTED, NOT_COMPARED, NOT_PREDICTED, or the differences."""

    of: str
    words: str
    partitions: int = 0

    @property
    def fault(self) -> str | None:
        """The differences; None if there are none, or nothing could be compared."""
        return None if self.words in (AS_PREDICTED, NOT_COMPARED, NOT_PREDICTED) else f"{self.of}: {self.words}"

    def as_json(self) -> dict[str, object]:
        """The outcome as a JSON object. `partitions`: how many were compared."""
        return {"of": self.of, "outcome": self.words, "partitions": self.partitions}


class Predicted(NamedTuple):
    """A prediction. `version`: of the metadata that it was made on. `live`: the brokers that are left."""

    of: str
    version: int
    live: frozenset[int]
    then: Partitions

    def is_settled(self, partitions: Partitions) -> bool:
        """Whether the controller has acted on the loss in each partition that both have."""
        return all(self._is_settled(partitions[key]) for key in self.then.keys() & partitions.keys())

    def _is_settled(self, registration: PartitionRegistration) -> bool:
        isr, leader = set(registration.isr), registration.leader
        if leader == NO_LEADER:  # a live member has lost its log, or is about to be elected
            expected = self.then[registration.topic_id_partition].leader
            return len(isr) <= 1 and (expected == NO_LEADER or not isr & self.live)
        return leader == LEADER_DURING_DELETE or (leader in self.live and isr <= self.live)


class Predictions:
    """The predictions of a script, of which one at most is open."""

    def __init__(self, cluster: ScriptCluster) -> None:
        self.outcomes: list[PredictionOutcome] = []
        self._cluster = cluster
        self._open: Predicted | None = None

    def before(self, step: Step) -> None:
        """Call this before each step. It ends the open prediction if the step changes the outcome, and makes another
        one if the step kills or stops a broker."""
        broker = step.arguments.get("broker")
        if step.name in _WITHOUT_EFFECT or broker == CONTROLLER:
            return
        self._end(0)
        if step.name in _LOSSES and isinstance(broker, int):
            what = f"{step.name} {broker} at line {step.line}"
            try:
                self._open = self._predicted(what, broker, step.name == _STOP)
            except LakelogException:
                self.outcomes.append(PredictionOutcome(what, NOT_PREDICTED))

    def after_all(self) -> None:
        """Call this after the last step. It waits for the outcome of the open prediction."""
        self._end(_SETTLE_SECONDS)

    def _end(self, seconds: float) -> None:
        if self._open is None:
            return
        made, self._open = self._open, None
        found: list[PredictionOutcome] = []

        def look() -> Observed:
            outcome = compare(made, self._cluster.history())
            found.extend([outcome] if outcome is not None else [])
            return Observed({}, "", None if found else "not settled yet")

        hold(look, seconds)
        self.outcomes.append(found[0] if found else PredictionOutcome(made.of, NOT_COMPARED))

    def _predicted(self, what: str, broker: int, is_stop: bool) -> Predicted:
        if self._cluster.roots.is_away(self._cluster.uri):
            raise KafkaStorageException(f"{self._cluster.uri}: another root lies there, or none")
        cluster = Cluster.open(self._cluster.uri, self._cluster.config)
        known = cluster.refresh_brokers()
        running = {number: known[number] for number in self._cluster.running() if number in known}
        live = {number: found for number, found in running.items() if not self._cluster.roots.is_away(found.root)}
        return predicted(cluster, what, live, broker, is_stop)


def predicted(
    cluster: Cluster, what: str, live: Mapping[int, BrokerRegistration], broker: int, is_stop: bool
) -> Predicted:  # fmt: skip
    """What the kill or stop of a broker will do. `live`: the brokers that live, with their registrations."""
    gone = frozenset({broker})
    loss = Loss(stopped=gone) if is_stop else Loss(killed=gone)
    forecast = Forecast(context_now(cluster, live), loss)
    compared = [r for r in forecast.partitions if not is_reassigning(r)]
    then = {r.topic_id_partition: after for r in compared if (after := forecast.then(r)) is not None}
    return Predicted(what, cluster.metadata.version, frozenset(live) - gone, then)


def compare(made: Predicted, history: Sequence[MetadataVersion]) -> PredictionOutcome | None:
    """The outcome by the versions of the metadata since the prediction; None if none of them is settled yet."""
    since = [version for version in history if version.version >= made.version]
    settled = next((n for n, version in enumerate(since) if made.is_settled(version.partitions)), None)
    if settled is None:
        return None
    found, left_out = since[settled].partitions, _changed_by_leaders(since[: settled + 1], made.live)
    left_out |= {key for key, registration in found.items() if registration.leader == LEADER_DURING_DELETE}
    compared = [key for key in made.then if key in found and key not in left_out]
    faults = [fault for key in compared if (fault := _difference(made.then[key], found[key], made.live)) is not None]
    words = AS_PREDICTED if compared else NOT_COMPARED
    return PredictionOutcome(made.of, "; ".join(faults) or words, len(compared))


def _changed_by_leaders(versions: Iterable[MetadataVersion], live: frozenset[int]) -> set[TopicIdPartition]:
    """The partitions in whose ISR a leader has let a live broker, or from which it has removed one."""
    return {
        key
        for before, after in pairwise(versions)
        if after.cause.get("who") != CONTROLLER
        for key, registration in after.partitions.items()
        if key in before.partitions and (set(before.partitions[key].isr) ^ set(registration.isr)) & live
    }


def _difference(then: PartitionRegistration, found: PartitionRegistration, live: frozenset[int]) -> str | None:
    """Of an ISR that has died as a whole, the member stays whose death the controller notices last."""
    is_dead = then.leader == NO_LEADER and not set(then.isr) & live
    same_isr = set(then.isr) == set(found.isr) or (is_dead and not set(found.isr) & live)
    if then.leader == found.leader and same_isr:
        return None
    return (
        f"{found.name} has leader {found.leader} and ISR {list(found.isr)}, "
        f"predicted were leader {then.leader} and ISR {list(then.isr)}"
    )
