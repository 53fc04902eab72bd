"""Shows the batches of a broker's log, file by file, as kafka-dump-log.sh does. It reads files only, and needs no
running cluster. It names each broken file, and shows the others.
"""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.admin.log_files import InspectedFile, LogRows, Range, content_fault, gaps, log_files, read_rows
from lakelog.jobs.cli.console import FAILED, JSON, OK, TEXT, Lines, Report, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config, add_output
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of, root_uri
from lakelog.replication.errors import InconsistentClusterIdException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer
from lakelog.replication.storage.log.segment import rows_of
from lakelog.replication.storage.root_identity import CLUSTER_ROOT, read_identity
from lakelog.replication.storage.tables.broker_table import BrokerDirectory
from lakelog.schemas import LOG

Object = dict[str, Any]
_MICROSECONDS = 1000  # in a millisecond, which is what Kafka's tools count in

# Our names, and those that Kafka's tool prints, in the order of its lines.
_BATCH = {
    "base_offset": "baseOffset", "last_offset": "lastOffset", "count": "count", "base_sequence": "baseSequence",
    "last_sequence": "lastSequence", "producer_id": "producerId", "producer_epoch": "producerEpoch",
    "leader_epoch": "partitionLeaderEpoch", "max_timestamp": "CreateTime", "bytes": "size",
    "digest": "digest", "chain": "chain",
}  # fmt: skip
_RECORD = {
    "offset": "offset", "timestamp": "CreateTime", "key_size": "keySize", "value_size": "valueSize",
    "sequence": "sequence", "header_keys": "headerKeys", "key": "key", "value": "payload",
}  # fmt: skip
_PRODUCER = {
    "producer_id": "producerId", "producer_epoch": "producerEpoch", "last_timestamp": "lastTimestamp",
    "base_sequence": "firstSequence", "last_sequence": "lastSequence", "base_offset": "baseOffset",
}  # fmt: skip


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), dump, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("dump-log", __doc__)
    parser.add_argument(
        "--root", type=root_uri, required=True, metavar="URI",
        help="root of the broker, such as /lake/broker-1 or s3://bucket/b1",
    )  # fmt: skip
    parser.add_argument("--topic", metavar="NAME", help="show only batches of this topic; default: all topics")
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="show only this partition; default: all")
    parser.add_argument(
        "--offsets", type=_range, default=Range(), metavar="5:10",
        help="show only offsets from the first number to before the second; either may be left out",
    )  # fmt: skip
    parser.add_argument("--print-data-log", action="store_true", help="show the records of each batch too")
    parser.add_argument(
        "--verify", action="store_true",
        help="compare every file and every row of the log with the digests that were committed, and look for gaps "
        "between batches",
    )  # fmt: skip
    add_output(parser, (TEXT, JSON))
    add_command_config(parser, "credentials of the root")
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="read the credentials of this broker")
    return parser


def _range(text: str) -> Range:
    first, colon, end = text.partition(":")
    if not colon or any(part and not (part.isascii() and part.isdigit()) for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 5:10, 5: or :10")
    found = Range(int(first or 0), int(end) if end else None)
    if found.stop is not None and found.start >= found.stop:
        raise argparse.ArgumentTypeError(f"{text!r} shows nothing: the first number must be below the second")
    return found


def dump(args: argparse.Namespace) -> int:
    """Shows the files of a log; FAILED if anything is found to be broken."""
    config = settings(args.command_config)
    options = {} if args.broker_id is None else config.storage_options(args.broker_id)
    root = StorageRoot.of(args.root, options)
    log = root.child(LOG.name)
    try:
        files = log_files(log)
    except InconsistentClusterIdException:
        _check_is_of_a_broker(root)
        raise
    _check_asked(files, args)
    objects, broken = [], 0
    for found in _objects(log, files, args):
        if found["fault"]:
            broken += 1
            _say_broken(f"{log.path(found['file'])}: {found['fault']}")
        if args.output == TEXT:
            Lines(_lines(log, found)).show()
        else:
            objects.append(found)
    holes = _gaps(files) if args.verify else []
    if args.output != TEXT:
        Report(value={"root": args.root, "files": objects, "gaps": holes}).show(args.output)
    if args.verify:
        say(f"files: {len(files)}, broken: {broken}, gaps between batches: {len(holes)}")
    return FAILED if broken or holes else OK


def _check_is_of_a_broker(root: StorageRoot) -> None:
    """Raises InconsistentClusterIdException if the root is not a broker's; that of a cluster knows where those are."""
    if read_identity(root, None)["broker_id"] != CLUSTER_ROOT:
        return
    brokers = BrokerDirectory(root)
    brokers.refresh()
    roots = ", ".join(registration.root for registration in brokers.registrations.values()) or "none so far"
    raise InconsistentClusterIdException(
        f"{root.uri}: is the root of a cluster; give the root of one of its brokers: {roots}"
    )


def _check_asked(files: list[InspectedFile], args: argparse.Namespace) -> None:
    """Raises UnknownTopicOrPartitionException if the log has nothing of the topic or partition that was asked for; a
    file that cannot be read may have some."""
    if any(file.segment is None for file in files):
        return
    found = {(header.topic, header.partition) for file in files if file.segment for header in file.segment.headers}
    if args.topic is not None and args.topic not in {topic for topic, _ in found}:
        there = ", ".join(sorted({topic for topic, _ in found})) or "none"
        raise UnknownTopicOrPartitionException(f"{args.root}: no batches of topic {args.topic}; there are: {there}")
    numbers = {partition for topic, partition in found if args.topic in (None, topic)}
    if args.partition is not None and args.partition not in numbers:
        there = ", ".join(map(str, sorted(numbers))) or "none"
        raise UnknownTopicOrPartitionException(
            f"{args.root}: no batches of partition {args.partition}; there are: {there}"
        )


def _gaps(files: list[InspectedFile]) -> list[str]:
    """The gaps between offsets. If a file cannot be read there are none, because nobody knows its records."""
    segments = [file.segment for file in files if file.segment]
    if len(segments) < len(files):
        say("Gaps were not looked for: what the files hold that cannot be read is not known.")
        return []
    found = list(gaps(segments))
    for words in found:
        _say_broken(words)
    return found


def _say_broken(words: str) -> None:
    say(f"lakelog: CorruptRecordException: {words}")


def _objects(log: StorageRoot, files: list[InspectedFile], args: argparse.Namespace) -> Iterator[Object]:
    """The files that hold anything that was asked for, and those that are broken."""
    headers = [header for file in files if file.segment for header in file.segment.headers]
    topics = {header.topic_id_partition: header.topic for header in headers}
    for file in files:
        found = _object(log, file, args, topics)
        if found["batches"] or found["producers"] or found["fault"]:
            yield found


def _object(
    log: StorageRoot, file: InspectedFile, args: argparse.Namespace, topics: Mapping[TopicIdPartition, str]
) -> Object:
    if file.segment is None:
        return {"file": file.name, "bytes": None, "fault": file.fault, "batches": [], "producers": []}
    chosen = [header for header in file.segment.headers if _is_chosen(header, args)]
    is_read = args.verify or (args.print_data_log and chosen)
    rows = read_rows(log, file.segment) if is_read else LogRows(None, None)
    producers = [row for p in file.segment.producers for row in _producer_rows(p, topics.get(p.topic_id_partition))]
    return {
        "file": file.name,
        "bytes": file.segment.file.size,
        "fault": rows.fault or (content_fault(log, file.segment) if args.verify else None),
        "batches": [_batch_row(header, rows.records, args) for header in chosen],
        "producers": [row for row in producers if _is_of(row["topic"], row["partition"], args)],
    }


def _is_chosen(header: BatchHeader, args: argparse.Namespace) -> bool:
    start, stop = args.offsets.within(header)
    return start < stop and _is_of(header.topic, header.partition, args)


def _is_of(topic: str | None, partition: int, args: argparse.Namespace) -> bool:
    return args.topic in (None, topic) and args.partition in (None, partition)


def _batch_row(header: BatchHeader, records: pa.Table | None, args: argparse.Namespace) -> Object:
    row = {
        "topic": header.topic,
        "topic_id": header.topic_id,
        "partition": header.partition,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.retained.records,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": _sequence(header, header.last_offset),
        "max_timestamp": header.max_timestamp // _MICROSECONDS,
        "bytes": header.retained.bytes,
        "digest": header.digest,
        "chain": header.chain,
    }
    if args.print_data_log and records is not None:
        rows = rows_of(records, header.topic_id_partition, *args.offsets.within(header))
        row["records"] = [_record_row(header, record) for record in _in_milliseconds(rows).to_pylist()]
    return row


def _sequence(header: BatchHeader, offset: int) -> int:
    if header.producer_id == NO_PRODUCER_ID:
        return NO_SEQUENCE
    return increment_sequence(header.base_sequence, offset - header.base_offset)


def _in_milliseconds(records: pa.Table) -> pa.Table:
    times = pc.divide(pc.cast(records["timestamp"], pa.int64()), _MICROSECONDS)
    return records.set_column(records.schema.get_field_index("timestamp"), "timestamp", times)


def _record_row(header: BatchHeader, record: Object) -> Object:
    """Keys and values as text; what is none in them is shown by its escape. The size of null is Kafka's -1."""
    row = {
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "sequence": _sequence(header, record["offset"]),
        "header_keys": [pair["key"] for pair in record["headers"] or ()],
    }
    for name in ("key", "value"):
        content = record[name]
        row[f"{name}_size"] = -1 if content is None else len(content)
        row[name] = None if content is None else content.decode("utf-8", "backslashreplace")
    return row


def _producer_rows(remembered: RememberedProducer, topic: str | None) -> Iterator[Object]:
    """A row for each run of sequences that is remembered."""
    for found in remembered.entry.runs:
        yield {
            "topic": topic,
            "topic_id": remembered.topic_id_partition.topic_id,
            "partition": remembered.topic_id_partition.partition,
            "producer_id": remembered.producer_id,
            "producer_epoch": remembered.entry.producer_epoch,
            "last_timestamp": remembered.max_timestamp // _MICROSECONDS,
            **found._asdict(),
        }


def _lines(log: StorageRoot, found: Object) -> Iterator[str]:
    """As kafka-dump-log.sh prints it, with the partition first: a file holds many."""
    if found["batches"] or found["producers"]:
        yield f"Dumping {log.path(found['file'])}"
    for batch in found["batches"]:
        yield _line(batch, _BATCH)
        yield from ("| " + _words(record, _RECORD) for record in batch.get("records", ()))
    yield from (_line(producer, _PRODUCER) for producer in found["producers"])


def _line(row: Object, names: Mapping[str, str]) -> str:
    return f"partition: {row['topic'] or row['topic_id']}-{row['partition']} {_words(row, names)}"


def _words(row: Object, names: Mapping[str, str]) -> str:
    """The fields of a row as words. A null has none, as with Kafka: the key of a record without one, or a tombstone."""
    words = {name: f"[{','.join(v)}]" if isinstance(v, list) else v for name in names if (v := row[name]) is not None}
    return " ".join(f"{names[name]}: {value}" for name, value in words.items())
