"""The arguments of `lakelog consumer-groups`."""

import argparse
import datetime as dt
import re
import time

from lakelog.jobs.admin.group_offset_file import OffsetFile, read_offset_file
from lakelog.jobs.admin.group_reset import TO_CURRENT, TO_EARLIEST, TO_LATEST, Rule, shift_by, to_offset, to_time
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number, whole_numbers
from lakelog.jobs.cli.options import TEXT, add_actions, add_dry_run

_HELP = {
    "list": "list the names of all groups",
    "describe": "show the offsets, the members or the state of groups",
    "reset-offsets": "set the offsets of a group without members; shows them, and needs --execute to set them",
    "delete": "delete groups without members",
    "delete-offsets": "delete the offsets that a group without members has committed for some topics",
}
_CHANGES = ("reset-offsets", "delete", "delete-offsets")
_SCOPED = ("describe", *_CHANGES)

GOES_WITH = {
    "group": _SCOPED,
    "all_groups": ("describe", "reset-offsets", "delete"),
    "topic": ("reset-offsets", "delete-offsets"),
    "all_topics": ("reset-offsets",),
    "offsets": ("describe",),
    "members": ("describe",),
    "state": ("describe",),
    "verbose": ("describe",),
    "execute": ("reset-offsets",),
    "export": ("reset-offsets",),
    "dry_run": _CHANGES,
}
NEEDS = {"delete-offsets": ["group", "topic"]}

_UNITS = ("days", "hours", "minutes", "seconds")
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


def add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions, the groups, and the options of each action."""
    actions = " | ".join(f"--{name}" for name in _HELP)
    parser.usage = f"%(prog)s [options]\n         ({actions})"
    add_actions(parser, _HELP)
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument("--group", action="append", metavar="NAME", help="name of the group; give it once for each")
    groups.add_argument("--all-groups", action="store_true", help="all groups; not with --delete-offsets")
    add_dry_run(parser)
    shown = parser.add_argument_group("with --describe, at most one of the first three").add_mutually_exclusive_group()
    shown.add_argument("--offsets", action="store_true", help="show the offsets of each partition; the default")
    shown.add_argument("--members", action="store_true", help="show the members and the number of their partitions")
    shown.add_argument("--state", action="store_true", help="show the state, the assignor and the number of members")
    parser.add_argument("--verbose", action="store_true", help="with --members: show the partitions of each member")
    _add_reset_arguments(parser)


def _add_reset_arguments(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_argument_group("with --reset-offsets, exactly one; --topic also with --delete-offsets")
    topics = scope.add_mutually_exclusive_group()
    topics.add_argument(
        "--topic", action="append", type=topic_partitions, metavar="NAME[:0,1]",
        help="topic, or some partitions of it; give it once for each topic",
    )  # fmt: skip
    topics.add_argument("--all-topics", action="store_true", help="all partitions that the group has committed")
    rules = parser.add_argument_group("with --reset-offsets, exactly one of these rules").add_mutually_exclusive_group()
    consts = {
        "earliest": (TO_EARLIEST, "to the log start"),
        "latest": (TO_LATEST, "to the high watermark"),
        "current": (TO_CURRENT, "to the committed offset; to the high watermark where there is none"),
    }
    for name, (rule, words) in consts.items():
        rules.add_argument(f"--to-{name}", dest="reset", action="store_const", const=rule, help=words)
    rules.add_argument(
        "--to-offset", dest="reset", type=lambda text: to_offset(whole_number(0, MAX_OFFSET)(text)), metavar="N",
        help="to this offset, or the nearest one that the log has",
    )  # fmt: skip
    rules.add_argument(
        "--shift-by", dest="reset", type=lambda text: shift_by(whole_number(-MAX_OFFSET, MAX_OFFSET)(text)),
        metavar="N", help="by so many records; a negative number goes back",
    )  # fmt: skip
    rules.add_argument(
        "--to-datetime", dest="reset", type=_datetime, metavar="TIME",
        help="to the first record since a time, such as 2025-01-31T12:00:00.000, in UTC unless it has a zone",
    )  # fmt: skip
    rules.add_argument(
        "--by-duration", dest="reset", type=_duration, metavar="PnDTnHnMnS",
        help="to the first record of the last hours or days, such as PT1H30M",
    )  # fmt: skip
    rules.add_argument(
        "--from-file", dest="reset", type=read_offset_file, metavar="FILE",
        help="to the offsets of a CSV file, as --export prints them; it names the partitions too",
    )  # fmt: skip
    parser.add_argument("--export", action="store_true", help="with --reset-offsets: print the offsets as CSV")
    parser.add_argument("--execute", action="store_true", help="with --reset-offsets: set the offsets")


def check_scope(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the process as one that was called wrongly if groups, topics or a rule are missing, or contradict."""
    if args.action in _SCOPED and not (args.group or args.all_groups):
        parser.error(f"--{args.action} needs --group" + (" or --all-groups" if args.action != "delete-offsets" else ""))
    if args.verbose and not args.members:
        parser.error("--verbose goes with --members only")
    if args.reset and args.action != "reset-offsets":
        parser.error("a rule such as --to-earliest goes with --reset-offsets only")
    if args.action == "reset-offsets":
        _check_reset(parser, args)


def _check_reset(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    has_topics = args.topic or args.all_topics
    if isinstance(args.reset, OffsetFile) and has_topics:
        parser.error("--from-file names the partitions, so it does not go with --topic or --all-topics")
    if isinstance(args.reset, OffsetFile) and not args.reset.has_groups and len(set(args.group or ())) != 1:
        parser.error(f"{args.reset.path} names no groups, so it goes with one --group only")
    if not has_topics and not isinstance(args.reset, OffsetFile):
        parser.error("--reset-offsets needs --topic or --all-topics")
    if args.reset is None:
        parser.error("--reset-offsets needs a rule, such as --to-earliest")
    if args.execute and args.dry_run:
        parser.error("--execute does not go with --dry-run")
    if args.export and args.output != TEXT:
        parser.error("--export prints CSV, so it does not go with -o table or -o json")


def topic_partitions(text: str) -> tuple[str, list[int] | None]:
    """`orders`, or `orders:0,1` for some of its partitions."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME or NAME:0,1")
    return topic, whole_numbers(0)(numbers) if colon else None


def _datetime(text: str) -> Rule:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 2025-01-31T12:00:00.000") from None
    with_zone = found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    return to_time(int(with_zone.timestamp() * 1000))


def _duration(text: str) -> Rule:
    """Counts back from now, by the clock of this machine."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PnDTnHnMnS, such as PT1H30M")
    try:
        span = dt.timedelta(**{unit: float(found[unit] or 0) for unit in _UNITS})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than the time that there is") from None
    return to_time(int((time.time() - span.total_seconds()) * 1000))
