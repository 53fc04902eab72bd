"""Makes the stages of streaming queries for a recovered cluster root: of the copies in the roots of the brokers, and of
what the recovered logs know of each query's producer.

Only the newest batch of a query counts, because it is staged after all earlier ones are committed:

- The logs have all its records: the new stage has the batch, marked as done. So the query goes on after it, under the
  next sequences.
- The logs have none: the query writes the batch anew. The new stage has the batch before it, without records and marked
  as done, with the sequences at which the newest batch begins.
- The logs have some: the new stage has the batch, not done. The query sends it again, and the logs take what they lack.
  Parts that were objects of the lost root are gone. If it has any, the query ends with an error that names one.

A log may have forgotten a producer, and then it seems to have none of its records. So a copied mark that the batch is
done counts more than the logs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.producer_state import records_between
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.staged_batch import (
    StagedBatch,
    batch_bytes,
    batch_name,
    batch_of,
    done_name,
    generation_of_stages,
    staged,
)

Logs = Mapping[tuple[str, int], PartitionLog]  # the log that leads a partition of a topic

logger = logging.getLogger(__name__)


class Written(StrEnum):
    """How many records of a batch the logs have."""

    ALL = "all"
    NONE = "none"
    SOME = "some"


class RecoveredStage(NamedTuple):
    """The stage of a query. `batch_id`: its newest batch. `written`: how many of its records the logs have. `lost`: the
    names of parts that are needed and gone. `objects`: the objects of the new cluster root, in the order of writing."""

    query_id: str
    batch_id: int
    written: Written
    lost: tuple[str, ...]
    objects: Mapping[str, bytes]


def recovered_stages(roots: Iterable[StorageRoot], logs: Logs) -> list[RecoveredStage]:
    """The stages of all queries of which the roots of brokers have copies. Raises KafkaStorageException."""
    found: dict[str, dict[int, list[StorageRoot]]] = defaultdict(lambda: defaultdict(list))
    for root in roots:
        for name in root.list():
            if (generation := generation_of_stages(name)) is not None:
                for query_id in root.child(name).list():
                    found[query_id][generation].append(root.child(name, query_id))
    stages = (_stage(query_id, by_generation, logs) for query_id, by_generation in sorted(found.items()))
    return [stage for stage in stages if stage is not None]


def _stage(query_id: str, copies: Mapping[int, Sequence[StorageRoot]], logs: Logs) -> RecoveredStage | None:
    """Makes the stage of a query from its copies by generation of the cluster root. The newest generation counts that
    has a batch or a mark: a driver of an older one wrote in vain."""
    for _, folders in sorted(copies.items(), reverse=True):
        found = [(folder, staged(folder.list())) for folder in folders]
        done = max((each.done for _, each in found), default=-1)
        for batch_id in sorted({done, *(each for _, marks in found for each in marks.batches)}, reverse=True):
            batch = _read(batch_id, [folder for folder, marks in found if batch_id in marks.batches])
            if batch is not None:
                return _recovered(query_id, batch, batch_id <= done, logs)
            if batch_id == done >= 0:  # its stage was freed
                return RecoveredStage(query_id, done, Written.ALL, (), {done_name(done): b""})
    return None


def _read(batch_id: int, folders: Sequence[StorageRoot]) -> StagedBatch | None:
    for folder in folders:
        try:
            return batch_of(folder.read(batch_name(batch_id)))
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:  # the query has gone on, or it is torn
            logger.warning("%s is passed over: %r", folder.path(batch_name(batch_id)), error)
    return None


def _recovered(query_id: str, batch: StagedBatch, is_done: bool, logs: Logs) -> RecoveredStage:
    written = Written.ALL if is_done else _written(batch, logs)
    lost = tuple(part.name for part in batch.parts if not part.content) if written is Written.SOME else ()
    last = _before(batch) if written is Written.NONE else batch
    objects = {batch_name(last.batch_id): batch_bytes(last)}
    if written is not Written.SOME:
        objects[done_name(last.batch_id)] = b""
    return RecoveredStage(query_id, batch.batch_id, written, lost, objects if last.batch_id >= 0 else {})


def _written(batch: StagedBatch, logs: Logs) -> Written:
    has_any, lacks_any = False, False
    for topic, bases in batch.bases.items():
        for partition, base in bases.items():
            log = logs.get((topic, partition))
            entry = log.producers.get(batch.producer_id) if log is not None else None
            reached = base if entry is None else entry.next_sequence
            has_any |= records_between(base, reached) > 0
            lacks_any |= records_between(reached, batch.following[topic][partition]) > 0
    return Written.SOME if has_any and lacks_any else Written.NONE if lacks_any else Written.ALL


def _before(batch: StagedBatch) -> StagedBatch:
    """The batch before one of which the logs have nothing: without records, but with the sequences that come next."""
    following = {topic: {**each, **batch.bases.get(topic, {})} for topic, each in batch.following.items()}
    origin = {number: (start, start) for number, (start, _) in batch.origin.items()}
    return StagedBatch(batch.batch_id - 1, batch.producer_id, (), {}, following, origin)
