"""The rows that a broker is about to publish. Only those are built anew whose inputs have changed. [HW-02]"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.replica_rows import replica_row, stray_row, with_faults
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.recent_changes import LogMark

Rows = Mapping[TopicIdPartition, Replica]
Value = TypeVar("Value")


class RowInputs(NamedTuple):
    """All that rows are built from, besides the log and the rows published last. `faults`: see `with_faults`.
    `strays`: the stray replicas among `hosted`."""

    hosted: Mapping[TopicIdPartition, HostedPartition]
    fetched: Mapping[TopicIdPartition, PartitionFetchState]
    faults: Mapping[TopicIdPartition, str]
    strays: Collection[TopicIdPartition] = ()


class PublishedRows:
    """The rows of one process of a broker. Only one thread at a time may call it."""

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._built: tuple[RowInputs, LogMark] | None = None
        self._published: tuple[RowInputs, LogMark, Rows] | None = None

    def build(self, inputs: RowInputs, state: LogState, published: Rows) -> list[Replica]:
        """The rows to publish over the rows `published`. Rows whose inputs are the same stay the same objects."""
        mark = LogMark.of(state)  # before the logs are read: what is appended meanwhile is looked at again
        changed, in_log = self._changed(inputs, mark, published)
        hosted, fetched = inputs.hosted, inputs.fetched
        fresh = (
            replica_row(
                self._broker_id, self._broker_epoch, hosted[p], state.known(p), fetched.get(p), published.get(p),
                mark.version,
            )
            for p in changed
        )  # fmt: skip
        shown = (stray_row(row) if row.topic_id_partition in inputs.strays else row for row in fresh)
        rows = {
            p: row for p, row in zip(changed, with_faults(shown, inputs.faults), strict=True)
            if p in in_log or p not in published or not row.tells_the_same(published[p])
        }  # fmt: skip
        self._built = inputs, mark
        in_place = published if published.keys() == hosted.keys() else hosted
        return [rows[p] if p in rows else published[p] for p in in_place]

    def have_landed(self, published: Rows) -> None:
        """The rows that were built last are the table's rows by now."""
        assert self._built is not None
        self._published = (*self._built, published)

    def _changed(
        self, inputs: RowInputs, mark: LogMark, published: Rows
    ) -> tuple[Collection[TopicIdPartition], Collection[TopicIdPartition]]:
        """The hosted partitions of which an input differs from those of the published rows, and those whose logs do;
        all if that is unknown."""
        if self._published is None:
            return inputs.hosted, inputs.hosted
        before, last_mark, rows = self._published
        in_log = last_mark.changed(mark)
        if in_log is None or rows is not published or before.faults or inputs.faults:
            return inputs.hosted, inputs.hosted
        moved = {*_moved(before.hosted, inputs.hosted), *_moved(before.fetched, inputs.fetched), *in_log}
        return sorted(moved & inputs.hosted.keys()), in_log


def all_may_wait(rows: Sequence[Replica], published: Rows) -> bool:
    """Whether no row tells more than the published ones that somebody waits for: see `PublishReplicas`."""
    pairs = zip(rows, published.values(), strict=False)
    return len(rows) == len(published) and all(row is old or row.may_wait_after(old) for row, old in pairs)


def _moved(before: Mapping[TopicIdPartition, Value], now: Mapping[TopicIdPartition, Value]) -> list[TopicIdPartition]:
    """The keys with another value object, or with a value in only one of the two."""
    gone = [p for p in before if p not in now]
    return [*gone, *(p for p, value in now.items() if before.get(p) is not value)]
