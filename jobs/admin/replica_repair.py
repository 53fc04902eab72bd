"""Lets brokers fetch wrong records of a follower again, by the protocol's own means, and says where that cannot be.

The log of the follower gets a note: from which offset on its records are wrong. Its broker finds the note, takes the
replica offline, leaves the ISR, fences pending changes of the ISR, and only then truncates its log and fetches again.
It does none of that while it leads. Each of these steps is one commit of the broker or the controller, and the note is
there until the truncation, so that a crash anywhere loses nothing: the next process of the broker goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import name_brokers
from lakelog.jobs.admin.heartbeats import ALIVE, SILENT
from lakelog.jobs.admin.replica_check import DIFFERS, ROOT, ROW, UNREAD, ReplicaCheck, ReplicaOf, Wrong, high_watermark
from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_log import NO_REPAIR
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.log.repair import note_repairs

REPAIRED, UNDER_WAY, REFUSED = "repaired", "under way", "refused"

_SHOWN = 10  # names in one sentence
_POLL_SECONDS = 0.5


class Repair(NamedTuple):
    """A follower's replica that is to be fetched again from `offset` on, from `leader` under `leader_epoch`."""

    broker: int
    topic_id_partition: TopicIdPartition
    name: str
    offset: int
    leader: int
    leader_epoch: int


class RepairOutcome(NamedTuple):
    """The outcome of a repair, and why it was not made or has not ended."""

    repair: Repair
    state: str
    why: str = ""


class RepairPlan:
    """The plan of `--repair` after a check. `repairs`: one replica of a partition at most, so that all others stay as
    they are. `hindrances`: why it leaves the rest alone, and what a person does about it."""

    def __init__(self, check: ReplicaCheck, invocation: Invocation) -> None:
        self._check, self._invocation = check, invocation
        self._doubtful = {(each.broker, key) for each in check.wrong if each.kind != ROW for key in each.partitions}
        self._differing: dict[TopicIdPartition, set[int]] = {}
        for broker, key in {replica for each in check.wrong if each.kind == DIFFERS for replica in each.replicas}:
            self._differing.setdefault(key, set()).add(broker)
        self.hindrances = {wrong: why for wrong in check.wrong if (why := self._hindrance(wrong)) is not None}
        self.repairs = self._planned()
        self._replicas = {(repair.broker, repair.topic_id_partition) for repair in self.repairs}

    def repairs_it(self, wrong: Wrong) -> bool:
        """Whether all replicas of which something is wrong are repaired."""
        return wrong.replicas <= self._replicas

    def _hindrance(self, wrong: Wrong) -> str | None:
        broker, check = wrong.broker, self._check
        if wrong.kind in (ROOT, UNREAD):
            return _about_the_root(wrong, check)
        if not wrong.parts:
            return f"broker {broker} removes it by itself: it has no records of a replica that is there"
        if wrong.kind == ROW:
            return f"broker {broker} publishes its rows anew by itself; restart it if this stays"
        if unknown := [part for part in wrong.parts if part.topic_id_partition not in check.partitions]:
            names = first_names([part.name for part in unknown], _SHOWN)
            strays = self._invocation.command("log-dirs", "--describe", "--broker-list", broker)
            return (
                f"the file has records of {names}, which this run has not checked: run it without --topic; if no "
                f"metadata explain them, {strays} says so"
            )
        if (state := check.brokers[broker].state) != ALIVE:
            begin = "start it" if state in SILENT else f"{self._invocation.command('status')} says what to do"
            return f"broker {broker} is not at work ({state}): {begin}, then run this again"
        reasons = (self._against(check.partitions[part.topic_id_partition], broker) for part in wrong.parts)
        return next((reason for reason in reasons if reason is not None), None)

    def _against(self, registration: PartitionRegistration, broker: int) -> str | None:
        """Why a replica of this partition is not fetched again. A leader never is, and nothing is fetched from a leader
        whose copy is not proved to be right."""
        name, leader, key = registration.name, registration.leader, registration.topic_id_partition
        others = [member for member in registration.isr if member != broker]
        if leader == broker and not others:
            return (
                f"broker {leader} leads {name} as its last replica in sync, so that no other copy counts: put the file "
                "back from a backup of the root, or let another replica catch up first"
            )
        if leader == broker:
            return (
                f"broker {leader} leads {name}, and no leader is repaired: stop it in order, so that "
                f"{name_brokers(others, 'or')} leads, start it again, and run this again"
            )
        if leader <= NO_LEADER:
            return f"{name} has no leader to fetch from: {self._invocation.command('status')} says what to do"
        seen, copy = self._check.brokers.get(leader), self._check.copies.get(leader)
        if seen is None or seen.state != ALIVE or copy is None or copy.log is None:
            return (
                f"nothing proves the copy of its leader right, as broker {leader} is not alive or cannot be read here"
            )
        if (leader, key) in self._doubtful:
            return f"the copy of its leader, broker {leader}, is not proved to be right: see to that one first"
        if len(differing := self._differing.get(key, set())) > 1:
            return (
                f"{name_brokers(differing)} differ from broker {leader}, the leader of {name}, so that nothing proves "
                "it right: `lakelog dump-log` shows the records of each; let one lead that is right, and reassign the "
                "replicas that are wrong"
            )
        log, committed = copy.log.current().known(key), high_watermark(registration, self._check.copies)
        if not log.role.leads_at(registration.leader_epoch) or log.log_end_offset < committed:
            return f"broker {leader} has not taken up its leadership of {name} yet: run this again"
        return None

    def _planned(self) -> list[Repair]:
        planned: dict[TopicIdPartition, Repair] = {}
        for wrong in self._check.wrong:
            for part in wrong.parts if wrong not in self.hindrances else ():
                key = part.topic_id_partition
                registration, known = self._check.partitions[key], planned.get(key)
                if known is None:
                    planned[key] = Repair(
                        wrong.broker, key, part.name, part.start, registration.leader, registration.leader_epoch
                    )
                elif known.broker == wrong.broker:
                    planned[key] = known._replace(offset=min(known.offset, part.start))
        # A file is given up as a whole: a replica that stays must have no records in it, and nothing else wrong.
        while blocked := _blocked(self._check.wrong, planned):
            planned = {key: repair for key, repair in planned.items() if (repair.broker, key) not in blocked}
        return sorted(planned.values(), key=lambda repair: (repair.broker, repair.name))


def _about_the_root(wrong: Wrong, check: ReplicaCheck) -> str:
    if wrong.broker not in check.brokers:
        return f"start broker {wrong.broker}, or move its replicas to other brokers"
    root = check.brokers[wrong.broker].registration.root
    how = f"with the settings LAKELOG_STORAGE_{wrong.broker}_… if it needs credentials"
    return f"make {root} readable from here, {how}, and run this again"


def _blocked(wrongs: Sequence[Wrong], planned: Mapping[TopicIdPartition, Repair]) -> set[ReplicaOf]:
    chosen = {(repair.broker, key) for key, repair in planned.items()}
    found = set[ReplicaOf]()
    for wrong in wrongs:
        if wrong.kind != ROW and not wrong.replicas <= chosen:
            found |= wrong.replicas & chosen
    return found


def under_min_isr(cluster: Cluster, repairs: Iterable[Repair]) -> list[str]:
    """The partitions whose producers with acks=all wait while a replica is fetched again."""
    found = []
    for repair in repairs:
        registration = cluster.metadata.partitions[repair.topic_id_partition]
        topic = cluster.topics.topics.get(registration.topic)
        config = cluster.config.topic_as_far_as_known(topic.configs if topic else {})[0]
        left = set(registration.isr) - {repair.broker}
        if len(left) < min(config.min_insync_replicas, len(registration.replicas)):
            found.append(repair.name)
    return found


def carry_out_repairs(
    cluster: Cluster, check: ReplicaCheck, repairs: Sequence[Repair], seconds: float, who: str,
    advance: Callable[[], object] = lambda: None,
) -> list[RepairOutcome]:  # fmt: skip
    """Notes the wrong records in the logs of their brokers, and waits up to `seconds` until these replicas are in sync
    again. Calls `advance` once for each repair that ends. Raises KafkaStorageException if the metadata cannot be
    read."""
    cluster.metadata.refresh()
    outcomes: dict[ReplicaOf, RepairOutcome] = {}
    for broker in sorted({repair.broker for repair in repairs}):
        for outcome in _noted(cluster, check, [repair for repair in repairs if repair.broker == broker], who):
            outcomes[broker, outcome.repair.topic_id_partition] = outcome
            if outcome.state == REFUSED:
                advance()
    deadline = time.monotonic() + seconds
    while waiting := [outcome.repair for outcome in outcomes.values() if outcome.state == UNDER_WAY]:
        truncated = _without_notes(check, waiting)
        cluster.metadata.refresh()  # after the logs: a replica that was truncated had left the ISR before
        for repair in truncated:
            registration = cluster.metadata.partitions.get(repair.topic_id_partition)
            if (ended := _ended(repair, registration)) is not None:
                outcomes[repair.broker, repair.topic_id_partition] = ended
                advance()
        if time.monotonic() >= deadline:
            break
        let_pass(_POLL_SECONDS)
    return list(outcomes.values())


def _noted(cluster: Cluster, check: ReplicaCheck, repairs: Sequence[Repair], who: str) -> list[RepairOutcome]:
    """Writes the notes of these repairs to a log, and returns their outcomes so far. A repair ends if the partition has
    another leader than the one whose copy was proved to be right."""
    due, outcomes = dict[TopicIdPartition, Repair](), []
    for repair in repairs:
        now = cluster.metadata.partitions.get(repair.topic_id_partition)
        if now is None:
            outcomes.append(RepairOutcome(repair, REFUSED, f"{repair.name} was deleted meanwhile"))
        elif (now.leader, now.leader_epoch) != (repair.leader, repair.leader_epoch):
            outcomes.append(RepairOutcome(repair, REFUSED, f"{repair.name} has another leader by now: run this again"))
        else:
            due[repair.topic_id_partition] = repair
    log = check.copies[repairs[0].broker].log
    assert log is not None
    try:
        noted = note_repairs(log, {key: (each.leader_epoch, each.offset) for key, each in due.items()}, who)
    except LakelogException as error:
        return [*outcomes, *(RepairOutcome(each, REFUSED, f"{error.name}: {error}") for each in due.values())]
    waits = f"broker {repairs[0].broker} goes on by itself; run `lakelog verify` again"
    for key, repair in due.items():
        why = f"broker {repair.broker} does not follow {repair.name} under leader epoch {repair.leader_epoch} yet"
        outcomes.append(
            RepairOutcome(repair, UNDER_WAY, waits)
            if key in noted
            else RepairOutcome(repair, REFUSED, f"{why}: run this again")
        )
    return outcomes


def _ended(repair: Repair, registration: PartitionRegistration | None) -> RepairOutcome | None:
    """The end of a repair whose note is gone; None while the replica catches up. A new leader deletes the note."""
    if registration is None:
        return RepairOutcome(repair, REFUSED, f"{repair.name} was deleted meanwhile")
    if registration.leader == repair.broker:
        why = f"broker {repair.broker} leads {repair.name} by now, and no leader is repaired: run this again"
        return RepairOutcome(repair, REFUSED, why)
    return RepairOutcome(repair, REPAIRED) if repair.broker in registration.isr else None


def _without_notes(check: ReplicaCheck, repairs: Sequence[Repair]) -> list[Repair]:
    """The repairs whose logs have no note any more. Reads each log once; one that cannot be read now is read again
    later."""
    found = list[Repair]()
    for broker in sorted({repair.broker for repair in repairs}):
        log = check.copies[broker].log
        assert log is not None
        with suppress(LakelogException):
            state = log.refresh()
            own = [repair for repair in repairs if repair.broker == broker]
            found += [repair for repair in own if state.known(repair.topic_id_partition).repair_from == NO_REPAIR]
    return found
