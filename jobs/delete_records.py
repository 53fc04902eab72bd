"""`lakelog delete-records`: deletes the records of partitions below an offset. The flags are those of
kafka-delete-records.sh. The leaders' logs are asked, so that no controller is needed. [DR-01, DR-02]
"""

import argparse

from lakelog.jobs.admin.delete_records_command import delete, try_to_delete
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import add_dry_run, admin_parser
from lakelog.jobs.cli.partition_files import read_offsets


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _delete_records(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("delete-records", __doc__)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--offset-json-file", type=read_offsets, metavar="FILE",
        help='{"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 10}]}',
    )  # fmt: skip
    whose.add_argument("--topic", metavar="NAME", help="with --partition and --before-offset")
    parser.add_argument("--partition", type=int, metavar="N", help="of --topic")
    parser.add_argument("--before-offset", type=int, metavar="O", help="the first that is kept; -1: the high watermark")
    add_dry_run(parser)
    return parser


def _delete_records(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if len({value is None for value in (args.topic, args.partition, args.before_offset)}) > 1:
        parser.error("--topic, --partition and --before-offset go together")
    before = args.offset_json_file or {(args.topic, args.partition): args.before_offset}
    return (try_to_delete if args.dry_run else delete)(args, before)
