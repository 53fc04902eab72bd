"""Plans of `reassign-partitions`: which replicas move off a broker, to a new one or in place of a dead one, and what
that copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import name_brokers
from lakelog.jobs.admin.heartbeats import ALIVE, SILENT, SeenBroker, ago, observe_brokers
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.partition_files import TopicPartition, reassignments
from lakelog.jobs.metrics.log_sizes import LogSizes
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InvalidReplicaAssignmentException,
    InvalidRequestException,
    LakelogException,
    LeaderNotAvailableException,
)
from lakelog.replication.protocol.assignment import CORDONED_LOG_DIRS, cordoned_brokers
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning, target_replicas
from lakelog.replication.protocol.reassignment_plan import Layout, Plan, drain, rebalance, replace_broker
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.root_identity import check_identity

_SHOWN = 10  # partitions in a sentence
_READS_AT_ONCE = 8


class MoveInputs(NamedTuple):
    """The state of a cluster from which a plan is made. `unread`: why the log of a broker cannot be read for its sizes,
    by broker id."""

    layout: Layout
    registrations: Mapping[TopicPartition, PartitionRegistration]
    brokers: Mapping[int, SeenBroker]
    unread: Mapping[int, str]

    @classmethod
    def read(cls, cluster: Cluster) -> MoveInputs:
        """Reads the tables of the cluster, and for sizes the log of each broker that is alive. Partitions that are
        being reassigned count with their target replicas. Topics that are being deleted are left out."""
        brokers = observe_brokers(cluster)
        for table in (cluster.topics, cluster.metadata, cluster.configs):
            table.refresh()
        topics = {topic.topic_id for topic in cluster.topics.topics.values() if not topic.deleting}
        partitions = cluster.metadata.partitions.values()
        registrations = {(r.topic, r.partition): r for r in partitions if r.topic_id in topics}
        alive = {broker for broker, seen in brokers.items() if seen.state == ALIVE}
        may_get_replicas = frozenset(alive - cordoned_brokers(cluster.configs.configs, brokers))
        sizes, unread = _sizes(cluster, registrations, brokers)
        racks = {broker: seen.registration.rack for broker, seen in brokers.items()}
        replicas = {partition: target_replicas(r) for partition, r in registrations.items()}
        return cls(Layout(replicas, racks, may_get_replicas, sizes), registrations, brokers, unread)

    def check_known(self, option: str, brokers: Collection[int]) -> None:
        """Raises BrokerNotAvailableException for a broker that has not registered and holds no replica."""
        known = self.brokers.keys() | {broker for r in self.registrations.values() for broker in r.replicas}
        unknown = sorted(set(brokers) - known)
        if unknown:
            raise BrokerNotAvailableException(
                f"{option}: broker {unknown[0]} has not registered; there are: {_list(known)}"
            )


def _sizes(
    cluster: Cluster, found: Mapping[TopicPartition, PartitionRegistration], seen: Mapping[int, SeenBroker]
) -> tuple[dict[TopicPartition, int], dict[int, str]]:
    """The bytes of each partition on its leader, or else on the broker with the most."""

    def read(broker: int) -> Mapping[TopicIdPartition, int] | str:
        try:
            root = cluster.storage_of(broker, seen[broker].registration.root)
            check_identity(root, cluster.cluster_id, broker)
            return LogSizes(root).refresh().sizes
        except LakelogException as error:
            return f"{error.name}: {error}"

    brokers = [broker for broker, each in seen.items() if each.state not in SILENT]
    answers = dict(zip(brokers, in_threads(read, brokers, _READS_AT_ONCE), strict=True))
    logs = {broker: log for broker, log in answers.items() if not isinstance(log, str)}
    sizes = dict[TopicPartition, int]()
    for partition, r in found.items():
        of = {b: logs[b][r.topic_id_partition] for b in r.replicas if b in logs and r.topic_id_partition in logs[b]}
        if of or r.leader in logs:
            sizes[partition] = of.get(r.leader, max(of.values(), default=0))
    return sizes, {broker: log for broker, log in answers.items() if isinstance(log, str)}


class PlannedMoves(NamedTuple):
    """A plan, and the state from which it was made. `leaving`: the brokers that are drained or replaced.
    `chooses_brokers`: whether the plan has chosen brokers by their racks. Only a replacement has not."""

    inputs: MoveInputs
    plan: Plan
    leaving: frozenset[int] = frozenset()
    chooses_brokers: bool = True

    def rows(self) -> list[Row]:
        """A row for each partition of the plan, with the bytes that are copied."""
        return [
            {
                "partition": f"{topic}-{number}",
                "from": list(self.inputs.layout.replicas[topic, number]),
                "to": list(replicas),
                "bytes": self._copied(topic, number),
            }
            for (topic, number), replicas in self.plan.items()
        ]

    def _copied(self, topic: str, number: int) -> int:
        came = set(self.plan[topic, number]) - set(self.inputs.layout.replicas[topic, number])
        return len(came) * self.inputs.layout.sizes.get((topic, number), 0)

    def broker_rows(self) -> list[Row]:
        """A row for each broker: its replicas, preferred leaders and bytes before and after."""
        layout = self.inputs.layout
        before, after = _totals(layout, layout.replicas), _totals(layout, {**layout.replicas, **self.plan})
        return [
            {"broker": broker, **{f"{name}_{when}": of[name][broker] for name in before for when, of in
                                  (("before", before), ("after", after))}}
            for broker in sorted(self.inputs.brokers.keys() | before["replicas"].keys())
        ]  # fmt: skip

    @property
    def replicas_moved(self) -> int:
        """How many replicas are copied."""
        return sum(len(came) for _, came in self.inputs.layout.moved(self.plan).values())

    @property
    def bytes_copied(self) -> int:
        """How many bytes are copied, as far as sizes are known."""
        return sum(self._copied(*partition) for partition in self.plan)

    def busiest(self) -> tuple[int, str]:
        """The most bytes that one broker sends or receives, and which one does."""
        sent, received, sizes = Counter[int](), Counter[int](), self.inputs.layout.sizes
        for partition, (_, came) in self.inputs.layout.moved(self.plan).items():
            received.update(dict.fromkeys(came, sizes.get(partition, 0)))
            sent[self.inputs.registrations[partition].leader] += len(came) * sizes.get(partition, 0)
        ways = [(count, f"broker {broker} {does}") for of, does in ((received, "receives"), (sent, "sends"))
                for broker, count in sorted(of.items())]  # fmt: skip
        return max(ways, key=lambda way: way[0], default=(0, "no broker receives"))

    def summary(self, rate: int | None) -> list[str]:
        """Sentences about the moves, and their duration at a throttle of `rate` bytes a second for each broker."""
        if not self.plan:
            return ["Nothing has to move."]
        moved, front = self.replicas_moved, sum(not came for _, came in self.inputs.layout.moved(self.plan).values())
        what = f"{_count(moved, 'replica')} of {_count(len(self.plan), 'partition')}"
        lines = [f"{what} move{'s' if moved == 1 else ''}, {self.bytes_copied} bytes to copy."]
        if front:
            lines.append(f"{_count(front, 'partition')} get{'s' if front == 1 else ''} another preferred leader alone.")
        if rate is not None:
            most, who = self.busiest()
            lines.append(f"At {rate} B/s a broker, the copies take {ago(most / rate)} or more: {who} {most} bytes.")
        return lines

    def notes(self) -> list[str]:
        """Warnings to an operator before the moves begin."""
        inputs, found = self.inputs, list[str]()
        fewer = inputs.layout.on_fewer_racks(self.plan)
        if fewer:
            why = (
                "no broker is left on another one" if self.chooses_brokers else "the new broker is on a rack of theirs"
            )
            found.append(f"on fewer racks than before, as {why}: {_names(fewer)}")
        unknown = [partition for partition in self.plan if partition not in inputs.layout.sizes]
        if unknown:
            found.append(f"sizes that are not known count as 0: {_names(unknown)}")
        found += [f"the log of broker {b} cannot be read: {why}" for b, why in inputs.unread.items()]
        for broker in sorted(self.leaving & inputs.layout.open):
            found.append(f"broker {broker} is not cordoned: `configs --add-config {CORDONED_LOG_DIRS}=*` keeps new "
                         "replicas away from it")  # fmt: skip
        if not self.leaving:
            left_out = sorted(inputs.brokers.keys() - inputs.layout.open)
            found += [f"broker {b} is {self._why_left_out(b)}, so it is left out" for b in left_out]
        return found

    def _why_left_out(self, broker: int) -> str:
        state = self.inputs.brokers[broker].state
        return "cordoned" if state == ALIVE else state

    def as_object(self, rate: int | None) -> dict[str, object]:
        """All of it, for programs."""
        layout = self.inputs.layout
        return {
            "moves": self.rows(),
            "brokers": self.broker_rows(),
            "replicas": self.replicas_moved,
            "bytes": self.bytes_copied,
            "seconds": None if rate is None else round(self.busiest()[0] / rate, 1),
            "notes": self.notes(),
            "current": reassignments({partition: layout.replicas[partition] for partition in self.plan}),
            "proposed": reassignments(self.plan),
        }


def planned_drain(inputs: MoveInputs, brokers: Sequence[int]) -> PlannedMoves:
    """Moves all replicas off some brokers. Raises LakelogException if that cannot be, with the reason."""
    inputs.check_known("--drain", brokers)
    return _checked(PlannedMoves(inputs, drain(inputs.layout, brokers), frozenset(brokers)))


def planned_rebalance(inputs: MoveInputs) -> PlannedMoves:
    """Makes the brokers that are alive and not cordoned even. Raises LakelogException if that cannot be."""
    if not inputs.layout.open:
        raise BrokerNotAvailableException("--rebalance: no broker is alive and not cordoned")
    _check_none_moves(inputs, inputs.registrations)
    return _checked(PlannedMoves(inputs, rebalance(inputs.layout)))


def planned_replacement(inputs: MoveInputs, old: int, new: int) -> PlannedMoves:
    """Gives the replicas of one broker to another one. Raises LakelogException if that cannot be."""
    inputs.check_known("--replace", (old, new))
    if new not in inputs.brokers:
        raise BrokerNotAvailableException(
            f"--replace: broker {new} has not registered; there are: {_list(inputs.brokers)}"
        )
    try:
        plan = replace_broker(inputs.layout, old, new)
    except InvalidReplicaAssignmentException as error:
        raise InvalidReplicaAssignmentException(f"--replace {old}={new}: {error}") from error
    return _checked(PlannedMoves(inputs, plan, frozenset({old}), chooses_brokers=False))


def _checked(moves: PlannedMoves) -> PlannedMoves:
    """Raises InvalidRequestException for a partition that moves already, LeaderNotAvailableException for one that has
    no leader to copy from."""
    found = moves.inputs.registrations
    _check_none_moves(moves.inputs, moves.plan)
    offline = [partition for partition in moves.plan if found[partition].leader < 0]
    if offline:
        last = {broker for partition in offline for broker in found[partition].isr}
        raise LeaderNotAvailableException(
            f"no leader, so nobody can copy {_names(offline)}: start {name_brokers(last)}, last in sync, or elect "
            "another replica by `leader-election --election-type unclean`, which loses records"
        )
    return moves


def _check_none_moves(inputs: MoveInputs, partitions: Collection[TopicPartition]) -> None:
    moving = [partition for partition in partitions if is_reassigning(inputs.registrations[partition])]
    if moving:
        raise InvalidRequestException(
            f"a reassignment of {_names(moving)} is under way: plan again once `reassign-partitions --list` has none, "
            "or cancel it"
        )


def _totals(layout: Layout, replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Counter[int]]:
    totals = {"replicas": Counter[int](), "preferred_leaders": Counter[int](), "bytes": Counter[int]()}
    for partition, brokers in replicas.items():
        totals["replicas"].update(brokers)
        totals["preferred_leaders"][brokers[0]] += 1
        totals["bytes"].update(dict.fromkeys(brokers, layout.sizes.get(partition, 0)))
    return totals


def _names(partitions: Sequence[TopicPartition]) -> str:
    return first_names([f"{topic}-{number}" for topic, number in partitions], _SHOWN)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _list(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"
