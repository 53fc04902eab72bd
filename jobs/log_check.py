"""What the tables say at the end, whatever the producer believes: every row of every data file of every replica."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobs.number_producer import Acknowledged
from replication.clients.topic_view import TopicView
from replication.protocol.partition_registration import PartitionRegistration
from replication.storage.segment import read_records
from schemas import LOG

_PLACE = ("partition", "offset", "leader_epoch")
_ORDER = [("partition", "ascending"), ("offset", "ascending")]


class Findings(NamedTuple):
    """How many records there are, and what is wrong with them.

    A contradiction: two logs hold different records at one partition, offset and leader epoch. That must never be,
    also while replicas differ: the log matching property, on which every cut relies.
    """

    records: int
    lost: int
    duplicated: int
    offsets_missing_or_doubled: int
    contradictions: int
    replicas_identical: bool

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        faults = self.lost + self.duplicated + self.offsets_missing_or_doubled + self.contradictions
        return self.replicas_identical and not faults


def check_logs(view: TopicView, topic: str, acknowledged: Iterable[Acknowledged]) -> Findings:
    """Compares what was acknowledged with the leaders' logs below the high watermark, and the replicas with each other.

    For a topic whose partitions all have the same replicas, each record of which holds a number of its own.
    """
    partitions = view.partitions(topic)
    logs = {broker: _rows(view, broker, partitions[0].topic_id) for broker in partitions[0].replicas}
    led = [
        logs[registration.leader].filter(pc.equal(logs[registration.leader]["partition"], registration.partition))
        for registration in partitions.values()
    ]
    first, *others = logs.values()
    pairs = combinations(logs.values(), 2)
    return Findings(
        records=sum(rows.num_rows for rows in led),
        lost=_lost(led, _high_watermarks(view, partitions), acknowledged),
        duplicated=sum(times - 1 for times in Counter(pa.concat_tables(led)["value"].to_pylist()).values()),
        offsets_missing_or_doubled=sum(map(_bad_offsets, led)),
        contradictions=sum(_contradictions(one, other) for one, other in pairs),
        replicas_identical=all(rows.equals(first) for rows in others),
    )


def _rows(view: TopicView, broker: int, topic_id: str) -> pa.Table:
    """All that a broker has of the topic, read from the files of its log table and not by way of their headers."""
    log = view.log(broker)
    files = [read_records(log.root, name).cast(LOG.arrow) for name in log.refresh().segments]
    rows = pa.concat_tables([LOG.arrow.empty_table(), *files])
    return rows.filter(pc.equal(rows["topic_id"], topic_id)).sort_by(_ORDER).combine_chunks()


def _high_watermarks(view: TopicView, partitions: Mapping[int, PartitionRegistration]) -> dict[int, int]:
    return {p: view.replicas(r.leader)[r.topic_id_partition].high_watermark for p, r in partitions.items()}


def _lost(led: Iterable[pa.Table], high_watermarks: Mapping[int, int], acknowledged: Iterable[Acknowledged]) -> int:
    """Acknowledged records that do not stand committed at the very offset that the producer was told."""
    rows = pa.concat_tables(led).select(["partition", "offset", "value"]).to_pylist()
    committed = {
        (row["partition"], row["offset"]): row["value"]
        for row in rows
        if row["offset"] < high_watermarks[row["partition"]]
    }
    return sum(committed.get((a.partition, a.offset)) != str(a.number).encode() for a in acknowledged)


def _contradictions(one: pa.Table, other: pa.Table) -> int:
    """Places at which both logs have a record, of the same leader epoch, and not the same record."""
    if one.equals(other):
        return 0
    held = {tuple(row[name] for name in _PLACE): row for row in one.to_pylist()}
    places = ((held.get(tuple(row[name] for name in _PLACE)), row) for row in other.to_pylist())
    return sum(mine is not None and mine != row for mine, row in places)


def _bad_offsets(rows: pa.Table) -> int:
    """Offsets from 0 that are missing or there twice."""
    offsets = rows["offset"].to_pylist()
    distinct = set(offsets)
    return len(offsets) - len(distinct) + max(distinct, default=-1) + 1 - len(distinct)
