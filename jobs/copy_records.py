"""Copies a range of a topic into another topic, of the same cluster or of another one.

Keys, values, headers, timestamps and the order within a partition stay. It copies up to the high watermark that it
finds when it begins. Called again with the same options, it goes on where it has stopped, also after a crash, and
writes no record twice.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from lakelog.jobs.cli.console import INTERRUPTED, OK, Report, Row, run, say
from lakelog.jobs.cli.options import FORMS, add_command_config, add_dry_run, add_output
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import properties_file, settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import until_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.record_range import RecordRange, add_range, range_of, with_keys
from lakelog.replication.clients.offset_lookup import EARLIEST
from lakelog.replication.clients.partitioner import partition_of_keys
from lakelog.replication.clients.record_limit import record_sizes, refused_records
from lakelog.replication.clients.sink.batch_commit import SinkSender, commit_batch
from lakelog.replication.clients.sink.sink_options import ROUTED
from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.clients.sink.stage_copies import StageCopies
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidPartitionsException,
    InvalidRequestException,
    OutOfOrderSequenceException,
    ProducerFencedException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.staged_batch import Origin, Part, stages_of

_WAIT_MS = 500
_BATCH_BYTES = 32 * 1024 * 1024
SAME, KEY = "same", "key"
_TIMEOUT_MS = 120_000


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _copy_records(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("copy-records", __doc__)
    add_cluster(parser)
    add_command_config(parser, "credentials of the roots, and timeouts")
    parser.add_argument("--from-topic", required=True, metavar="NAME", help="name of the topic that is read")
    parser.add_argument("--to-topic", required=True, metavar="NAME", help="name of the topic that is written")
    parser.add_argument(
        "--to-cluster", metavar="URI", help="cluster of --to-topic, as --cluster; default: the same cluster"
    )
    parser.add_argument(
        "--to-command-config", type=properties_file, metavar="FILE",
        help="as --command-config, for --to-cluster; default: the same file",
    )  # fmt: skip
    add_range(parser)
    parser.add_argument(
        "--partitioner", choices=(SAME, KEY), default=SAME,
        help="same: a record keeps its partition; key: the partition of its key, as a producer chooses it; default: "
        "same",
    )  # fmt: skip
    parser.add_argument(
        "--copy-name", metavar="NAME",
        help="begin another copy of the same records, with a place of its own where it goes on; default: one copy",
    )  # fmt: skip
    add_dry_run(parser)
    add_output(parser, FORMS)
    return parser


def _copy_records(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.to_command_config is not None and args.to_cluster is None:
        parser.error("--to-command-config goes with --to-cluster only")
    check_not_internal(args.to_topic, "copy-records")
    config = settings(args.command_config)
    to_config = config if args.to_command_config is None else settings(args.to_command_config)
    view = TopicView(Cluster.open(args.cluster, config, reads_go_on=True))
    to_view = TopicView(Cluster.open(args.to_cluster or args.cluster, to_config))
    target = CopyTarget.of(to_view, args.to_topic, args.partitioner)
    whole = range_of(view, args.from_topic, args)
    _check_itself(view, whole, target, args)
    target.check(list(whole.partitions), args.from_topic)
    _say_differing_counts(view, target, args.from_topic)
    copy = RecordCopy(target, _name(view, whole, target, args))
    left = whole.begin_at(copy.positions())
    return _try(args, config, left) if args.dry_run else _copy(args, config, whole, copy)


def _check_itself(view: TopicView, whole: RecordRange, target: CopyTarget, args: argparse.Namespace) -> None:
    """A copy of a topic into itself must end before its own records, also when it is called again."""
    source = view.cluster.cluster_id, whole.topic_id
    if source != (target.view.cluster.cluster_id, target.topic_id):
        return
    least = min(each.high_watermark for each in whole.partitions.values())
    if args.before_offset is None or args.before_offset > least:
        raise InvalidRequestException(
            f"topic {args.from_topic} is to be copied into itself, and the copy would go on with its own records: give "
            f"--before-offset, at most {least}, the least high watermark of its partitions"
        )


def _say_differing_counts(view: TopicView, target: CopyTarget, source: str) -> None:
    ours, theirs = len(view.partitions(source)), len(target.partitions())
    if ours != theirs:
        say(f"lakelog: topic {source} has {ours} partitions, topic {target.topic} has {theirs}")


def _name(view: TopicView, whole: RecordRange, target: CopyTarget, args: argparse.Namespace) -> str:
    """Where the range ends is no part of it: with a later end the copy goes on."""
    since = None if args.since is None else args.since.text
    chosen = args.partitions and sorted(set(args.partitions)), args.offset, since, args.key and sorted(set(args.key))
    topics = view.cluster.cluster_id, whole.topic_id, target.topic_id
    return copy_name((*topics, *chosen, args.partitioner, args.copy_name))


class _Counts:
    """The records and bytes of each partition that were copied, or would be."""

    def __init__(self, within: RecordRange) -> None:
        self._within = within
        self._records, self._bytes = Counter[int](), Counter[int]()

    def add(self, tables: list[pa.Table]) -> None:
        """Counts these records, too. Each table has those of one partition."""
        for table in tables:
            number = table["partition"][0].as_py()
            self._records[number] += table.num_rows
            self._bytes[number] += pc.sum(record_sizes(table)).as_py()

    def estimate(self) -> None:
        """All records, by the headers of their batches."""
        for number, each in self._within.partitions.items():
            self._records[number], self._bytes[number] = each.records, each.bytes

    def show(self, args: argparse.Namespace) -> None:
        """Prints a row for each partition."""
        rows: list[Row] = [
            {
                "partition": number, "start_offset": each.offsets.start, "end_offset": each.offsets.stop,
                "records": self._records[number], "bytes": self._bytes[number],
            }
            for number, each in self._within.partitions.items()
        ]  # fmt: skip
        Report(rows, value=[{**row, "dry_run": args.dry_run} for row in rows]).show(args.output)


def _try(args: argparse.Namespace, config: Config, left: RecordRange) -> int:
    """Shows what would be copied. Only if it chooses keys are the records read."""
    counts = _Counts(left)
    if args.key is None:
        counts.estimate()
    elif _read(args, config, left, lambda tables, _: counts.add(tables)) != OK:
        return INTERRUPTED
    say("Nothing was written. This is what would be copied.")
    counts.show(args)
    return OK


def _copy(args: argparse.Namespace, config: Config, whole: RecordRange, copy: RecordCopy) -> int:
    """Copies what is left, and shows what this run has copied. INTERRUPTED after a signal: then it has ended between
    two batches."""
    begun = whole.begin_at(copy.positions())
    copy.finish()
    left = whole.begin_at(copy.positions())
    counts, finished = _Counts(left), begun.length - left.length
    if finished:
        say(f"lakelog: a batch of an earlier run, of {finished} offsets, was finished")
    kept, before = list[pa.Table](), {n: each.offsets.start for n, each in left.partitions.items()}

    def take(tables: list[pa.Table], reader: ConsoleReader) -> None:
        nonlocal before
        kept.extend(tables)
        if sum(table.nbytes for table in kept) < _BATCH_BYTES and not reader.is_done:
            return
        if kept:
            copy.put(kept, before, reader.positions)
            if (now := copy.positions()) != reader.positions:
                raise ProducerFencedException(
                    f"{copy.name}: another process runs this copy, and has copied up to {now}: let one of them go on"
                )
            counts.add(kept)
        before = dict(reader.positions)
        kept.clear()

    status = _read(args, config, left, take)
    counts.show(args)
    return status


def _read(
    args: argparse.Namespace, config: Config, within: RecordRange,
    take: Callable[[list[pa.Table], ConsoleReader], None],
) -> int:  # fmt: skip
    """Reads the range, with a bar, and hands over the records that it chooses, each table with those of one
    partition."""
    reader = ConsoleReader(args.cluster, config, args.from_topic, EARLIEST, within=within)
    with counting_bar(sys.stderr.isatty()) as progress, until_signalled() as is_told:
        task = progress.add_task("copying records", total=within.length)
        while not reader.is_done:
            if is_told():
                return INTERRUPTED
            read = reader.read(_WAIT_MS, sys.maxsize, _BATCH_BYTES)
            tables = [with_keys(table, args.key) for table in read]
            take([table for table in tables if table.num_rows], reader)
            left = within.begin_at(reader.positions).length
            progress.update(task, completed=within.length - left)
    return OK


class CopyTarget(NamedTuple):
    """The topic that records are copied into. `partitioner`: `SAME`, the partition that a record had; `KEY`, that of
    its key, as Kafka's producer chooses it. Then records without a key stay together: all records of a partition of the
    source go to one."""

    view: TopicView
    topic: str
    topic_id: str
    partitioner: str

    @classmethod
    def of(cls, view: TopicView, topic: str, partitioner: str) -> CopyTarget:
        """The topic that has the name now. Raises UnknownTopicOrPartitionException."""
        known = view.partitions(topic)
        return cls(view, topic, known[min(known)].topic_id, partitioner)

    def partitions(self) -> dict[int, PartitionRegistration]:
        """Its partitions now. Raises UnknownTopicOrPartitionException if it was deleted, and UnknownTopicIdException if
        it was made again."""
        known = self.view.partitions(self.topic)
        if known[min(known)].topic_id != self.topic_id:
            raise UnknownTopicIdException(f"topic {self.topic} was made again: call the command again to copy into it")
        return known

    def check(self, numbers: Sequence[int], source: str) -> None:
        """Raises InvalidPartitionsException if it lacks partitions of the source that keep their numbers."""
        known = self.partitions()
        lacking = [number for number in numbers if number not in known]
        if self.partitioner == SAME and lacking:
            raise InvalidPartitionsException(
                f"topic {self.topic} has {len(known)} partitions, and lacks partition {lacking[0]} of topic {source}: "
                "give --partitioner key, or choose others with --partitions"
            )

    def route(self, records: pa.Table) -> pa.Table:
        """The records of one partition of the source with the columns of `ROUTED`: each with its topic and partition.
        They keep their order."""
        numbers = records["partition"]
        if self.partitioner == KEY and records.num_rows:
            count = len(self.partitions())
            numbers = partition_of_keys(records["key"], count, numbers[0].as_py() % count)
        kept = {name: records[name] for name in ROUTED.names if name not in ("topic", "partition")}
        return pa.table({"topic": pa.repeat(self.topic, records.num_rows), "partition": numbers, **kept}).cast(ROUTED)


def copy_name(parts: Sequence[object]) -> str:
    """The name of a copy, which follows from what makes it this copy and no other one."""
    return f"copy-{blake3(repr(tuple(parts)).encode()).hexdigest(length=16)}"


class RecordCopy:
    """One copy, by its name. It writes each record once, however often it is stopped and called again.

    It goes on in batches, as a streaming query does: each batch is staged in the cluster root of the target, sent, and
    marked as done. A staged batch names its records, their sequences, and the offsets of the source that it covers. So
    one write decides both what is sent and where the copy goes on. After a crash the next run finishes the batch that
    is staged; the logs recognise the records of it that they have, by the sequences of the copy's producer.
    """

    def __init__(self, target: CopyTarget, name: str) -> None:
        cluster = target.view.cluster
        folder = stages_of(cluster.root, cluster.generation).child(name)
        self._target = target
        self._stage = SinkStage(folder, StageCopies(cluster, name))
        self._logs = SinkSender(target.view, self._stage, name, _TIMEOUT_MS)
        self._next_batch = 0
        self.name = name

    def positions(self) -> dict[int, int]:
        """The offset at which the copy goes on in each partition of the source; none before its first batch. Writes
        nothing: records of a batch that is staged and not done are still to be copied.

        Raises IllegalStateException if the copy was finished so long ago that its place is forgotten.
        """
        found = self._stage.read()
        self._next_batch = max((found.done, *found.batches)) + 1
        if not found.batches:
            if found.done >= 0:
                raise IllegalStateException(
                    f"{self.name} was unused for so long that its place is forgotten: begin another copy with "
                    "--copy-name, and with --offset where it is to begin"
                )
            return {}
        last = self._stage.read_batch(found.batches[-1])
        is_done = last.batch_id <= found.done
        return {number: stop if is_done else start for number, (start, stop) in last.origin.items()}

    def finish(self) -> None:
        """Finishes the batch that an earlier run has staged, if there is one."""
        found = self._stage.read()
        if found.batches and found.batches[-1] > found.done:
            self._commit(found.batches[-1], [], {})

    def put(self, tables: Sequence[pa.Table], before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Copies records. `tables`: those of the source between the offsets `before`, which were the `positions`, and
        the offsets `after` that are to be copied; each table has those of one partition.

        If another process runs the copy, its records may count in place of these: the `positions` afterwards tell it.
        Raises RecordTooLargeException, and InvalidRecordException for a record without a key that a compacted topic
        does not take, before anything is written. Raises OutOfOrderSequenceException if the logs of the target do not
        fit what the copy knows of them, ProducerFencedException if another process is ahead, and what `commit_batch`
        and `SinkSender` raise.
        """
        records = pa.concat_tables(self._target.route(table) for table in tables)
        for refused in refused_records(records, self._target.view.record_limit):
            refused.check(self._target.view.record_limit(refused.topic))
        origin = {number: (before[number], stop) for number, stop in after.items()}
        self._commit(self._next_batch, self._stage.put_parts(self._next_batch, records), origin)

    def _commit(self, batch_id: int, parts: Sequence[Part], origin: Origin) -> None:
        def check() -> None:
            self._target.partitions()

        try:
            commit_batch(self._stage, batch_id, parts, self._logs, check, origin)
        except OutOfOrderSequenceException as error:
            raise OutOfOrderSequenceException(
                f"{self.name}: the logs of topic {self._target.topic} do not have the records that this copy has "
                "written, or have more: the cluster root was restored, or an unclean election has cost records; begin "
                "another copy with --copy-name, and with --offset where it is to begin"
            ) from error
