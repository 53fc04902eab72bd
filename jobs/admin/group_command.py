"""What `lakelog consumer-groups` does. Kafka: `ConsumerGroupCommand`."""

import argparse
import time
from collections.abc import Callable, Collection, Iterable

from lakelog.jobs.admin.group_description import OffsetRow, show_deletions, show_described, show_reset
from lakelog.jobs.admin.group_lag import Lag, lag_of
from lakelog.jobs.cli.console import FAILED, OK, say, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.jobs.cli.settings import settings
from lakelog.replication.clients.led_partition import Answer, LedPartition, ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import GroupIdNotFoundException, LakelogException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.group_table import CommittedOffset


class _Groups:
    """The groups of a cluster, as a command sees them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
        self.cluster = self.view.cluster
        self.deadline = time.monotonic() + self.cluster.config.request_timeout_ms / 1000
        self._rows = self.cluster.groups.read()
        self.topics = {t.topic: t.topic_id for t in self.cluster.topics.topics.values() if not t.deleting}

    @property
    def names(self) -> list[str]:
        """All groups."""
        return sorted({row.group_id for row in self._rows})

    def chosen(self) -> list[str]:
        """The groups that the command is about. Raises GroupIdNotFoundException if one is not there."""
        for name in self.args.group or ():
            self.check_exists(name)
        return self.names if self.args.all_groups else list(dict.fromkeys(self.args.group))

    def check_exists(self, name: str) -> None:
        """Raises GroupIdNotFoundException."""
        if name not in self.names:
            raise GroupIdNotFoundException(f"no consumer group {name}; there are: {', '.join(self.names) or 'none'}")

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group, without those of topics that have been deleted or made again."""
        rows = (row for row in self._rows if row.group_id == group and self.topics.get(row.topic) == row.topic_id)
        return {(row.topic, row.partition): row.committed_offset for row in sorted(rows, key=lambda r: r[1:4])}

    def ask(
        self, partitions: Iterable[TopicPartition], ask: Callable[[LedPartition], Answer]
    ) -> dict[TopicPartition, Answer | LakelogException]:
        """The answer of each partition's leader, or its error."""
        wanted: dict[str, list[int]] = {}
        for topic, number in partitions:
            wanted.setdefault(topic, []).append(number)
        found = {t: ask_leaders(self.view, t, numbers, ask, self.deadline) for t, numbers in wanted.items()}
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


def _list(args: argparse.Namespace) -> int:
    names = _Groups(args).names
    if args.output == TEXT:
        print("".join(f"{name}\n" for name in names), end="")
    else:
        show([{"group": name} for name in names], args.output)
    return OK


def _describe(args: argparse.Namespace) -> int:
    """FAILED if the leader of a partition cannot say where the partition ends; the others are shown all the same."""
    groups = _Groups(args)
    rows = {name: _offsets(groups, name) for name in groups.chosen()}
    show_described(rows, args.output)
    failed = [row for of_group in rows.values() for row in of_group if row.error]
    for row in failed:
        say_refused(f"{row.topic}-{row.partition}", Outcome(row.error.name if row.error else None, str(row.error)))
    return FAILED if failed else OK


def _offsets(groups: _Groups, name: str) -> list[OffsetRow]:
    committed = groups.committed(name)

    def ask(led: LedPartition) -> Lag:
        registration = led.registration
        return lag_of(led, committed.get((registration.topic, registration.partition)))

    return [
        OffsetRow(name, *partition, committed.get(partition), error=found)
        if isinstance(found, LakelogException)
        else OffsetRow(name, *partition, committed.get(partition), found)
        for partition, found in groups.ask(committed, ask).items()
    ]


def _reset(args: argparse.Namespace) -> int:
    """All partitions of a group are set, or none: an error in one of them is raised."""
    groups = _Groups(args)
    given = groups.partitions(args.topic or ())
    found = {}
    for name in groups.names if args.all_groups else dict.fromkeys(args.group):
        committed = groups.committed(name)
        found[name] = _new_offsets(groups, given or list(committed), committed)
        if args.execute:
            rows = [CommittedOffset(name, t, groups.topics[t], number, o) for (t, number), o in found[name].items()]
            groups.cluster.groups.commit(rows, groups.deadline)
    if not args.execute:
        say("Nothing was written. This is what would be done; --execute does it.")
    show_reset(found, args.output, not args.execute)
    return OK


def _new_offsets(
    groups: _Groups, partitions: Collection[TopicPartition], committed: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    def ask(led: LedPartition) -> int:
        registration = led.registration
        offset: int = groups.args.reset(led, committed.get((registration.topic, registration.partition)))
        return offset

    offsets: dict[TopicPartition, int] = {}
    for partition, answer in groups.ask(partitions, ask).items():
        if isinstance(answer, LakelogException):
            raise answer
        offsets[partition] = answer
    return offsets


def _delete(args: argparse.Namespace) -> int:
    groups = _Groups(args)
    deleted = []
    for name in groups.chosen():
        if not args.dry_run:
            groups.cluster.groups.delete(name, None, groups.deadline)
        deleted.append({"group": name, "dry_run": args.dry_run})
    names = ", ".join(f"'{row['group']}'" for row in deleted)
    return show_deletions(deleted, args, f"Deletion of requested consumer groups ({names}) was successful.")


def _delete_offsets(args: argparse.Namespace) -> int:
    groups, deleted = _Groups(args), []
    for name in groups.chosen():
        partitions, committed = groups.partitions(args.topic), groups.committed(name)
        keys = [TopicIdPartition(groups.topics[topic], number) for topic, number in partitions]
        if not args.dry_run:
            groups.cluster.groups.delete(name, keys, groups.deadline)
        deleted += [
            {"group": name, "topic": p[0], "partition": p[1], "offset": committed.get(p), "dry_run": args.dry_run}
            for p in partitions
        ]
    names = ", ".join(args.group)
    return show_deletions(deleted, args, f"The offsets of {len(deleted)} partitions were deleted for group {names}.")


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list, "describe": _describe, "reset-offsets": _reset, "delete": _delete, "delete-offsets": _delete_offsets,
}  # fmt: skip
