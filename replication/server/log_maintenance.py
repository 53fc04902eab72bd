"""Maintains a broker's log: scrubs, retention, deletion of old segments, deletion of unused files, and, at a pace that
producers and followers do not feel, the cleaning of compacted topics and the merging of small files.

Kafka: `LogManager` (retention), `LogCleaner`. It has a thread of its own: none of it is urgent, and leading and
following must not wait for it.
"""

from __future__ import annotations

import logging
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pyspark.sql import SparkSession

from lakelog.replication.config import Config, TopicConfig
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import CorruptRecordException, LakelogException, StaleBrokerEpochException
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.log_cleaner import CleanerConfig, LogToClean, log_to_clean
from lakelog.replication.protocol.log_retention import retention_offset
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.executors import ExecutorsFailed, has_executors, on_executors
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint, PeriodicTask
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.log.broken_segments import check_content
from lakelog.replication.storage.log.log_cleaning import OnEach, clean, in_turn
from lakelog.replication.storage.log.log_compaction import Pace, compact
from lakelog.replication.storage.log.log_start import StartOf, delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.other_writers import foreign_files, undo_other_writers
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment

logger = logging.getLogger(__name__)

_SCRUB_ROUNDS, _REMOTE_SCRUB_ROUNDS = 10, 60  # from one scrub to the next: it lists the folder, and a store charges it
_LOG_LINE_SECONDS = 60.0  # between two log lines on compactions
_LOOK_AGAIN_US = 60_000_000  # a log that stays as it is may become old enough to be cleaned
_COMPACTIONS = 16  # the most in one round
_COMPACTION_SECONDS = 60  # of a round, in which compactions begin; one is no larger than the rate allows in that time

_SHARE, _SHARE_OF_BACKLOG = 0.05, 0.2  # of a core, while the log is in use
_BACKLOG = 1000  # segments: a log with more takes long to open
_IN_USE_SECONDS = 1.0  # a log is in use until its last commit is this old
_SHORTEST = 0.001  # a shorter wait would take longer than it says
_READ_AGAIN_SECONDS = 600.0  # a file is not read twice within this time, however few there are
_READ_AGAIN_IN_A_STORE_SECONDS = 86_400.0  # object stores check their files themselves, and each read costs
_MOST_CREDIT_SECONDS = 60.0  # the most that it catches up on, for example after the process was frozen


class Replicas(Protocol):
    """The replicas of the broker, with the HWs that it knows."""

    def led(self) -> Mapping[TopicIdPartition, HostedPartition]:
        """The replicas that lead their partitions."""

    def hosted(self) -> Mapping[TopicIdPartition, HostedPartition]:
        """All replicas."""


class _Stopping(Exception):
    """The broker stops, and a compaction or cleaning under way is given up."""


class LogMaintenance(PeriodicTask):
    """Maintains one log, round after round, in a thread of its own until it is stopped."""

    def __init__(
        self, name: str, log: ReplicaLog, replicas: Replicas, cache: MetadataCache, config: Config,
        pause_point: PausePoint, spark: SparkSession,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__(name, "maintenance", config.log_cleaner_backoff_ms, pause_point, self.run_once)
        self._log = log
        self._replicas = replicas
        self._spark = spark
        self._cache = cache
        self._config = config
        self._wall_clock = wall_clock
        self._cleaner = FileCleaner(log.root, config.log_segment_delete_delay_ms / 1000)
        again = config.lakelog_scrub_interval_ms
        self._digests = DigestScrub(
            log, config.lakelog_scrub_bytes_per_second, again=None if again < 0 else again / 1000
        )
        self._known = set(log.current().segments)
        self._is_in_use = LogUse(lambda: log.current().version)
        self._retained_at = self._logged_at = float("-inf")
        self._idle: dict[TopicIdPartition, _Looked] = {}  # the logs in which there was nothing to clean
        self._compactions = self._compacted = 0  # and the segments that they replaced, since the last log line
        self._rounds, self._is_scrub_round = 0, True
        # The files of other tools that the last round has left, and the last commit that it knew to remove files.
        self._foreign = frozenset[str](), log.rewritten_at
        self._deletes_files = True
        self._parts: Mapping[str, Callable[[], None]] = {
            "scrub": self._scrub,
            "scrub of digests": self._scrub_digests,
            "files of other tools": self._undo_other_writers,
            "retention": self._retain,
            "deletion of old segments": self._delete_old_segments,
            "compaction": self._compact,  # first: a file of many partitions would be written again for each of them
            "cleaning": self._clean_logs,
            "deletion of files": self._clean,
        }
        self._errors = {what: ErrorLog(logger, f"{name}: {what}") for what in self._parts}

    def stop(self) -> None:
        """Ends the thread after the part that it is running, and waits for it. A compaction that waits is given up."""
        super().stop()
        self._log_compactions(is_last=True)

    def run_once(self) -> None:
        """Runs one round. Each part commits by itself. If one fails, it logs the error and goes on with the next part;
        the next round tries again. Raises StaleBrokerEpochException once the broker is fenced, and BrokerKilled."""
        for what, part in self._parts.items():
            self._pause_point.pass_through()
            try:
                part()
                self._errors[what].worked()
            except (BrokerKilled, StaleBrokerEpochException):
                raise
            except LakelogException as error:
                self._errors[what].failed(error)
            except Exception:  # for example from an unforeseen fault in a file: the other parts go on
                logger.exception("%s: %s: unexpected error", self._who, what)

    def _scrub(self) -> None:
        rounds = _SCRUB_ROUNDS if self._log.root.is_local else _REMOTE_SCRUB_ROUNDS
        self._is_scrub_round = self._rounds % rounds == 0
        if self._is_scrub_round and self._log.scrub():
            logger.error("%s: files of the log have broken or work again", self._who)
        self._rounds += 1

    def _scrub_digests(self) -> None:
        broken = self._digests.run_once()
        if broken:
            logger.error("%s: %d files of the log differ from what was committed", self._who, broken)

    def _undo_other_writers(self) -> None:
        """Undoes what another tool has written: at once, and if some of its files are left, again with each scrub.
        [OL-01]"""
        foreign, rewritten_at = foreign_files(self._log.current()), self._log.rewritten_at
        if (foreign, rewritten_at) != self._foreign or (foreign and self._is_scrub_round):
            undo_other_writers(self._log, self._who)
        self._foreign = foreign_files(self._log.current()), rewritten_at

    def _delete_old_segments(self) -> None:
        expiration = self._config.producer_id_expiration_ms
        delete_old_segments(self._log, self._now() - expiration * 1000, self._who)

    def _clean(self) -> None:
        """Deletes the files that no version needs; none while a partition is offline, because a removed file may still
        heal it. [OL-01]"""
        self._note_removed()
        is_whole = not self._log.current().faulty()
        if self._deletes_files and not is_whole:
            logger.warning("%s: no file of the log is deleted while partitions are offline", self._who)
        self._deletes_files = is_whole
        if is_whole:
            self._cleaner.clean(lambda: self._log.refresh().segments)

    def _now(self) -> int:
        """The wall clock in microseconds since 1970, the unit of record timestamps."""
        return int(self._wall_clock() * 1_000_000)

    def _retain(self) -> None:
        """Raises the log starts of the led partitions. Followers see them in this broker's rows and follow. [DR-01]"""
        if (time.monotonic() - self._retained_at) * 1000 < self._config.log_retention_check_interval_ms:
            return
        starts = {partition: self._start_of(hosted) for partition, hosted in self._replicas.led().items()}
        if starts:
            self._pause_point.pass_through()
            raise_log_starts(self._log, starts, self._who, "retention")
        self._retained_at = time.monotonic()

    def _start_of(self, hosted: HostedPartition) -> StartOf:
        registration, config = hosted.registration, self._cache.topic_config(hosted.registration)

        def start_of(log: PartitionLog) -> int:
            if not log.role.leads_at(registration.leader_epoch) or not config.deletes:
                return log.log_start_offset
            limits = config.retention_ms, config.retention_bytes
            return retention_offset(log, hosted.high_watermark, self._now(), *limits)

        return start_of

    def _clean_logs(self) -> None:
        """Removes records of which a later one has the same key, from the logs of topics with `cleanup.policy=compact`:
        first from those with the largest share of dirty bytes. Each replica does so by itself. [LC-01]"""
        config, ends_at = self._config, time.monotonic() + _COMPACTION_SECONDS
        failed: CorruptRecordException | None = None
        for partition, hosted, to_clean in self._logs_to_clean() if config.log_cleaner_enable else ():
            if self.stopping.is_set() or time.monotonic() >= ends_at:
                break
            self._pause_point.pass_through()
            if not _takes_records(self._log.current().known(partition), hosted):
                continue  # another log was being cleaned for long
            retention_ms = self._cache.topic_config(hosted.registration).delete_retention_ms
            try:
                cleaned = clean(
                    self._log, partition, to_clean, retention_ms, self._now(), config.log_cleaner_dedupe_buffer_size,
                    self._who, self._pace(), self._on_each,
                )  # fmt: skip
            except _Stopping:
                return
            except CorruptRecordException as error:  # of a file: the other logs are cleaned nevertheless
                failed = error
                continue
            self._note_removed()
            if cleaned is not None and cleaned.bytes_before:
                logger.info(
                    "%s: cleaned %s up to offset %d: files of %d bytes have %d bytes now", self._who,
                    hosted.registration.name, *cleaned,
                )  # fmt: skip
        if failed is not None:
            raise failed

    def _logs_to_clean(self) -> list[tuple[TopicIdPartition, HostedPartition, LogToClean]]:
        found, state, now = [], self._log.current(), self._now()
        before, self._idle = self._idle, {}
        for partition, hosted in self._replicas.hosted().items():
            config = self._cache.topic_config(hosted.registration)
            log = state.known(partition) if config.compacts else None
            if log is None or not _takes_records(log, hosted):
                continue
            settings, idle = _cleaner_config(config), before.get(partition)
            facts = log.log_start_offset, log.cleaned_to, log.log_end, hosted.high_watermark, settings
            if idle and idle.facts == facts and 0 <= now - idle.at < _LOOK_AGAIN_US:
                self._idle[partition] = idle
            elif to_clean := log_to_clean(log, hosted.high_watermark, now, settings):
                found.append((partition, hosted, to_clean))
            else:
                self._idle[partition] = _Looked(facts, now)
        return sorted(found, key=lambda item: -item[2].ratio)

    def _on_each(self, pace: Pace) -> OnEach:
        """Cleans many bytes of an object store on executors, if Spark has any: to read and write them is most of the
        work. If that fails, this process does it."""

        def on_each(call: Callable[[Segment], Segment | None], segments: Sequence[Segment]) -> Iterable[Segment | None]:
            is_much = sum(segment.file.size for segment in segments) >= self._config.lakelog_executor_copy_bytes
            if is_much and not self._log.root.is_local and has_executors(self._spark):
                try:
                    # Light: then the commit looks each file up in the store.
                    return [found and found.light for found in on_executors(self._spark, call, segments)]
                except ExecutorsFailed as error:
                    logger.warning("%s: the driver cleans %d segments itself: %s", self._who, len(segments), error)
            return in_turn(pace)(call, segments)

        return on_each

    def _pace(self) -> CompactionPace:
        rate = self._config.log_cleaner_io_max_bytes_per_second
        return CompactionPace(rate, self._is_in_use, self._wait, cpu_share(len(self._log.current().segments)))

    def _compact(self) -> None:
        """Runs a limited number of compactions, so that the other parts need not wait long. The next round goes on."""
        config = self._config
        rate, ends_at = config.log_cleaner_io_max_bytes_per_second, time.monotonic() + _COMPACTION_SECONDS
        most = min(config.log_cleaner_max_bytes, rate * _COMPACTION_SECONDS)
        limits = config.log_segment_bytes, config.log_cleaner_min_files, most
        for _ in range(_COMPACTIONS if config.log_cleaner_enable else 0):
            if self.stopping.is_set() or time.monotonic() >= ends_at:
                return
            self._pause_point.pass_through()
            try:
                replaced = compact(self._log, *limits, self._who, self._pace())
            except _Stopping:
                return
            self._note_removed()
            if not replaced:
                return
            self._compactions += 1
            self._compacted += replaced
            self._log_compactions()

    def _log_compactions(self, is_last: bool = False) -> None:
        """Logs how much was compacted, once a minute at most, and at the end."""
        now = time.monotonic()
        if self._compactions and (is_last or now - self._logged_at >= _LOG_LINE_SECONDS):
            logger.info("%s: %d compactions of %d small files", self._who, self._compactions, self._compacted)
            self._compactions, self._compacted, self._logged_at = 0, 0, now

    def _wait(self, seconds: float) -> None:
        """Raises _Stopping once the broker stops, and BrokerKilled."""
        if self.stopping.wait(seconds):
            raise _Stopping
        self._pause_point.pass_through()

    def _note_removed(self) -> None:
        names = set(self._log.refresh(LONGEST_SECONDS).segments)
        self._cleaner.removed(self._known - names)
        self._known = names


class _Looked(NamedTuple):
    """The state of a log when there was nothing to clean, and the time of that, in microseconds. A look at each batch
    of 10,000 logs would take longer than a round."""

    facts: tuple[object, ...]
    at: int


def _cleaner_config(config: TopicConfig) -> CleanerConfig:
    return CleanerConfig(
        config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms,
        config.delete_retention_ms,
    )  # fmt: skip


def _takes_records(log: PartitionLog, hosted: HostedPartition) -> bool:
    """Whether a log leads or follows under the leader epoch of which the broker knows the HW."""
    epoch = hosted.registration.leader_epoch
    return log.role.leads_at(epoch) or log.role.follows_at(epoch)


class LogUse:
    """Measures whether a log is in use: whether its version has moved within the last second."""

    def __init__(self, version: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._version = version
        self._clock = clock
        self._seen = version()
        self._moved_at = float("-inf")

    def __call__(self) -> bool:
        """Whether producers or followers wait for the log now."""
        version, now = self._version(), self._clock()
        if version != self._seen:
            self._seen, self._moved_at = version, now
        return now - self._moved_at < _IN_USE_SECONDS


def cpu_share(segments: int) -> float:
    """The share of a core that compaction takes while its log is in use. `segments`: their number in the log."""
    return _SHARE if segments <= _BACKLOG else _SHARE_OF_BACKLOG


class CompactionPace:
    """The pace of one compaction, which begins when this is made. Call it after each file that was read or written.

    It waits long enough that compaction reads and writes at most `bytes_per_second`
    (`log.cleaner.io.max.bytes.per.second`), and takes at most `share` of a core while `is_in_use`. `wait` receives
    seconds. [NA-04]
    """

    def __init__(
        self, bytes_per_second: int, is_in_use: Callable[[], bool], wait: Callable[[float], object], share: float,
        clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self._rate = bytes_per_second
        self._is_in_use = is_in_use
        self._wait = wait
        self._share = share
        self._clock, self._cpu_clock = clock, cpu_clock
        self._resume()

    def _resume(self) -> None:
        self._resumed_at, self._cpu_before, self._size = self._clock(), self._cpu_clock(), 0

    def __call__(self, size: int) -> None:
        """Waits as long as `size` bytes and the time since the last wait demand."""
        took, cpu = self._clock() - self._resumed_at, self._cpu_clock() - self._cpu_before
        self._size += size
        needed = self._size / self._rate
        if self._is_in_use():
            needed = max(needed, cpu / self._share)  # of CPU time: on a busy machine the work itself takes longer
        due = needed - took
        if 0 < due < _SHORTEST:
            return  # the next wait makes up for it
        if due > 0:
            self._wait(due)
        self._resume()


class DigestScrub:
    """Finds files whose bytes differ from the committed ones: it reads all files of one log in order of their names, at
    a slow rate, again and again. Only one thread uses it. [OL-01]

    It begins at a random name. Otherwise a broker that restarts often would only read the first files. `again` is the
    least time in seconds between two reads of a file; None: the default of its store.
    """

    def __init__(
        self, log: ReplicaLog, bytes_per_second: int, clock: Callable[[], float] = time.monotonic,
        again: float | None = None,
    ) -> None:  # fmt: skip
        self._log = log
        self._rate = bytes_per_second
        self._clock = clock
        self._run_at = clock()
        self._credit = 0.0
        usual = _READ_AGAIN_SECONDS if log.root.is_local else _READ_AGAIN_IN_A_STORE_SECONDS
        self._again = usual if again is None else again
        self._read_at: dict[str, float] = {}
        self._seen: Collection[str] = set(log.current().segments)
        self._last = f"leader-{random.random():.9f}"

    def run_once(self) -> int:
        """Reads the files that are due, each at most once. Returns the number of broken ones. Raises
        KafkaStorageException."""
        now = self._clock()
        self._credit = min(self._credit + (now - self._run_at) * self._rate, _MOST_CREDIT_SECONDS * self._rate)
        self._run_at = now
        return sum(self._is_broken(name) for name in self._due())

    def _due(self) -> Sequence[str]:
        """The next files that the credit allows; the last of them may exceed it."""
        log, state = self._log, self._log.current()
        segments = dict(state.segments)
        self._read_at = {name: at for name, at in self._read_at.items() if self._run_at - at < self._again}
        if not log.root.is_local:  # a new file had the right bytes when it was written
            self._read_at.update(dict.fromkeys(segments.keys() - self._seen, self._run_at))
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
        self._last, self._read_at[name] = name, self._run_at
        segment = self._log.current().segments.get(name)
        if segment is None:  # another commit has removed it meanwhile
            return False
        try:
            check_content(self._log.root, segment.file)
        except CorruptRecordException as error:
            self._log.report_broken(name, str(error))
            return True
        return False
