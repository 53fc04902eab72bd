"""What must hold after calm: nothing that was acknowledged is lost, nothing is there twice, all replicas are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from replication.protocol.record_batch import TopicIdPartition
from replication.storage.replica_table import ReplicaTable
from tests.faults.actors import PARTITIONS, Node
from tests.faults.rates import drawn
from tests.faults.world import TOPIC_ID, World

STEPS = 30


def run(folder: Path | str, seed: int, steps: int = STEPS, break_rule: Sequence[tuple[str, object]] = ()) -> World:
    """A world under one seed: a storm, calm, and the check. Raises AssertionError. `break_rule`: what the shipped code
    is to be replaced by, as (where, what)."""
    with pytest.MonkeyPatch.context() as patch:
        for where, what in break_rule:
            patch.setattr(where, what)
        world = World(folder, seed, patch, drawn(seed))
        world.storm(steps)
        world.calm()
        check(world)
        return world


def check(world: World) -> None:
    """Raises AssertionError, which says what is wrong."""
    faults = [fault for node in world.nodes.values() for fault in _of_compaction(node)]
    faults += [fault for number in range(PARTITIONS) for fault in _faults(world, TopicIdPartition(TOPIC_ID, number))]
    assert not faults, "; ".join(faults)


def _of_compaction(node: Node) -> list[str]:
    """It comes to rest."""
    assert node.broker is not None
    assert node.broker.session is not None
    maintenance = node.broker.session._maintenance
    for _ in range(3):
        before = maintenance._log.refresh().version
        maintenance._compact()
        if maintenance._log.refresh().version == before:
            return []
    return [f"{node.name}: compaction goes on for ever"]


def _faults(world: World, partition: TopicIdPartition) -> list[str]:
    logs, leader = world.logs(), world.partitions()[partition].leader
    high_watermark = ReplicaTable.open(world.nodes[leader].root).replicas[partition].high_watermark
    read = {number: log.read(partition, 0, high_watermark) for number, log in logs.items()}
    values = [value.rstrip(b".").decode() for value in read[leader]["value"].to_pylist()]
    faults = _of_records(world, partition.partition, values)
    if len({log.current().partition(partition).log_end for log in logs.values()}) != 1:
        faults.append(f"partition {partition.partition}: the chains of the replicas differ")
    if not all(table.equals(read[leader]) for table in read.values()):
        faults.append(f"partition {partition.partition}: the rows of the replicas differ")
    return faults


def _of_records(world: World, partition: int, values: Sequence[str]) -> list[str]:
    at: Mapping[str, int] = {value: offset for offset, value in enumerate(values)}
    sent = {c.name: [s for s in c.sent if s.partition == partition] for c in world.clients}
    faults = [f"{partition}: {value} is there {n} times" for value, n in Counter(values).items() if n > 1]
    for batches in sent.values():
        wanted = [v.rstrip(b".").decode() for s in batches if s.is_acknowledged for v in s.values]
        lost = [value for value in wanted if value not in at]
        faults += [f"partition {partition}: acknowledged and lost: {', '.join(lost)}"] if lost else []
        offsets = [at[value] for value in wanted if value in at]
        faults += (
            [f"partition {partition}: not in the order of sending: {offsets}"] if offsets != sorted(offsets) else []
        )
    known = {v.rstrip(b".").decode() for batches in sent.values() for s in batches for v in s.values}
    faults += [f"partition {partition}: never sent: {value}" for value in values if value not in known]
    return faults
