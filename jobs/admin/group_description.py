"""How `lakelog consumer-groups` prints groups. Kafka: `ConsumerGroupCommand.ConsumerGroupService`."""

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.group_lag import Lag
from lakelog.jobs.cli.console import OK, Row, say, show
from lakelog.jobs.cli.numbers import with_commas
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.consumer_group import ConsumerGroup, GroupMember
from lakelog.replication.protocol.partition_assignor import AssignedPartition

_LEAST_WIDTH = 15  # of a column, as in Kafka's tool
_HEADS = {"partitions": "#PARTITIONS", "members": "#MEMBERS"}


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
    if output != TEXT:
        show([_offset_row(row) for rows in groups.values() for row in rows], output)
        return
    for name, rows in groups.items():
        _say_empty(name, seen[name])
        _print([{key: value for key, value in _offset_row(row).items() if key != "error"} for row in rows])


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
    """The members of groups, and with --verbose what they own and what they are still to get."""
    rows = {name: [_member_row(name, member) for member in group.members] for name, group in groups.items()}
    if args.output != TEXT:
        show([row for of_group in rows.values() for row in of_group], args.output)
        return
    hidden = () if args.verbose else ("assignment", "not_yet_owned")
    for name, of_group in rows.items():
        _say_empty(name, groups[name])
        _print([{key: value for key, value in row.items() if key not in hidden} for row in of_group])


def _member_row(name: str, member: GroupMember) -> Row:
    return {
        "group": name,
        "consumer_id": member.member_id,
        "host": member.host,
        "client_id": member.client_id or None,
        "partitions": len(member.owned),
        "assignment": _assignment(member.owned),
        "not_yet_owned": _assignment(set(member.assigned) - set(member.owned)),
    }


def _assignment(partitions: Collection[AssignedPartition]) -> str | None:
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
    _print(rows) if output == TEXT else show(rows, output)


def show_reset(groups: Mapping[str, Mapping[TopicPartition, int]], output: str, dry_run: bool) -> None:
    """The new offsets of groups."""
    rows = [
        {"group": name, "topic": topic, "partition": number, "new_offset": offset}
        for name, offsets in groups.items()
        for (topic, number), offset in offsets.items()
    ]
    _print(rows) if output == TEXT else show([{**row, "dry_run": dry_run} for row in rows], output)


def show_deletions(rows: Sequence[Row], args: argparse.Namespace, words: str) -> int:
    """What was deleted: words where text is asked for."""
    if args.dry_run:
        say("Nothing was written. This is what would be deleted.")
    if args.output != TEXT:
        show([{**row, "dry_run": args.dry_run} for row in rows], args.output)
    elif args.dry_run:
        _print(rows)
    else:
        print(words, flush=True)
    return OK


def _say_empty(name: str, group: ConsumerGroup) -> None:
    if not group.members:
        say(f"Consumer group '{name}' has no active members.")


def _print(rows: Sequence[Row]) -> None:
    """As Kafka's tool prints tables: an empty line, then columns that are aligned to the left."""
    if not rows:
        return
    heads = [_HEADS.get(name, name.replace("_", "-").upper()) for name in rows[0]]
    lines = [heads, *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(_LEAST_WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
    print("\n" + "".join(f"{_aligned(line, widths)}\n" for line in lines), end="", flush=True)


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _text(value: object) -> str:
    """Kafka's tool prints a hyphen where there is nothing."""
    return "-" if value is None else str(value)
