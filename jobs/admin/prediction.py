"""The outcome for each partition when brokers die, stop or lose their roots.

The controller's own decisions tell who leads and who is in sync (`controller.predict`), and the
brokers' rows tell which records are where (`protocol.record_loss`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import Partition, name_brokers
from lakelog.jobs.admin.published_rows import Rows, rows_of_partition
from lakelog.jobs.cli.console import Row
from lakelog.replication.config import Config
from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.predict import Prediction, elect_uncleanly, predict
from lakelog.replication.protocol.elections import is_unclean
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.record_loss import MissingRecords, missing_records
from lakelog.replication.storage.cluster import HEARTBEAT_STALENESS
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS

OFFLINE, UNCLEAN, UNDER_MIN_ISR = "offline", "unclean leader", "under min ISR"
STUCK, NEW_LEADER, SMALLER_ISR, OTHER = "acks=all waits", "new leader", "smaller ISR", "other"
OUTCOMES = (OFFLINE, UNCLEAN, STUCK, UNDER_MIN_ISR, NEW_LEADER, SMALLER_ISR, OTHER)  # the worst first


class Loss(NamedTuple):
    """The processes and roots that are lost. `emptied`: the killed brokers whose roots are lost too. `can_commit`:
    whether a majority of the cluster roots is left, so that something can be decided."""

    killed: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    emptied: frozenset[int] = frozenset()
    can_commit: bool = True

    @property
    def gone(self) -> frozenset[int]:
        """The brokers that do not run afterwards."""
        return self.killed | self.stopped


class Change(NamedTuple):
    """A partition that the loss changes, with its worst `outcome`.

    `missing`: the records that its new leader lacks or, if it is offline, all replicas that are left; None if no row
    tells. `is_lost`: whether no root has them that is left. `unclean`: the broker that an unclean election by hand lets
    lead, and `unclean_missing` what that loses.
    """

    now: PartitionRegistration
    then: PartitionRegistration
    outcome: str
    missing: MissingRecords | None
    why: str
    unclean: int | None
    unclean_missing: MissingRecords | None
    is_under_min_isr: bool
    is_lost: bool

    @property
    def is_offline(self) -> bool:
        """Whether nobody leads it."""
        return self.outcome == OFFLINE

    @property
    def at_risk(self) -> int | None:
        """The number of committed records that nobody has who is left; None if it is not known. A leader that was in
        sync has all of them."""
        if self.missing is None:
            return None if self.outcome in (OFFLINE, UNCLEAN) else 0
        return len(self.missing.committed)


class Forecast:
    """The effects of a loss on the partitions of a snapshot. Topics that are being deleted are left out."""

    def __init__(self, context: ControllerContext, loss: Loss) -> None:
        self.loss = loss
        self.prediction: Prediction = predict(context, loss.killed, loss.stopped)
        self._without_log = Decision(context, "what-if")
        self._deleting = {topic.topic_id for topic in context.topics.values() if topic.deleting}
        self._least = {
            topic.topic_id: context.config.topic(topic.configs).min_insync_replicas for topic in context.topics.values()
        }

    @property
    def partitions(self) -> list[PartitionRegistration]:
        """All partitions as they are now."""
        known = self.prediction.now.partitions.values()
        return [r for r in known if r.topic_id not in self._deleting and r.leader != LEADER_DURING_DELETE]

    @property
    def offline_anyway(self) -> list[PartitionRegistration]:
        """The partitions that nobody leads, whatever is lost."""
        settled = self.prediction.settled.partitions
        return [r for r in self.partitions if _leader(settled, r) == NO_LEADER]

    @property
    def due_anyway(self) -> list[PartitionRegistration]:
        """The partitions that the controller changes even if nothing is lost."""
        settled = self.prediction.settled.partitions
        return [r for r in self.partitions if _facts(settled.get(r.topic_id_partition)) != _facts(r)]

    def then(self, now: PartitionRegistration) -> PartitionRegistration | None:
        """A partition after the loss; None if it is gone, as its topic is deleted."""
        after = self.prediction.then if self.loss.can_commit else self.prediction.now
        return after.partitions.get(now.topic_id_partition)

    @cached_property
    def changed(self) -> list[PartitionRegistration]:
        """The partitions that the loss changes, as they are now."""
        if not self.loss.can_commit:
            gone = self._gone
            return [r for r in self.partitions if gone & {r.leader, *r.isr}]
        settled, then = self.prediction.settled.partitions, self.prediction.then.partitions
        return [
            r for r in self.partitions
            if _facts(settled.get(r.topic_id_partition)) != _facts(then.get(r.topic_id_partition))
            or (_leader(settled, r) == NO_LEADER and self.loss.emptied & set(r.replicas))
        ]  # fmt: skip

    @property
    def _gone(self) -> set[int]:
        """The brokers that do not run after the loss, or do not run now."""
        return set(self.prediction.now.registered - self.prediction.then.brokers.keys()) | self.loss.gone

    @property
    def brokers_with_rows(self) -> set[int]:
        """The brokers whose rows tell what is missing."""
        return {broker for r in self.changed for broker in r.replicas}

    def changes(self, rows: Mapping[int, Rows]) -> list[Change]:
        """The partitions that the loss changes, the worst first. `rows`: what brokers have published, or why that
        cannot be read."""
        by_hand = elect_uncleanly(self.prediction.then) if self.loss.can_commit else {}
        found = [self._change(now, rows, by_hand.get(now.topic_id_partition)) for now in self.changed]
        return sorted(found, key=_badness)

    def _change(self, now: PartitionRegistration, tables: Mapping[int, Rows], by_hand: int | None) -> Change:
        then, rows = self.then(now) or now, rows_of_partition(now, tables)
        lost_logs = self._without_log.without_log(now)
        left = frozenset(now.replicas) & self.prediction.then.brokers.keys()
        outcome, why = self._outcome(now, then, left, lost_logs)
        led_by_another = then.leader >= 0 and then.leader not in (now.leader, NO_LEADER)
        holders = {then.leader} if led_by_another else left
        missing = missing_records(now, rows, holders, lost_logs)
        kept = missing_records(now, rows, set(now.replicas) - self.loss.emptied, lost_logs)
        unclean_missing = None if by_hand is None else missing_records(now, rows, {by_hand}, lost_logs)
        if by_hand is not None:
            lost = "an unknown number of" if unclean_missing is None else len(unclean_missing.committed)
            why += f"; an unclean election of broker {by_hand} loses {lost} records"
        is_lost = missing is not None and bool(missing.committed) and kept is not None and bool(kept.committed)
        return Change(
            now, then, outcome, missing, why, by_hand, unclean_missing,
            is_under_min_isr=outcome != OFFLINE and self._falls_under_min_isr(now, then),
            is_lost=is_lost or outcome == UNCLEAN,
        )  # fmt: skip

    def _falls_under_min_isr(self, now: PartitionRegistration, then: PartitionRegistration) -> bool:
        """Whether the loss is what makes the ISR too small."""
        settled = self.prediction.settled.partitions.get(now.topic_id_partition, now)
        was = settled.leader >= 0 and self._partition(settled).is_under_min_isr
        return self._partition(then).is_under_min_isr and not was

    def _partition(self, registration: PartitionRegistration) -> Partition:
        return Partition(registration, self._least.get(registration.topic_id, 1))

    def _outcome(
        self, now: PartitionRegistration, then: PartitionRegistration, left: Collection[int], lost_logs: Collection[int]
    ) -> tuple[str, str]:
        """The worst that becomes of a partition, and why."""
        if not self.loss.can_commit:
            gone = self._gone
            if then.leader in gone or then.leader == NO_LEADER:
                return OFFLINE, "its leader is gone, and without a majority of the cluster roots nobody is elected"
            waits = name_brokers(set(now.isr) & gone)
            return STUCK, f"its ISR keeps {waits}: without a majority of the cluster roots no ISR changes"
        if then.leader == NO_LEADER:
            return OFFLINE, _why_offline(now, left, lost_logs)
        if is_unclean(now, then, lost_logs):
            return UNCLEAN, "unclean.leader.election.enable is true, and nobody is left who was in sync"
        if self._falls_under_min_isr(now, then):
            least = min(self._least.get(now.topic_id, 1), len(self._partition(then).replicas))
            return UNDER_MIN_ISR, f"{len(then.isr)} in sync, and acks=all needs {least}"
        if then.leader != now.leader:
            return NEW_LEADER, ""
        return (SMALLER_ISR if len(then.isr) < len(now.isr) else OTHER), ""


def _why_offline(now: PartitionRegistration, left: Collection[int], lost_logs: Collection[int]) -> str:
    if not left:
        return "no replica is left"
    if in_sync := set(now.isr) & set(left):
        without = in_sync & set(lost_logs)
        stops = f"{name_brokers(in_sync)} stops, or has a broken file of it"
        why = f"{name_brokers(without)} has lost its log" if without else stops
        return f"{why}, and nobody else is left who was in sync"
    return f"{name_brokers(set(now.isr))} alone {'was' if len(now.isr) == 1 else 'were'} in sync"


def _facts(registration: PartitionRegistration | None) -> tuple[object, ...] | None:
    r = registration
    return None if r is None else (r.leader, frozenset(r.isr), r.replicas)


def _leader(partitions: Mapping[TopicIdPartition, PartitionRegistration], of: PartitionRegistration) -> int:
    found = partitions.get(of.topic_id_partition)
    return LEADER_DURING_DELETE if found is None else found.leader


def _badness(change: Change) -> tuple[int, int, str, int]:
    risk = change.at_risk
    return OUTCOMES.index(change.outcome), -(2**63 if risk is None else risk), change.now.topic, change.now.partition


def counts(changes: Sequence[Change]) -> dict[str, int]:
    """How many partitions have each outcome, and how many records are at risk as far as that is known."""
    outcomes = Counter(change.outcome for change in changes)
    return {
        "offline": outcomes[OFFLINE],
        "unclean_leader": outcomes[UNCLEAN],
        "under_min_isr": sum(change.is_under_min_isr for change in changes),
        "acks_all_waits": outcomes[STUCK],
        "new_leader": sum(change.then.leader >= 0 and change.then.leader != change.now.leader for change in changes),
        "smaller_isr": sum(len(change.then.isr) < len(change.now.isr) for change in changes),
        "records_at_risk": sum(change.at_risk or 0 for change in changes),
        "records_lost": sum(change.at_risk or 0 for change in changes if change.is_lost),
        "uncommitted_records": sum(len(c.missing.uncommitted) for c in changes if c.missing is not None),
        "unknown": sum(change.at_risk is None for change in changes),
    }


def change_row(change: Change) -> Row:
    """A partition that changes, for people and programs."""
    now, then, missing, by_hand = change.now, change.then, change.missing, change.unclean_missing
    return {
        "partition": now.name,
        "leader": None if now.leader < 0 else now.leader,
        "new_leader": None if change.is_offline else then.leader,
        "isr": list(now.isr),
        "new_isr": list(then.isr),
        "outcome": change.outcome,
        "at_risk": change.at_risk,
        "at_risk_from": missing.committed.start if missing is not None and missing.committed else None,
        "is_lost": change.is_lost,
        "acks_1_at_risk": None if missing is None else len(missing.uncommitted),
        "is_under_min_isr": change.is_under_min_isr,
        "unclean_leader": change.unclean,
        "unclean_loses": None if by_hand is None else len(by_hand.committed),
        "why": change.why,
    }


class Delay(NamedTuple):
    """A part of the time until a partition has its new leader, in ms, and what it is."""

    ms: int
    what: str


def failover_delays(config: Config, in_store: bool) -> list[Delay]:
    """The longest that each part takes from a kill until the new leader leads, by the settings; commits come on top.
    `in_store`: whether the cluster root is in an object store, where processes poll less often. [BC-01, BC-02]"""
    session, poll = config.broker_session_timeout_ms, config.lakelog_poll_interval_ms
    found = [Delay(session, "without a heartbeat (broker.session.timeout.ms)")]
    if in_store:
        stale = round(config.broker_heartbeat_interval_ms * HEARTBEAT_STALENESS)
        found.append(Delay(stale, "until the controller has read the last heartbeat (broker.heartbeat.interval.ms)"))
        found.append(Delay(round(LONGEST_SECONDS * 1000), "until the new leader has read the metadata"))
    return [*found, Delay(3 * poll, "for polls of the controller and the new leader (lakelog.poll.interval.ms)")]
