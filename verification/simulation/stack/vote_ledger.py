"""All that was voted and published at the cluster roots of one world, kept apart from the roots, which may be lost.

It sees each write as it lands, and each answer that a process gets of the quorum. A vote counts if its root votes on
the version, and had the identity that the vote names when the vote landed. A cluster that had one root first decides
the versions of a table by its files alone, up to the one that names the roots that vote.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from lakelog.replication.protocol.quorum_slot import Accept, Ballot, ProposedCommit
from lakelog.replication.storage.delta import quorum_member
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import NONCE, ROOTS
from lakelog.replication.storage.delta.commit_format import commit_name, parsed
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.quorum_member import CREATES, FOLDER, event_of, packed, unpacked
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.one_thread import Changes

Slot = tuple[str, int]  # the folder of a table below the root, and a version
_EVENT = re.compile(rf"{FOLDER}/(.+)/(\d{{20}})-(\d{{6}})\.json")
_COMMIT = re.compile(r"(.+)/_delta_log/(\d{20})\.json")


class VoteLedger:
    """What has landed at these roots of a store. `began_later` tells whether a root is lost, and the running process
    has begun its step after that; `was_in_flight` whether a write was perhaps sent before."""

    def __init__(
        self, store: MemoryStore, uris: Sequence[str], changes: Changes, began_later: Callable[[str], bool],
        was_in_flight: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._store, self._uris, self._began_later, self._was_in_flight = store, uris, began_later, was_in_flight
        self._put, self._delete = store.put, store.delete
        self._accepts = defaultdict[tuple[Slot, Ballot], set[str]](set)
        self._decided: dict[Slot, ProposedCommit] = {}
        self._published: dict[Slot, bytes] = {}
        self._voting: dict[Slot, Sequence[str]] = {}  # by the version after which they vote
        self._made = set[tuple[str, bytes]]()  # tables that decided commits make, with their first commits
        self._answered: dict[str, int] = {}  # the newest version of each table that a process knows to be decided
        self.is_formatted = False
        self.began_with_one_root = False
        changes.change(store, "put", self._put_seen)
        changes.change(store, "delete", self._delete_seen)
        changes.change(ClusterQuorum, "commit", self._commit(ClusterQuorum.commit))
        changes.change(ClusterQuorum, "catch_up", self._catch_up(ClusterQuorum.catch_up))

    # Writes

    def _put_seen(self, uri: str, content: bytes | pa.Buffer) -> None:
        root = next((root for root in self._uris if uri.startswith(f"{root}/")), None)
        if root is not None:
            name = uri[len(root) + 1 :]
            if found := _EVENT.fullmatch(name):
                self._note_vote(root, (found[1], int(found[2])), int(found[3]), bytes(content))
            elif found := _COMMIT.fullmatch(name):
                self._note_commit(root, (found[1], int(found[2])), bytes(content))
        self._put(uri, content)

    def _delete_seen(self, uri: str) -> None:
        root = next((root for root in self._uris if uri.startswith(f"{root}/")), None)
        found = root and _EVENT.fullmatch(uri[len(root) + 1 :])
        if root and found and not self._is_sealed(root, (found[1], int(found[2]))):
            raise Violation("votes_are_deleted_after_their_seal", uri)
        self._delete(uri)

    def _note_vote(self, root: str, slot: Slot, number: int, content: bytes) -> None:
        event, identity = event_of(content), self._identity(root)
        if self._event(root, slot, number) is not None:
            raise Violation("votes_never_change", f"{root}: vote {number} of {slot}")
        before = self._event(root, slot, number - 1)
        is_void = identity != event.root  # the root was replaced: it may have lost the votes that the voter knows
        if before is not None and before.root == event.root and event.ballot < before.ballot and not is_void:
            raise Violation("ballots_never_fall", f"{root}: {event.ballot} of {slot} follows {before.ballot}")
        voting = self._voting.get((slot[0], slot[1] - 1), ())
        counts = identity == event.root and event.root in voting and not self._is_sealed(root, slot)
        if counts and isinstance(event, Accept):
            accepts = self._accepts[slot, event.ballot]
            accepts.add(event.root)
            if len(accepts) > len(voting) // 2:
                self._decide(slot, event.commit)

    def _decide(self, slot: Slot, commit: ProposedCommit) -> None:
        known = self._decided.get(slot)
        if known is not None and known.nonce != commit.nonce:
            raise Violation("one_commit_is_decided_a_version", f"{slot}: {known.nonce} and {commit.nonce}")
        self._decided[slot], self._voting[slot] = commit, commit.roots
        content, _ = unpacked(commit.content)
        if made := parsed(slot[1], content, None).info.get(CREATES):
            self._made.add((made[0], made[1].encode()))

    def _note_commit(self, root: str, slot: Slot, content: bytes) -> None:
        if self._is_decided_alone(root, slot, content):
            info = parsed(slot[1], content, None).info
            self._published[slot], self._voting[slot] = content, info.get(ROOTS, ())
            self._decided[slot] = ProposedCommit(info.get(NONCE, ""), "", content=packed(content, {}))
            return
        if slot not in self._published:
            self._check_decided(root, slot, content)
            self._published[slot] = content
            self._voting.setdefault(slot, parsed(slot[1], content, None).info.get(ROOTS, ()))
        if self._published[slot] != content:
            raise Violation("published_commits_are_equal", f"{slot} at {root}")
        if slot[1] > 0 and not self._has_reached(root, slot) and not self._was_in_flight(root):
            raise Violation("commits_are_published_in_order", f"{slot} at {root}")
        if self._began_later(root):
            raise Violation("a_lost_root_gets_nothing", f"{slot} at {root}")

    def _is_decided_alone(self, root: str, slot: Slot, content: bytes) -> bool:
        if not self.began_with_one_root or root != self._uris[0]:
            return False
        if slot[1] == 0:
            return (slot[0], content) not in self._made
        return not self._voting.get((slot[0], slot[1] - 1))

    def _check_decided(self, root: str, slot: Slot, content: bytes) -> None:
        if slot[1] == 0:
            is_decided = not self.is_formatted or (slot[0], content) in self._made
        else:
            commit = self._decided.get(slot)
            is_decided = commit is not None and unpacked(commit.content)[0] == content
        if not is_decided:
            raise Violation("published_commits_are_decided", f"{slot} at {root}")

    def _has_reached(self, root: str, slot: Slot) -> bool:
        """Whether the version before is published there, or in a checkpoint."""
        table, version = slot
        if self._store.find(f"{root}/{table}/{commit_name(version - 1)}") is not None:
            return True
        names = self._store.files(f"{root}/{table}/_delta_log")
        return any(".checkpoint" in name and name[:20].isdigit() and int(name[:20]) >= version - 1 for name in names)

    def _identity(self, root: str) -> str | None:
        file = self._store.find(f"{root}/{FOLDER}/_root.json")
        return None if file is None else f"{json.loads(bytes(file.content))['root']}:{file.stamp[1]}"

    def _event(self, root: str, slot: Slot, number: int) -> Any:
        file = self._store.find(f"{root}/{FOLDER}/{slot[0]}/{slot[1]:020d}-{number:06d}.json") if number >= 0 else None
        return None if file is None else event_of(bytes(file.content))

    def _is_sealed(self, root: str, slot: Slot) -> bool:
        seal = f"sealed-{slot[1] // quorum_member.SLOTS_A_SEAL:020d}"
        return self._store.find(f"{root}/{FOLDER}/{slot[0]}/{seal}") is not None

    # Answers

    def _commit(self, commit: Callable[..., int]) -> Callable[..., int]:
        def answered(
            quorum: ClusterQuorum, table: tuple[str, ...], version: int, nonce: str, *given: Any, **named: Any
        ) -> int:
            size = commit(quorum, table, version, nonce, *given, **named)
            is_won = size > 0
            slot = "/".join(table), version
            decided = self._decided.get(slot)
            if decided is None or (decided.nonce == nonce) != is_won:
                raise Violation("answers_tell_what_is_decided", f"{slot}: won is {is_won}, decided is {decided}")
            self._note_answer(slot)
            return size

        return answered

    def _catch_up(self, catch_up: Callable[..., int]) -> Callable[..., int]:
        def answered(quorum: ClusterQuorum, table: tuple[str, ...], version: int) -> int:
            name = "/".join(table)
            expected = self._answered.get(name, -1)
            found = catch_up(quorum, table, version)
            if found < expected:
                raise Violation("reads_see_what_was_answered", f"{name}: {found}, and {expected} was answered before")
            if found > 0 and (name, found) not in self._decided:
                raise Violation("answers_tell_what_is_decided", f"{name}: a read finds {found}, which is not decided")
            self._note_answer((name, found))
            return found

        return answered

    def _note_answer(self, slot: Slot) -> None:
        self._answered[slot[0]] = max(slot[1], self._answered.get(slot[0], -1))

    # At the end

    def check(self) -> None:
        """Raises Violation unless each root has its tables as they were decided, with all files."""
        for root in self._uris:
            for table in self._answered:
                self._check_table(f"{root}/{table}")

    def _check_table(self, uri: str) -> None:
        log = DeltaLog.open(StorageRoot.of(uri))
        missing = [file.name for file in log.active_files() if not log.root.exists(file.name)]
        if missing:
            raise Violation("each_root_has_the_files_of_its_tables", f"{uri}: version {log.version} lacks {missing}")
