"""What `lakelog consumer-groups` does. Kafka: `ConsumerGroupCommand`."""

import argparse
from collections.abc import Callable, Collection, Mapping

from lakelog.jobs.admin.group_description import (
    OffsetRow,
    show_deletions,
    show_members,
    show_offsets,
    show_reset,
    show_states,
)
from lakelog.jobs.admin.group_lag import Lag, lag_of
from lakelog.jobs.admin.group_offset_file import OffsetFile, print_offsets
from lakelog.jobs.admin.group_reset import Rule
from lakelog.jobs.admin.group_view import GroupsView
from lakelog.jobs.cli.console import FAILED, OK, say, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.clients.led_partition import LedPartition
from lakelog.replication.errors import InvalidRequestException, LakelogException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.group_table import CommittedOffset


def _list(args: argparse.Namespace) -> int:
    names = GroupsView(args).names
    if args.output == TEXT:
        print("".join(f"{name}\n" for name in names), end="")
    else:
        show([{"group": name} for name in names], args.output)
    return OK


def _describe(args: argparse.Namespace) -> int:
    """FAILED if the leader of a partition cannot say where the partition ends; the others are shown all the same."""
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

    def ask(led: LedPartition) -> Lag:
        registration = led.registration
        return lag_of(led, committed.get((registration.topic, registration.partition)))

    rows = []
    for partition, found in groups.ask(sorted({*committed, *owners}), ask).items():
        row = OffsetRow(name, *partition, committed.get(partition), owners.get(partition))
        rows.append(row._replace(error=found) if isinstance(found, LakelogException) else row._replace(lag=found))
    return rows


def _reset(args: argparse.Namespace) -> int:
    """All partitions of a group are set, or none: an error in one of them is raised."""
    groups = GroupsView(args)
    given = groups.partitions(args.topic or ())
    names = groups.names if args.all_groups else list(dict.fromkeys(args.group))
    if isinstance(args.reset, OffsetFile):
        for name in names:
            args.reset.of(name)  # a group that the file lacks is an error before another group is set
    found = {}
    for name in names:
        groups.free(name, not args.execute)
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
    def ask(led: LedPartition) -> int:
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
        groups.free(name, args.dry_run)
        if not args.dry_run:
            groups.cluster.groups.delete(name, None, groups.deadline)
    words = ", ".join(f"'{name}'" for name in names)
    rows = [{"group": name} for name in names]
    return show_deletions(rows, args, f"Deletion of requested consumer groups ({words}) was successful.")


def _delete_offsets(args: argparse.Namespace) -> int:
    groups, deleted = GroupsView(args), []
    partitions = groups.partitions(args.topic)
    for name in groups.chosen():
        groups.free(name, args.dry_run)
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
