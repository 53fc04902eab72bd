"""Deletes the records of partitions below an offset. The flags are those of kafka-delete-records.sh.

The command writes to the leaders' logs, and needs no controller.
"""

import argparse
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lakelog.jobs.cli.console import FAILED, OK, TEXT, Lines, Report, Row, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.options import add_dry_run, admin_client, admin_parser
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.partition_files import TopicPartition, read_offsets
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.protocol.log_retention import HIGH_WATERMARK, delete_records_offset, low_watermark
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _delete_records(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("delete-records", __doc__)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--offset-json-file", type=read_offsets, metavar="FILE",
        help='JSON, such as {"partitions": [{"topic": "t", "partition": 0, "offset": 10}]}',
    )  # fmt: skip
    whose.add_argument("--topic", metavar="NAME", help="name of the topic; goes with --partition and --before-offset")
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="number of the partition of --topic")
    parser.add_argument(
        "--before-offset", type=whole_number(HIGH_WATERMARK, MAX_OFFSET), metavar="O",
        help="first offset that is kept; -1: delete all committed records",
    )  # fmt: skip
    add_dry_run(parser)
    return parser


def _delete_records(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if len({value is None for value in (args.topic, args.partition, args.before_offset)}) > 1:
        parser.error("--topic, --partition and --before-offset go together")
    before = args.offset_json_file or {(args.topic, args.partition): args.before_offset}
    return (try_to_delete if args.dry_run else delete)(args, before)


class _Deletion(NamedTuple):
    """The outcome for one partition. `records`: how many would be deleted; None after an error or a deletion."""

    low_watermark: int | None
    records: int | None
    error: str | None
    message: str


def delete(args: argparse.Namespace, before: Mapping[TopicPartition, int]) -> int:
    """Deletes, and shows the low watermark of each partition, below which nothing is read any more, or its error."""
    say("Executing records delete operation")
    outcomes = admin_client(args, "delete-records").delete_records(before)
    say("Records delete operation completed:")
    return _show(args, {partition: _deleted(outcomes[partition]) for partition in sorted(outcomes)})


def try_to_delete(args: argparse.Namespace, before: Mapping[TopicPartition, int]) -> int:
    """Shows the present low watermarks, and how many records would be deleted."""
    view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
    say("Nothing was written. This is what would be done.")
    return _show(args, {partition: _tried(view, partition, before[partition]) for partition in sorted(before)})


def _deleted(outcome: int | LakelogException) -> _Deletion:
    if isinstance(outcome, LakelogException):
        return _Deletion(None, None, outcome.name, str(outcome))
    return _Deletion(outcome, None, None, f"nothing below {outcome} is read any more")


def _tried(view: TopicView, partition: TopicPartition, before_offset: int) -> _Deletion:
    try:
        return _would_delete(view, *partition, before_offset)
    except LakelogException as error:
        return _deleted(error)


def _would_delete(view: TopicView, topic: str, number: int, before_offset: int) -> _Deletion:
    """Raises what the deletion would raise."""
    name = f"{topic}-{number}"
    check_not_internal(topic, "delete-records")
    found = view.leaderships(topic, [number]).get(number)
    if found is None:
        raise UnknownTopicOrPartitionException(f"{name}: no such partition")
    led = PartitionReader(view).open(found)
    may_delete = view.config(topic).deletes
    epoch, high_watermark = led.registration.leader_epoch, led.high_watermark
    stop = delete_records_offset(led.log, epoch, high_watermark, before_offset, may_delete, name)
    start = led.log.log_start_offset
    message = f"{stop - start} records would be deleted, offsets {start} to {stop - 1}"
    reached = _low_watermark(view, led.registration.topic_id_partition, led.registration.replicas)
    return _Deletion(reached, stop - start, None, message if stop > start else "nothing would be deleted")


def _low_watermark(view: TopicView, partition: TopicIdPartition, replicas: Iterable[int]) -> int:
    """By what the live replicas say of themselves; Kafka's -1, unknown, if one has not said anything yet."""
    liveness = Liveness(view.cluster.config.broker_session_timeout_ms, time.monotonic)
    alive = liveness.observe(view.cluster.refresh_brokers())
    rows = [view.replicas(broker).get(partition) for broker in replicas if broker in alive]
    return low_watermark([row.log_start_offset if row else -1 for row in rows] or [-1])


def _show(args: argparse.Namespace, deletions: Mapping[TopicPartition, _Deletion]) -> int:
    """In Kafka's words where text is asked for. FAILED if any partition was refused."""
    refused = {f"{topic}-{number}": d for (topic, number), d in deletions.items() if d.error}
    lines = [_line(*item, args.dry_run) for item in deletions.items()]
    rows = [_row(*item, args.dry_run) for item in deletions.items()]
    Report(rows, text=[Lines(lines)]).show(args.output)
    for name, deletion in () if args.output == TEXT else refused.items():
        say_refused(name, Outcome(deletion.error, deletion.message))
    return FAILED if refused else OK


def _line(partition: TopicPartition, deletion: _Deletion, dry_run: bool) -> str:
    """As kafka-delete-records.sh prints it; a dry run has a column more."""
    name = f"partition: {partition[0]}-{partition[1]}"
    if deletion.error:
        return f"{name}\terror: {deletion.error}: {deletion.message}"
    more = f"\t{deletion.message}" if dry_run else ""
    return f"{name}\tlow_watermark: {deletion.low_watermark}{more}"


def _row(partition: TopicPartition, deletion: _Deletion, dry_run: bool) -> Row:
    return {"topic": partition[0], "partition": partition[1], **deletion._asdict(), "dry_run": dry_run}
