"""Reads what the tasks of a sink have staged: the records of each topic by partition, in the order of the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from lakelog.replication.clients.record_set import PartitionedRecords
from lakelog.replication.clients.records import split
from lakelog.replication.clients.sink.routed_records import by_topic
from lakelog.replication.clients.sink.sink_stage import Part, SinkStage
from lakelog.replication.storage.log.new_batches import ArrowRecords, NewRecords


def staged_records(stage: SinkStage, parts: Sequence[Part]) -> Iterator[tuple[str, PartitionedRecords]]:
    """The records of each topic. Raises CorruptRecordException and KafkaStorageException."""
    found: dict[str, dict[int, list[NewRecords]]] = {}
    for is_encoded, run in groupby(parts, key=lambda part: bool(part.batches)):
        if is_encoded:
            for batch, records in (each for part in run for each in stage.read_batches(part)):
                found.setdefault(batch.topic, {}).setdefault(batch.partition, []).append(records)
        else:
            for topic, ours in by_topic(pa.concat_tables(stage.read_part(part) for part in run)):
                for partition, rows in split(ours.drop_columns(["partition"]), ours["partition"]).items():
                    found.setdefault(topic, {}).setdefault(partition, []).append(ArrowRecords(rows))
    for topic, by_partition in sorted(found.items()):
        yield topic, PartitionedRecords({number: _joined(given) for number, given in by_partition.items()})


def _joined(given: Sequence[NewRecords]) -> list[NewRecords]:
    """The records with neighbouring tables joined: many small tasks make one batch, whose header stays in memory."""
    found = list[NewRecords]()
    for each in given:
        last = found[-1] if found else None
        if isinstance(each, ArrowRecords) and isinstance(last, ArrowRecords):
            found[-1] = ArrowRecords(pa.concat_tables([last.table, each.table]))
        else:
            found.append(each)
    return found
