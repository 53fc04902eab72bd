"""Lists and describes consumer groups, resets their offsets, or deletes them. The flags are those of
kafka-consumer-groups.sh.

A reset and a deletion are refused while a consumer that has subscribed is a member of the group. They need no
controller.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.group_offsets import (
    TO_CURRENT,
    TO_EARLIEST,
    TO_LATEST,
    Lag,
    OffsetFile,
    Rule,
    lag_of,
    print_offsets,
    read_offset_file,
    shift_by,
    to_offset,
    to_time,
)
from lakelog.jobs.admin.heartbeats import live_groups
from lakelog.jobs.cli.console import FAILED, OK, TEXT, Lines, Report, Row, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number, whole_numbers, with_commas
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_parser, check_options
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.times import before_now, timestamp
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.clients.group_access import GroupAccess, check_empty
from lakelog.replication.clients.partition_reader import Answer, OpenPartition, ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    GroupIdNotFoundException,
    InvalidRequestException,
    LakelogException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.consumer_group import ConsumerGroup, GroupMember
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import check_topic_id
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_tables import CommittedOffset, groups_with_tables

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

_LEAST_WIDTH = 15  # of a column, as in Kafka's tool
_VERBOSE = ("assignment", "not_yet_owned")  # columns of members
_HEADS = {"partitions": "#PARTITIONS", "members": "#MEMBERS"}

_POLL_SECONDS = 0.2


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: carry_out(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("consumer-groups", __doc__)
    add_group_arguments(parser)
    return parser


def carry_out(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Does what the arguments ask for, and returns the status."""
    check_options(parser, args, GOES_WITH, NEEDS)
    check_scope(parser, args)
    return ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    names = GroupsView(args).names
    Report([{"group": name} for name in names], text=[Lines(names)]).show(args.output)
    return OK


def _describe(args: argparse.Namespace) -> int:
    """Shows groups. Returns FAILED if the leader of a partition does not know its high watermark; the other partitions
    are shown all the same."""
    groups = GroupsView(args)
    seen = groups.alive(groups.chosen())
    if args.members:
        show_members(seen, args)
        return OK
    if args.state:
        show_states(seen, args.output)
        return OK
    rows = {name: _offsets(groups, name, group) for name, group in seen.items()}
    show_offsets(rows, seen, args.output)
    failed = [row for of_group in rows.values() for row in of_group if row.error]
    for row in failed:
        say_refused(f"{row.topic}-{row.partition}", Outcome(row.error.name if row.error else None, str(row.error)))
    return FAILED if failed else OK


def _offsets(groups: GroupsView, name: str, group: ConsumerGroup) -> list[OffsetRow]:
    """A row for each partition that the group has committed, or a member owns."""
    committed = groups.committed(name)
    owners = {
        (p.topic, p.partition): member
        for member in group.members
        for p in member.owned
        if groups.topics.get(p.topic) == p.topic_id
    }

    def ask(led: OpenPartition) -> Lag:
        registration = led.registration
        return lag_of(led, committed.get((registration.topic, registration.partition)))

    rows = []
    for partition, found in groups.ask(sorted({*committed, *owners}), ask).items():
        row = OffsetRow(name, *partition, committed.get(partition), owners.get(partition))
        rows.append(row._replace(error=found) if isinstance(found, LakelogException) else row._replace(lag=found))
    return rows


def _reset(args: argparse.Namespace) -> int:
    """Sets the offsets of all partitions of a group, or of none: it raises the error of any of them."""
    groups = GroupsView(args)
    given = groups.partitions(args.topic or ())
    names = groups.names if args.all_groups else list(dict.fromkeys(args.group))
    if isinstance(args.reset, OffsetFile):
        for name in names:
            args.reset.of(name)  # a group that the file lacks is an error before another group is set
    found = {}
    for name in names:
        groups.ensure_empty(name, not args.execute)
        committed = groups.committed(name)
        rule, partitions = args.reset, given or list(committed)
        if isinstance(rule, OffsetFile):
            partitions = groups.partitions([(topic, [number]) for topic, number in rule.of(name)])
            rule = rule.rule(name)
        elif not partitions and not args.all_groups:
            raise InvalidRequestException(f"group {name} has committed no offsets: name topics with --topic")
        found[name] = _new_offsets(groups, rule, partitions, committed)
        if args.execute:
            rows = [CommittedOffset(name, t, groups.topics[t], number, o) for (t, number), o in found[name].items()]
            groups.cluster.groups.commit(rows, groups.deadline)
    if not args.execute:
        say("Nothing was written. This is what would be done; --execute does it.")
    print_offsets(found) if args.export else show_reset(found, args.output, not args.execute)
    return OK


def _new_offsets(
    groups: GroupsView,
    rule: Rule,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    def ask(led: OpenPartition) -> int:
        registration = led.registration
        return rule(led, committed.get((registration.topic, registration.partition)))

    offsets: dict[TopicPartition, int] = {}
    for partition, answer in groups.ask(partitions, ask).items():
        if isinstance(answer, LakelogException):
            raise answer
        offsets[partition] = answer
    return offsets


def _delete(args: argparse.Namespace) -> int:
    groups = GroupsView(args)
    names = groups.chosen()
    for name in names:
        groups.ensure_empty(name, args.dry_run)
        if not args.dry_run:
            groups.cluster.groups.delete(name, None, groups.deadline)
    words = ", ".join(f"'{name}'" for name in names)
    rows = [{"group": name} for name in names]
    return show_deletions(rows, args, f"Deletion of requested consumer groups ({words}) was successful.")


def _delete_offsets(args: argparse.Namespace) -> int:
    groups, deleted = GroupsView(args), []
    partitions = groups.partitions(args.topic)
    for name in groups.chosen():
        groups.ensure_empty(name, args.dry_run)
        committed = groups.committed(name)
        if not args.dry_run:
            keys = [TopicIdPartition(groups.topics[topic], number) for topic, number in partitions]
            groups.cluster.groups.delete(name, keys, groups.deadline)
        deleted += [{"group": name, "topic": p[0], "partition": p[1], "offset": committed.get(p)} for p in partitions]
    words = f"The offsets of {len(deleted)} partitions were deleted for group {', '.join(args.group)}."
    return show_deletions(deleted, args, words)


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list, "describe": _describe, "reset-offsets": _reset, "delete": _delete, "delete-offsets": _delete_offsets,
}  # fmt: skip


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
    """Ends the process as after wrong usage if groups, topics or a rule are missing, or contradict each other."""
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
    return to_time(int(timestamp(text) * 1000))


def _duration(text: str) -> Rule:
    return to_time(int(before_now(text) * 1000))


class OffsetRow(NamedTuple):
    """A partition of a group: the committed offset, the member that owns it, and the lag, or why it is not known."""

    group: str
    topic: str
    partition: int
    committed: int | None
    owner: GroupMember | None
    lag: Lag | None = None
    error: LakelogException | None = None


def show_offsets(
    groups: Mapping[str, Sequence[OffsetRow]], seen: Mapping[str, ConsumerGroup], output: str
) -> None:  # fmt: skip
    """The offsets of groups, with a table for each where text is asked for."""
    found = {name: list(map(_offset_row, rows)) for name, rows in groups.items()}
    _show_groups(found, seen, output, hidden=("error",))


def _offset_row(row: OffsetRow) -> Row:
    """Kafka's columns, then our own."""
    lag, owner = row.lag, row.owner
    return {
        "group": row.group,
        "topic": row.topic,
        "partition": row.partition,
        "current_offset": row.committed,
        "log_end_offset": lag.end_offset if lag else None,
        "lag": lag.records if lag else None,
        "consumer_id": owner.member_id if owner else None,
        "host": owner.host if owner else None,
        "client_id": (owner.client_id or None) if owner else None,
        "lag_ms": lag.ms if lag else None,
        "lag_bytes": lag.bytes if lag else None,
        "error": row.error.name if row.error else None,
    }


def show_members(groups: Mapping[str, ConsumerGroup], args: argparse.Namespace) -> None:
    """The members of groups, and with --verbose what they own and what they are still to get. As in Kafka's tool, the
    text has their instance ids only if a member is static."""
    rows = {name: [_member_row(name, member) for member in group.members] for name, group in groups.items()}
    is_any_static = any(member.instance_id for group in groups.values() for member in group.members)
    hidden = {*(() if args.verbose else _VERBOSE), *(() if is_any_static else ("group_instance_id",))}
    _show_groups(rows, groups, args.output, hidden)


def _member_row(name: str, member: GroupMember) -> Row:
    return {
        "group": name,
        "consumer_id": member.member_id,
        "group_instance_id": member.instance_id,
        "host": member.host,
        "client_id": member.client_id or None,
        "partitions": len(member.owned),
        "assignment": assignment_text(member.owned),
        "not_yet_owned": assignment_text(set(member.assigned) - set(member.owned)),
    }


def assignment_text(partitions: Collection[AssignedPartition]) -> str | None:
    """As Kafka's tool prints it: `orders(0,1), payments(3)`."""
    topics = sorted({partition.topic for partition in partitions})
    return (
        ", ".join(f"{t}({with_commas(sorted(p.partition for p in partitions if p.topic == t))})" for t in topics)
        or None
    )


def show_states(groups: Mapping[str, ConsumerGroup], output: str) -> None:
    """One line for each group."""
    rows = [
        {
            "group": name,
            "assignment_strategy": group.assignor,
            "state": group.state,
            "generation": group.generation,
            "members": len(group.members),
        }
        for name, group in groups.items()
    ]
    Report(rows, text=[_table(rows)]).show(output)


def show_reset(groups: Mapping[str, Mapping[TopicPartition, int]], output: str, dry_run: bool) -> None:
    """The new offsets of groups."""
    rows = [
        {"group": name, "topic": topic, "partition": number, "new_offset": offset}
        for name, offsets in groups.items()
        for (topic, number), offset in offsets.items()
    ]
    Report([{**row, "dry_run": dry_run} for row in rows], text=[_table(rows)]).show(output)


def show_deletions(rows: Sequence[Row], args: argparse.Namespace, words: str) -> int:
    """Shows the rows that were deleted; as text only the sentence `words`."""
    if args.dry_run:
        say("Nothing was written. This is what would be deleted.")
    text = _table(rows) if args.dry_run else Lines([words])
    Report([{**row, "dry_run": args.dry_run} for row in rows], text=[text]).show(args.output)
    return OK


def _show_groups(
    rows: Mapping[str, Sequence[Row]], groups: Mapping[str, ConsumerGroup], output: str, hidden: Collection[str]
) -> None:
    """The rows of all groups; the text has a table for each group, without the columns that are hidden."""
    text = [
        _table(
            [{key: value for key, value in row.items() if key not in hidden} for row in of_group],
            "" if groups[name].members else f"Consumer group '{name}' has no active members.",
        )
        for name, of_group in rows.items()
    ]
    Report([row for of_group in rows.values() for row in of_group], text=text).show(output)


def _table(rows: Sequence[Row], title: str = "") -> Lines:
    """As Kafka's tool prints tables: an empty line, then columns that are aligned to the left."""
    if not rows:
        return Lines((), title)
    heads = [_HEADS.get(name, name.replace("_", "-").upper()) for name in rows[0]]
    lines = [heads, *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(_LEAST_WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
    return Lines(["", *(_aligned(line, widths) for line in lines)], title)


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _text(value: object) -> str:
    """Kafka's tool prints a hyphen where there is nothing."""
    return "-" if value is None else str(value)


class GroupsView:
    """The groups of a cluster. Raises InconsistentClusterIdException if there is no cluster."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
        self.cluster = self.view.cluster
        self.deadline = time.monotonic() + self.cluster.config.request_timeout_ms / 1000
        self.topics = {t.topic: t.topic_id for t in self.cluster.topics.topics.values() if not t.deleting}
        self._args = args
        self._rows = self.cluster.groups.read()
        self._members: dict[str, ConsumerGroup] = {}

    @property
    def names(self) -> list[str]:
        """All groups that have offsets or members."""
        with_offsets = {row.group_id for row in self._rows}
        tables = set(groups_with_tables(self.cluster.root)) - with_offsets
        return sorted(with_offsets | {name for name in tables if self._members_of(name).members})

    def chosen(self) -> list[str]:
        """The groups that the command is about. Raises GroupIdNotFoundException if one is not there."""
        names = self.names
        for name in self._args.group or ():
            if name not in names:
                raise GroupIdNotFoundException(f"no consumer group {name}; there are: {', '.join(names) or 'none'}")
        return names if self._args.all_groups else list(dict.fromkeys(self._args.group))

    def _members_of(self, name: str) -> ConsumerGroup:
        if name not in self._members:
            self._members[name] = GroupAccess(self.cluster, name).refresh()
        return self._members[name]

    def alive(
        self, names: Collection[str], wait: Callable[[float], None] = let_pass
    ) -> Mapping[str, ConsumerGroup]:  # fmt: skip
        """These groups, without members where all have died: see `live_groups`."""
        return live_groups(self.cluster, {name: self._members_of(name) for name in names}, wait)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group, without those of topics that have been deleted or made again."""
        rows = (row for row in self._rows if row.group_id == group and self.topics.get(row.topic) == row.topic_id)
        return {(row.topic, row.partition): row.committed_offset for row in sorted(rows, key=lambda r: r[1:4])}

    def ask(
        self, partitions: Iterable[TopicPartition], ask: Callable[[OpenPartition], Answer]
    ) -> dict[TopicPartition, Answer | LakelogException]:
        """The answer of each partition's leader, or its error. That is UnknownTopicIdException if the topic was made
        again since this view has read the topics: the group's offsets are of the old one."""

        def checked(led: OpenPartition) -> Answer:
            check_topic_id(led.registration, self.topics.get(led.registration.topic, ""))
            return ask(led)

        wanted: dict[str, list[int]] = {}
        for topic, number in partitions:
            wanted.setdefault(topic, []).append(number)
        found = {t: ask_leaders(self.view, t, numbers, checked, self.deadline) for t, numbers in wanted.items()}
        return {(topic, number): answer for topic, answers in found.items() for number, answer in answers.items()}

    def partitions(self, wanted: Collection[tuple[str, list[int] | None]]) -> list[TopicPartition]:
        """The partitions that the command line names. Raises UnknownTopicOrPartitionException."""
        found = []
        for topic, numbers in wanted:
            there = self.view.partitions(topic)
            for number in there if numbers is None else numbers:
                if number not in there:
                    raise UnknownTopicOrPartitionException(f"{topic}-{number}: {topic} has {len(there)} partitions")
                found.append((topic, number))
        return list(dict.fromkeys(found))

    def ensure_empty(self, name: str, dry_run: bool, wait: Callable[[float], None] = let_pass) -> None:
        """Makes sure that a group has no live members, and removes dead ones unless it is a dry run.

        Watches their heartbeats until one moves, or all sessions are over. Raises GroupNotEmptyException.
        """
        access = GroupAccess(self.cluster, name)
        first = access.refresh().members
        if first:
            seconds = max(member.session_timeout_ms for member in first) / 1000
            say(f"Group {name} has {len(first)} members: looking for up to {seconds:g} s whether one is alive")
        while live := access.live():
            if {(m.member_id, m.heartbeat) for m in live} - {(m.member_id, m.heartbeat) for m in first}:
                check_empty(name, live)
            wait(_POLL_SECONDS)
        if not dry_run:
            access.remove_dead_members()
