"""How `lakelog consumer-groups` prints groups. Kafka: `ConsumerGroupCommand.ConsumerGroupService.printOffsets`."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.group_lag import Lag
from lakelog.jobs.cli.console import OK, Row, say, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.errors import LakelogException

_LEAST_WIDTH = 15  # of a column, as in Kafka's tool


class OffsetRow(NamedTuple):
    """A partition of a group: the committed offset, the lag, or why it is not known."""

    group: str
    topic: str
    partition: int
    committed: int | None
    lag: Lag | None = None
    error: LakelogException | None = None


def show_described(groups: Mapping[str, Sequence[OffsetRow]], output: str) -> None:
    """The offsets of groups, with a table for each where text is asked for."""
    if output != TEXT:
        show([_row(row) for rows in groups.values() for row in rows], output)
        return
    for name, rows in groups.items():
        say(f"Consumer group '{name}' has no active members.")
        _print(list(map(_cells, rows)))


def _row(row: OffsetRow) -> Row:
    lag = row.lag
    return {
        "group": row.group,
        "topic": row.topic,
        "partition": row.partition,
        "current_offset": row.committed,
        "log_end_offset": lag.end_offset if lag else None,
        "lag": lag.records if lag else None,
        "consumer_id": None,
        "host": None,
        "client_id": None,
        "lag_ms": lag.ms if lag else None,
        "lag_bytes": lag.bytes if lag else None,
        "error": row.error.name if row.error else None,
    }


def _cells(row: OffsetRow) -> Row:
    """Kafka's columns, then our own; the error is said on stderr."""
    return {name: value for name, value in _row(row).items() if name != "error"}


def show_reset(groups: Mapping[str, Mapping[TopicPartition, int]], output: str, dry_run: bool) -> None:
    """The new offsets of groups."""
    rows = [
        {"group": name, "topic": topic, "partition": number, "new_offset": offset}
        for name, offsets in groups.items()
        for (topic, number), offset in offsets.items()
    ]
    if output == TEXT:
        _print(rows)
    else:
        show([{**row, "dry_run": dry_run} for row in rows], output)


def show_deletions(rows: Sequence[Row], args: argparse.Namespace, words: str) -> int:
    """What was deleted: words where text is asked for."""
    if args.dry_run:
        say("Nothing was written. This is what would be deleted.")
    if args.output != TEXT:
        show(rows, args.output)
    elif args.dry_run:
        _print([{name: value for name, value in row.items() if name != "dry_run"} for row in rows])
    else:
        print(words, flush=True)
    return OK


def _print(rows: Sequence[Row]) -> None:
    """As Kafka's tool prints tables: an empty line, then columns that are aligned to the left."""
    if not rows:
        return
    lines = [[name.replace("_", "-").upper() for name in rows[0]], *([_text(v) for v in r.values()] for r in rows)]
    widths = [max(_LEAST_WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
    print("\n" + "".join(f"{_aligned(line, widths)}\n" for line in lines), end="", flush=True)


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _text(value: object) -> str:
    """Kafka's tool prints a hyphen where there is nothing."""
    return "-" if value is None else str(value)
