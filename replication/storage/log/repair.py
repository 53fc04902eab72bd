"""Finds files whose bytes differ from the committed ones, and repairs broken replicas: removes broken batches and
everything after them, to fetch them again from the leader.

Only a follower that nobody relies on may do this, because the last complete copy of a record must never go. [OL-01]
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.log.broken_segments import check_content
from lakelog.replication.storage.log.log_rewrite import Kept, Removal, take_out
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import start_txns
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import without_ends, without_producers


def repair_logs(
    log: ReplicaLog, follows: Mapping[TopicIdPartition, int], who: str, hosted: Collection[TopicIdPartition] = ()
) -> int | None:
    """Removes broken segments whose records may all be fetched again, and truncates each partition at its first broken
    batch, in one commit. Returns its version, None if there is nothing to do.

    `follows` has the partitions that may be fetched again, with their leader epochs; a replica with another role by now
    keeps its records. `hosted` has all partitions of the broker. Raises KafkaStorageException.
    """

    def plan(state: LogState) -> Removal | None:
        mine = {p for p, epoch in follows.items() if state.known(p).role.follows_at(epoch)}
        holders = {name: state.holders(broken, hosted) for name, broken in state.broken.items()}
        files = [name for name, held in holders.items() if held and held <= mine]
        offsets = {p: _first_broken(state, p, files) for p in mine if state.fault(p) is not None}
        kept: dict[str, Kept] = {**without_ends(state, offsets), **dict.fromkeys(files, ())}
        started_over = [p for p, offset in offsets.items() if offset == 0]
        # From offset 0: the start of its log cannot be trusted either.
        txns = {app_id: value for p in started_over for app_id, value in start_txns(p, LogEnd(0, genesis(p))).items()}
        return Removal(kept, without_producers(state, started_over), txns) if kept else None

    return take_out(log, {"who": who, "why": "repair", "partitions": len(follows)}, plan) if follows else None


def _first_broken(state: LogState, partition: TopicIdPartition, files: Iterable[str]) -> int:
    """The offset at which to truncate the partition. It is 0 if nothing would remain above the log start, or if the
    lost content is unknown."""
    log, topic = state.known(partition), state.topics.get(partition.topic_id)
    held = [name for name in files if state.broken[name].may_hold(partition, topic)]
    is_without_beginning = partition in state.unsound and log.sound_end == log.log_end_offset
    if is_without_beginning or any(state.broken[name].partitions is None for name in held):
        return 0
    first = min([log.sound_end, *(batch.base_offset for batch in log.batches if batch.segment in held)])
    return first if first > log.log_start_offset else 0


_AGAIN_SECONDS = 600.0  # a file is not read twice within this time, however few there are
_AGAIN_IN_A_STORE_SECONDS = 86_400.0  # object stores check their files themselves, and each read costs
_LONGEST_SECONDS = 60.0  # the most that it catches up on, for example after the process was frozen


class DigestScrub:
    """Reads the files of one log in order of their names, again and again. Only one thread uses it.

    It begins at a random name. Otherwise a broker that restarts often would only read the first files. `again` is the
    least time in seconds between two reads of a file; None: what is right for its store.
    """

    def __init__(
        self, log: ReplicaLog, bytes_per_second: int, clock: Callable[[], float] = time.monotonic,
        again: float | None = None,
    ) -> None:  # fmt: skip
        self._log = log
        self._rate = bytes_per_second
        self._clock = clock
        self._polled_at = clock()
        self._credit = 0.0
        usual = _AGAIN_SECONDS if log.root.is_local else _AGAIN_IN_A_STORE_SECONDS
        self._again = usual if again is None else again
        self._read_at: dict[str, float] = {}
        self._seen: Collection[str] = set(log.current().segments)
        self._last = f"leader-{random.random():.9f}"

    def run_once(self) -> int:
        """Reads the files that are due, each at most once. Returns the number of broken ones. Raises
        KafkaStorageException."""
        now = self._clock()
        self._credit = min(self._credit + (now - self._polled_at) * self._rate, _LONGEST_SECONDS * self._rate)
        self._polled_at = now
        return sum(self._is_broken(name) for name in self._due())

    def _due(self) -> Sequence[str]:
        """The next files that the credit allows; the last of them may exceed it."""
        log, state = self._log, self._log.current()
        segments = dict(state.segments)
        self._read_at = {name: at for name, at in self._read_at.items() if self._polled_at - at < self._again}
        if not log.root.is_local:  # a new file had the right bytes when it was written
            self._read_at.update(dict.fromkeys(segments.keys() - self._seen, self._polled_at))
            self._seen = segments.keys()
        names = sorted(segments.keys() - state.broken.keys() - self._read_at.keys())
        start = bisect_right(names, self._last)
        due = []
        for name in (*names[start:], *names[:start]):
            if self._credit <= 0:
                break
            self._credit -= segments[name].file.size
            due.append(name)
        return due

    def _is_broken(self, name: str) -> bool:
        self._last, self._read_at[name] = name, self._polled_at
        segment = self._log.current().segments.get(name)
        if segment is None:  # another commit has removed it meanwhile
            return False
        try:
            check_content(self._log.root, segment.file)
        except CorruptRecordException as error:
            self._log.report_broken(name, str(error))
            return True
        return False
