"""Deletes the records of partitions below an offset. The flags are those of kafka-delete-records.sh.

The command writes to the leaders' logs, and needs no controller.
"""

import argparse

from lakelog.jobs.admin.delete_records_command import delete, try_to_delete
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.options import add_dry_run, admin_parser
from lakelog.jobs.cli.partition_files import read_offsets
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.protocol.log_retention import HIGH_WATERMARK


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
