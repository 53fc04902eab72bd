"""Groups as a command sees them: offsets, members, and whether those are alive."""

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from lakelog.jobs.admin.heartbeats import Heartbeats, pulses
from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.clients.group_access import GroupAccess, check_empty
from lakelog.replication.clients.led_partition import Answer, LedPartition, ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import GroupIdNotFoundException, LakelogException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.topic import check_topic_id
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.member_table import MemberTable, folder_of, groups_with_tables

_LOOK_SECONDS = 0.2


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
            self._members[name] = GroupAccess(self.cluster, name).look()
        return self._members[name]

    def alive(
        self, names: Collection[str], wait: Callable[[float], None] = let_pass
    ) -> Mapping[str, ConsumerGroup]:  # fmt: skip
        """The groups as their members see them; without members if all are dead. Waits only if that may be so.

        One that is alive removes the dead ones, so that the newest heartbeat tells of all.
        """
        found = {name: self._members_of(name) for name in names}
        tables = {
            f"group {name}": Heartbeats(
                MemberTable.folder(self.cluster.root, folder_of(name)),
                max(member.session_timeout_ms for member in group.members) / 1000,
            )
            for name, group in found.items()
            if group.members
        }
        seen = pulses(tables, wait)
        dead = {name for name in found if f"group {name}" in seen and not seen[f"group {name}"].is_live}
        return {name: ConsumerGroup(g.generation) if name in dead else g for name, g in found.items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group, without those of topics that have been deleted or made again."""
        rows = (row for row in self._rows if row.group_id == group and self.topics.get(row.topic) == row.topic_id)
        return {(row.topic, row.partition): row.committed_offset for row in sorted(rows, key=lambda r: r[1:4])}

    def ask(
        self, partitions: Iterable[TopicPartition], ask: Callable[[LedPartition], Answer]
    ) -> dict[TopicPartition, Answer | LakelogException]:
        """The answer of each partition's leader, or its error. That is UnknownTopicIdException if the topic was made
        again since this view has read the topics: the group's offsets are of the old one."""

        def checked(led: LedPartition) -> Answer:
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

    def free(self, name: str, dry_run: bool, wait: Callable[[float], None] = let_pass) -> None:
        """Makes sure that a group has no live members, and removes dead ones unless it is a dry run.

        Watches their heartbeats until one moves, or all sessions are over. Raises GroupNotEmptyException.
        """
        access = GroupAccess(self.cluster, name)
        first = access.look().members
        if first:
            seconds = max(member.session_timeout_ms for member in first) / 1000
            say(f"Group {name} has {len(first)} members: looking for up to {seconds:g} s whether one is alive")
        while live := access.live():
            if {(m.member_id, m.heartbeat) for m in live} - {(m.member_id, m.heartbeat) for m in first}:
                check_empty(name, live)
            wait(_LOOK_SECONDS)
        if not dry_run:
            access.free()
