"""Copies a range of a topic into another topic, of the same cluster or of another one.

Keys, values, headers, timestamps and the order within a partition stay. It copies up to the high watermark that it
finds when it begins. Called again with the same options, it goes on where it has stopped, also after a crash, and
writes no record twice.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.cli.console import INTERRUPTED, OK, Report, Row, run, say
from lakelog.jobs.cli.options import FORMS, add_command_config, add_dry_run, add_output
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import properties_file, settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import until_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.record_copy import KEY, SAME, CopyTarget, RecordCopy, copy_name
from lakelog.jobs.console.record_range import RecordRange, add_range, range_of, with_keys
from lakelog.replication.clients.offset_lookup import EARLIEST
from lakelog.replication.clients.record_limit import record_sizes
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidRequestException, ProducerFencedException
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.replication.storage.cluster import Cluster

_WAIT_MS = 500
_BATCH_BYTES = 32 * 1024 * 1024


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
