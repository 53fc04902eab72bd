"""One history of the stack tier: a storm of events under a seed, then calm, then the check of the invariants."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.server.broker_server import BrokerSession
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.data_file_name import may_be_deleted
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.cluster_copy import read_copy
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import CLUSTER, METADATA, PRODUCERS, TOPICS
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.shrink import shorten
from lakelog.verification.simulation.stack.breaks import StackSabotage
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.rates import COPIED, Rates, drawn_with_roots
from lakelog.verification.simulation.stack.stack_cluster_roots import Operator
from lakelog.verification.simulation.stack.stack_processes import StackBroker
from lakelog.verification.simulation.stack.stack_producers import PARTITIONS, key_of
from lakelog.verification.simulation.stack.stack_world import TOPIC_ID, StackWorld
from lakelog.verification.simulation.stack.step_invariants import violation_of
from lakelog.verification.simulation.stack.voting_roots import VotingRoots

_RUNS = 100  # at most, to shrink a history
_FOR_DAYS = 4  # every fourth seed runs for days, until all unneeded files must be deleted
EVENTS = 30  # of a storm; other events may happen in the middle of each
EVENTS_WITH_ROOTS = 12  # with several cluster roots each takes about ten times as long
_DAYS = 1_400_000.0, 700_000.0, 700_000.0, 700_000.0  # seconds until files are old, seen as unneeded, and deleted
_ROUNDS = 12
_TRIES = 5  # of a send, if two replicas must be in sync


class StackHistory(NamedTuple):
    """A run and its result. `violation` is None if every invariant held. `faults` counts the faults by kind."""

    seed: int
    cluster_count: int
    events: tuple[int, ...]
    steps: int
    violation: Violation | None
    trace: tuple[str, ...]
    faults: Mapping[str, int]

    @property
    def about(self) -> str:
        """The events and the faults of the history, as text."""
        return f"events {', '.join(map(str, self.events)) or 'of a schedule'}; faults {dict(self.faults)}"


def shrink_stack(failed: StackHistory, sabotage: StackSabotage | None = None) -> StackHistory:
    """The shortest history found that still fails. Raises ValueError if the given one did not fail."""

    def again(events: Sequence[int]) -> Violation | None:
        return run(failed.seed, events, sabotage, failed.cluster_count).violation

    events = shorten(failed.events, failed.violation, again, _RUNS)
    return run(failed.seed, events, sabotage, failed.cluster_count)


def run(
    seed: int, events: Sequence[int] | None = None, sabotage: StackSabotage | None = None, cluster_count: int = 1
) -> StackHistory:
    """Runs a world under one seed: a storm, or the schedule of a sabotage, then calm, then the check. With several
    cluster roots it works without one of them in the end."""
    events = range(EVENTS if cluster_count == 1 else EVENTS_WITH_ROOTS) if events is None else events
    with _quiet(), Changes() as changes:
        if sabotage is not None:
            sabotage.apply(changes)
        schedule = sabotage.schedule if sabotage else None
        world, violation = None, None
        try:
            rates = drawn_with_roots(seed, cluster_count) if schedule is None else Rates(cluster_count=cluster_count)
            world = StackWorld(seed, changes, rates)
            if schedule is None:
                world.storm(events)
            else:
                world.calm()
                schedule(world)
            world.calm()
            check(world)
            with world.voting.without(world.voting.drawn()) if world.voting else nullcontext():
                check_that_it_goes_on(world)
            if world.voting:
                check_roots(world, world.voting)
            if schedule is None and seed % _FOR_DAYS == 0:
                check_files(world)
        except (Exception, Violation) as error:
            violation = violation_of(error).with_traceback(None)
        steps, trace = (world.faults.accesses, world.trace) if world else (0, [])
        faults = dict(world.faults.counts) if world else {}
        return StackHistory(
            seed, cluster_count, () if schedule else tuple(events), steps, violation, tuple(trace), faults
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Switches the logging of faults off, and seeds the random numbers that shipped code draws."""
    before, level = random.getstate(), logging.root.manager.disable
    random.seed(0)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        random.setstate(before)
        logging.disable(level)


def check(world: StackWorld) -> None:
    """Checks all invariants but that of `check_files`. Raises Violation, whose text is the fault."""
    for node in world.nodes.values():
        _check_compaction(node)
    _check_topics(world)
    for number in range(PARTITIONS):
        _check_partition(world, TopicIdPartition(TOPIC_ID, number))
    _check_copies(world)


def check_roots(world: StackWorld, voting: VotingRoots) -> None:
    """Each cluster root has its tables with all files, and with any one of them away the others have all that was
    answered. Raises Violation."""
    voting.mend()
    voting.ledger.check()
    expected = _state(world.cluster.root.uri)
    for uri in voting.uris:
        with voting.without(uri), world.acting(Operator()):
            found = _state(voting.uri)
        if found != expected:
            raise Violation("any_one_root_may_be_away", f"without {uri}: {found}, and with all of them {expected}")


def _state(uri: str) -> list[object]:
    cluster = Cluster.open(uri)
    found = [cluster.topics.snapshot(), cluster.metadata.snapshot(), cluster.producers.snapshot()]
    return [cluster.identity, *(rows for _, rows in found)]


def check_files(world: StackWorld) -> None:
    """Lets days pass. Raises Violation if a file is left that no version of its table needs.

    A file that was needed until lately may be old and stay: readers of the version before it have time to end.
    """
    needed_lately = set[str]()
    for number, seconds in enumerate(_DAYS):
        if number >= len(_DAYS) - 2:
            needed_lately |= {name for root in _tables(world) for name in _active(root)}
        world.clock.now += seconds
        for _ in range(_ROUNDS):
            world.go_on()
        for node in world.nodes.values():
            with world.acting(node):
                _session(node).maintenance.run_once()
    world.calm()
    for root in _tables(world):
        needed = _active(root) | needed_lately
        oldest = world.clock.wall() - sum(_DAYS)
        left = [n for n, t in root.modified().items() if n not in needed and t < oldest and may_be_deleted(n)]
        if left:
            raise Violation("no_orphan_outlives_its_delay", f"{root.uri}: {', '.join(left)}")


def _tables(world: StackWorld) -> list[StorageRoot]:
    folders = [uri for uri in list(world.store.folders) if uri.endswith("/_delta_log")]
    return [StorageRoot.of(uri.removesuffix("/_delta_log")) for uri in folders]


def _active(root: StorageRoot) -> set[str]:
    return {file.name for file in DeltaLog.open(root).active_files()}


def _session(node: StackBroker) -> BrokerSession:
    assert node.broker is not None
    assert node.broker.session is not None
    return node.broker.session


def _check_compaction(node: StackBroker) -> None:
    maintenance = _session(node).maintenance
    for _ in range(3):
        before = maintenance._log.refresh().version
        maintenance._compact()
        if maintenance._log.refresh().version == before:
            return
    raise Violation("compaction_comes_to_rest", f"{node.name}: compaction goes on for ever")


def _check_topics(world: StackWorld) -> None:
    world.cluster.topics.refresh()
    orphans = [r for r in world.partitions().values() if r.topic not in world.cluster.topics.topics]
    if orphans:
        raise Violation("partitions_have_a_topic", f"{orphans}")


def _check_copies(world: StackWorld) -> None:
    """Every broker's root has copies of the cluster's tables as they are now, after some seconds at most."""
    for _ in range(_ROUNDS):
        if not (late := _late_copies(world)):
            return
        world.go_on()
    raise Violation("copies_are_current", f"not in {', '.join(late)}")


def _late_copies(world: StackWorld) -> list[str]:
    cluster = Cluster.open(world.cluster.root.uri)
    now = {
        CLUSTER: [cluster.identity], TOPICS: cluster.topics.snapshot()[1], METADATA: cluster.metadata.snapshot()[1],
        PRODUCERS: cluster.producers.snapshot()[1],
    }  # fmt: skip
    copies = {node.root: read_copy(node.root) for node in world.nodes.values()}
    return [
        f"{root.uri}/{table.name}"
        for root, copy in copies.items()
        for table, rows in now.items()
        if table.name not in copy or (copy[table.name].rows, copy[table.name].source.uri) != (rows, cluster.uri)
    ]


def _check_partition(world: StackWorld, partition: TopicIdPartition) -> None:
    logs, leader = world.logs(), world.partitions()[partition].leader
    high_watermark = ReplicaTable.open(world.nodes[leader].root).replicas[partition].high_watermark
    read = {number: log.read(partition, 0, high_watermark) for number, log in logs.items()}
    _check_records(world, partition.partition, _places(world, partition.partition, read[leader]))
    _check_high_watermarks(world, partition, logs[leader].current().partition(partition))
    ends = {log.current().partition(partition).log_end for log in logs.values()}
    are_equal = _have_equal_latest if world.rates.keys else pa.Table.equals
    if len(ends) != 1 or not all(are_equal(table, read[leader]) for table in read.values()):
        raise Violation("replicas_are_equal", f"partition {partition.partition}: {ends}")


def _places(world: StackWorld, partition: int, records: pa.Table) -> list[tuple[str, int]]:
    """The values of a partition's records with their offsets; also of acknowledged records that the log cleaner may
    have removed, because there is a later one of their key."""
    values = [value.rstrip(b".") for value in records["value"].to_pylist()]
    found = list(zip(values, records["offset"].to_pylist(), strict=True))
    keys = world.rates.keys
    newest = {key_of(value, keys): offset for value, offset in found} if keys else {}
    batches = [batch for client in world.clients for batch in client.sent if batch.partition == partition]
    for batch in batches if keys else ():
        first, last = (batch.answer.base_offset, batch.answer.last_offset) if batch.answer else (0, 0)
        for place, value in enumerate(batch.values):
            # Records of others may be in between: then only the first and the last offset are known.
            offset = last if place == len(batch.values) - 1 else first + place
            is_gone = value.rstrip(b".") not in values and offset < newest.get(key_of(value, keys), -1)
            if batch.is_acknowledged and is_gone:
                found.append((value.rstrip(b"."), offset))
    return [(value.decode(), offset) for value, offset in sorted(found, key=lambda each: each[1])]


def _have_equal_latest(records: pa.Table, others: pa.Table) -> bool:
    """Whether two replicas have the same newest record of each key, and the same record at each offset that both
    have. Each is cleaned at its own time."""
    first, second = ({row["offset"]: row for row in table.to_pylist()} for table in (records, others))
    newest = [{row["key"]: offset for offset, row in sorted(rows.items())} for rows in (first, second)]
    return newest[0] == newest[1] and all(first[offset] == second[offset] for offset in first.keys() & second.keys())


def _check_high_watermarks(world: StackWorld, partition: TopicIdPartition, log: PartitionLog) -> None:
    """The log has all records that readers may have seen."""
    published = [(hw, chain) for known, hw, chain in world.published_hws if known == partition]
    others = [f"up to {hw}" for hw, chain in sorted(published) if log.chain_at(hw) not in (chain, None)]
    beyond = [f"up to {hw}" for hw, _ in sorted(published) if hw > log.log_end_offset]
    _holds("what_is_committed_stays", partition.partition, [*others, *beyond])


def check_that_it_goes_on(world: StackWorld) -> None:
    """Sends records and checks again. Raises Violation, also if they cannot be sent.

    A producer that was copied may learn only now that another one has used its sequences. Then it takes a new identity
    for its next send. While it waits, so little happens that followers may leave the ISR for a moment, and a topic that
    needs two members takes no records.
    """
    client, each = world.clients[0], dict.fromkeys(range(PARTITIONS), 1)
    client.send_what_is_left()
    is_sent = client.send(each) or (COPIED in world.faults.counts and client.send(each))
    for _ in range(_TRIES if world.rates.min_isr > 1 else 0):
        if not is_sent:
            world.calm()
            is_sent = client.send(each)
    if not is_sent:
        raise Violation("the_cluster_heals", "nothing can be sent afterwards")
    world.calm()
    check(world)


def _check_records(world: StackWorld, partition: int, places: Sequence[tuple[str, int]]) -> None:
    at: Mapping[str, int] = dict(places)
    values = [value for value, _ in places]
    sent = {c.name: [s for s in c.sent if s.partition == partition] for c in world.clients}
    twice = [f"{value} is there {n} times" for value, n in Counter(values).items() if n > 1]
    _holds("nothing_is_there_twice", partition, twice)
    known = {v.rstrip(b".").decode() for batches in sent.values() for s in batches for v in s.values}
    _holds("nothing_is_there_that_was_not_sent", partition, [v for v in values if v not in known])
    for batches in sent.values():
        wanted = [v.rstrip(b".").decode() for s in batches if s.is_acknowledged for v in s.values]
        _holds("nothing_acknowledged_is_lost", partition, [value for value in wanted if value not in at])
        answers = [(s.answer, [at.get(v.rstrip(b".").decode()) for v in s.values]) for s in batches]
        elsewhere = [f"{a}: {found}" for a, found in answers if a and not a.error and not _is_there(a, found)]
        _holds("records_are_where_it_was_answered", partition, elsewhere)
        offsets = [at[value] for value in wanted if value in at]
        _holds("the_order_of_sending_is_kept", partition, offsets if offsets != sorted(offsets) else [])


def _is_there(answer: RecordMetadata, offsets: Sequence[int | None]) -> bool:
    """Compares first and last offset only, because records of others may be in between."""
    return (offsets[0], offsets[-1]) == (answer.base_offset, answer.last_offset)


def _holds(invariant: str, partition: int, faults: Sequence[object]) -> None:
    if faults:
        raise Violation(invariant, f"partition {partition}: {', '.join(map(str, faults))}")
