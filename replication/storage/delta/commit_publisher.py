"""Publishes decided commits at all roots, and brings roots what they lack.

A commit that is decided is published by the process whose commit it is, or by one that reads it. A root that is away
then gets it later: from the home, which gets from the others what it lacks itself. Nothing here decides anything, so
two processes may publish one commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.quorum_slot import ProposedCommit, majority
from lakelog.replication.storage.delta.known_roots import KnownRoots
from lakelog.replication.storage.delta.quorum_member import QuorumMember, TableName
from lakelog.replication.storage.delta.root_requests import SOON_SECONDS, Answers, RootRequests

logger = logging.getLogger(__name__)

_AWAY_SECONDS = 5.0  # between two tries to bring roots what they lack


class CommitPublisher:
    """Publishes decided commits at the roots, for one process. Threads may share it. `voting`: the roots that vote on
    the next version of a table, as far as this process knows."""

    def __init__(self, known: KnownRoots, requests: RootRequests, voting: Callable[[TableName], Sequence[str]]) -> None:
        self._known = known
        self._requests = requests
        self._voting = voting
        self._lock = threading.Lock()
        self._missing: dict[str, set[TableName]] = {}  # by root: tables of which it lacks commits of this process
        self._brought_at = float("-inf")

    def publish(self, table: TableName, version: int, commit: ProposedCommit, waits: bool = True) -> Sequence[str]:
        """Publishes a decided commit at all roots, and waits for a majority, which the next version needs, and a second
        more for the home, where it is read. What this process reads or proposes later waits for that too, so the writer
        of a commit in an object store need not wait here. `waits`: it does. Returns the roots that are known to have it
        by now."""
        done = Answers()
        members = {
            root: member for root, member in self._known.members_of(commit.roots).items() if root in commit.roots
        }
        self._note_missing(table, set(commit.roots) - members.keys())
        self.bring_missing()
        for root, member in members.items():
            member.begin_publishing(table, version)
            has_begun = self._requests.begin(
                root, member, done, partial(self._publish, root, member, table, version, commit.content),
                partial(member.end_publishing, table, version),
            )  # fmt: skip
            if not has_begun:
                self._note_missing(table, [root])
        needed, home = majority(len(commit.roots)), next((r for r, m in members.items() if m is self._known.home), "")
        if not waits and not self._known.home.root.is_local:
            return []
        found = done.wait_for(
            lambda found: sum(map(bool, found.values())) >= needed, len(members), self._requests.timeout
        )
        if home and home not in found:  # it may hang
            found = done.wait_for(lambda found: home in found, len(members), SOON_SECONDS)
        return [root for root, is_published in found.items() if is_published]

    def publish_to_former(self, table: TableName, version: int, commit: ProposedCommit, former: Iterable[str]) -> None:
        """Publishes a commit that lets other roots vote at the `former` ones, which vote no longer, if they answer
        soon. Otherwise a process whose home is one of them would look elsewhere only after 30 s. Meanwhile it would
        write its signs of life where nobody reads them."""
        members = self._known.members
        identities = {members[root]: root for root in former if root in members}

        def publish(member: QuorumMember) -> bool:
            return member.is_still(identities[member]) and member.publish(table, version, commit.content)

        self._requests.soon(publish, list(identities))

    def _publish(self, root: str, member: QuorumMember, table: TableName, version: int, value: bytes) -> bool:
        try:
            is_published = self._publish_at(root, member, table, version, value)
        except (LakelogException, OSError):
            self._note_missing(table, [root])
            raise
        if not is_published:
            self._note_missing(table, [root])
        return is_published

    def _publish_at(self, root: str, member: QuorumMember, table: TableName, version: int, value: bytes) -> bool:
        if not member.is_still(root):
            return False  # nothing is published at a root that must be replaced
        member.await_published(table, version - 1, self._requests.timeout)
        if not member.publish(table, version, value):
            if (home := self._known.home) is not member:
                home.await_published(table, version, self._requests.timeout)
            if (home := self._known.home) is not member:  # it may be by now
                member.bring(table, home)
            else:
                self.bring_home(table)
            return member.publish(table, version, value) or member.newest(table) >= version
        return True

    def _note_missing(self, table: TableName, roots: Iterable[str]) -> None:
        with self._lock:
            for root in roots:
                self._missing.setdefault(root, set()).add(table)

    def bring_missing(self) -> None:
        """Brings tables to roots at which this process could not publish them, every 5 s until it can: others may never
        commit to these tables again."""
        now = time.monotonic()
        with self._lock:
            if not any(self._missing.values()) or now - self._brought_at < _AWAY_SECONDS:
                return
            self._brought_at, missing = now, {root: sorted(tables) for root, tables in self._missing.items() if tables}
        for root, tables in missing.items():
            if (member := self._known.members.get(root)) is not None:
                self._requests.begin(root, member, Answers(), partial(self._bring_tables, root, member, tables))

    def _bring_tables(self, root: str, member: QuorumMember, tables: Iterable[TableName]) -> None:
        for table in tables:
            if root in self._voting(table):  # else it was replaced
                if not member.is_still(root):
                    return
                home = self._known.home
                self.bring_home(table) if member is home else member.bring(table, home)
            with self._lock:
                self._missing.get(root, set()).discard(table)

    def bring_home(self, table: TableName) -> None:
        """Publishes at the home what other roots have, whether they vote or not: it may be older than the change that
        has let them vote. Nothing if the home is not the root that it was: it may have become the home because reads
        have failed at the others."""
        members = self._known.search(self._voting(table))
        home = self._known.home
        if any(each is home and home.is_still(root) for root, each in members.items()):
            for member in self._known.answering(members):
                self._bring(table, home, member)

    def bring_others(self, table: TableName, roots: Sequence[str]) -> None:
        """Publishes at the other ones of these roots what the home has."""
        members = self._known.members_of(roots)
        for member in self._known.answering({root: members[root] for root in roots if root in members}):
            self._bring(table, member, self._known.home)

    def _bring(self, table: TableName, to: QuorumMember, source: QuorumMember) -> None:
        """Publishes at one root what another one has."""
        try:
            to.bring(table, source)
        except (LakelogException, OSError) as error:
            logger.debug("%s: %s does not get what %s has: %s", "/".join(table), to.root.uri, source.root.uri, error)
