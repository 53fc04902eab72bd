"""The readings of the cluster for the pages of the console, shared by all requests.

Each thing is read by one thread at a time, and the answer counts for a second or more. So the load on the stores does
not grow with the number of browsers. A reading that hangs keeps no request waiting for longer than its patience.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, NamedTuple, NoReturn, TypeVar

from lakelog.jobs.admin.cluster_status import cordons, with_warnings
from lakelog.jobs.admin.group_offsets import Lag, lag_of
from lakelog.jobs.admin.loss_report import LossReport
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.jobs.metrics.log_sizes import LogSizes, ReplicaSizes
from lakelog.jobs.metrics.scrape_reader import ScrapeReader
from lakelog.jobs.web.metadata_timeline import DatedVersion, MetadataTimeline, SeenHistory
from lakelog.jobs.web.seen_cluster import SeenCluster
from lakelog.jobs.what_if import LossQuestion, predicted
from lakelog.replication.clients.partition_reader import OpenPartition, PartitionReader
from lakelog.replication.clients.topic_view import TopicView, forget_view, open_view
from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import InvalidRequestException, LakelogException, TimeoutException, error_or
from lakelog.replication.protocol.topic import BROKER_TYPE
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.tables.metadata_table import MetadataTable, Partitions

logger = logging.getLogger(__name__)

Found = TypeVar("Found")
Key = TypeVar("Key", bound=Hashable)

SECONDS = 1.5  # for which a reading of the tables counts
_TIMES_AS_LONG = 4  # as it took to read does an answer count: so a thread reads a fifth of the time at most
_PATIENCE = 20.0  # s that a request waits for it
_SIZES_TIMES, _SIZES_PATIENCE = 7, 0.3  # footers of new files: less often, and a page does without them at first
_HISTORY_PATIENCE = 3.0
_LOSS_PATIENCE = 0.7  # a loss that changes 10,000 partitions takes seconds to predict
_NOTES_SECONDS = 10.0  # the notes of brokers, one request each, change rarely
_READERS = 8
_MOST_QUESTIONS = 16
_AT_ONCE = 16  # readings of one kind that are under way, each with a thread
_MOST_RECORD_READERS, _TURN_SECONDS = 4, 10.0  # requests that read records at a time; s that another one waits
_PAST_SECONDS, _MOST_PAST = 600.0, 4  # versions of the metadata, each with all partitions


class _Answer(NamedTuple, Generic[Found]):
    """The result of a reading, or its error, and the times on the monotonic clock."""

    found: Found | Exception
    begun_at: float
    ended_at: float


class SharedReading(Generic[Found]):
    """One thing that is read, by one thread at a time. `seconds`: for how long an answer counts; an error counts as
    long, and what takes long to read counts for longer. A reading that begins after a request always counts for it;
    with 0 seconds nothing else does. `patience`: the seconds that a request waits for
    an answer. `may_be_old`: if it takes longer, the last answer counts on."""

    def __init__(
        self, what: str, read: Callable[[], Found], seconds: float, patience: float = _PATIENCE,
        may_be_old: bool = False,
    ) -> None:  # fmt: skip
        self._what, self._read, self._seconds = what, read, seconds
        self._patience, self._may_be_old = patience, may_be_old
        self._changed = threading.Condition()
        self._reading_since: float | None = None
        self._answer: _Answer[Found] | None = None

    def get(self) -> Found:
        """The answer. Raises what reading it has raised, and TimeoutException if there is none in time."""
        asked_at = time.monotonic()
        deadline = asked_at + self._patience
        with self._changed:
            while not self._counts(asked_at):
                if self._reading_since is None:
                    threading.Thread(target=self._work, name=f"reading {self._what}", daemon=True).start()
                    self._reading_since = time.monotonic()
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            if self._answer is None or not (self._counts(asked_at) or self._may_be_old):
                raise TimeoutException(f"{self._what} could not be read within {self._patience:g} s")
            found = self._answer.found
        if isinstance(found, Exception):
            raise found
        return found

    def _counts(self, asked_at: float) -> bool:
        """Whether the last answer counts for a request."""
        answer = self._answer
        if answer is None or not self._seconds:
            return answer is not None and answer.begun_at >= asked_at
        counts_for = max(self._seconds, _TIMES_AS_LONG * (answer.ended_at - answer.begun_at))
        return answer.begun_at >= asked_at or time.monotonic() - answer.ended_at < counts_for

    @property
    def is_reading(self) -> bool:
        """Whether it is being read now."""
        return self._reading_since is not None

    @property
    def has_failed(self) -> bool:
        """Whether the last answer is an error, there was none, or the next one has not come within the patience."""
        since = self._reading_since
        hangs = since is not None and time.monotonic() - since > self._patience
        return hangs or self._answer is None or isinstance(self._answer.found, Exception)

    def _work(self) -> None:
        found: Found | Exception
        begun_at = time.monotonic()
        try:
            found = self._read()
        except Exception as error:
            found = error
        with self._changed:
            self._answer, self._reading_since = _Answer(found, begun_at, time.monotonic()), None
            self._changed.notify_all()


class KeyedReadings(Generic[Key, Found]):
    """Readings of one kind, each for a key, of which the latest ones are kept. Threads share it. Those that are under
    way are kept too, and are few: requests with ever new keys start no more threads while a store hangs."""

    def __init__(self, seconds: float, most: int, patience: float = _PATIENCE, may_be_old: bool = False) -> None:
        self._most = most
        self._make = partial(SharedReading[Found], seconds=seconds, patience=patience, may_be_old=may_be_old)
        self._known: dict[Key, SharedReading[Found]] = {}
        self._lock = threading.Lock()

    def get(self, key: Key, what: str, read: Callable[[], Found]) -> Found:
        """As `SharedReading.get`; also raises TimeoutException if too many others are being read."""
        with self._lock:
            reading = self._known.pop(key, None)
            if reading is None:
                if sum(each.is_reading for each in self._known.values()) >= _AT_ONCE:
                    raise TimeoutException(f"{what} cannot be read now: {_AT_ONCE} others are being read")
                reading = self._make(what, read)
            idle = [old for old, each in self._known.items() if not each.is_reading]
            for old in idle[: max(0, len(self._known) + 1 - self._most)]:
                del self._known[old]
            self._known[key] = reading
        return reading.get()


class _OwnCluster:
    """A cluster for one thread at a time, whose tables stay open between uses."""

    def __init__(self, uri: str, config: Config) -> None:
        self._uri, self._config = uri, config
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()

    @contextmanager
    def opened(self) -> Iterator[Cluster]:
        """A block that uses it. After an error its tables are opened again, unless the request was wrong."""
        with self._lock:
            self._cluster = self._cluster or Cluster.open(self._uri, self._config)
            try:
                yield self._cluster
            except InvalidRequestException:
                raise
            except (LakelogException, OSError):
                self._cluster = None
                raise


class ConsoleReadings:
    """The readings of one cluster. Threads share it; methods raise LakelogExceptions, and OSErrors of roots. `seconds`:
    for how long a reading of the tables counts. `loss_patience`: the seconds that a page waits for a prediction.

    `cluster`: as it is now, or was a moment ago. `history`: that of the metadata; raises TimeoutException while it is
    read for the first time. `broker_configs`: the dynamic settings of brokers, by their names in the table.
    `topic_ids`: of all topics by name, read after the call has begun."""

    def __init__(
        self, uri: str, config: Config, seconds: float = SECONDS, loss_patience: float = _LOSS_PATIENCE
    ) -> None:  # fmt: skip
        self.uri, self.config = uri, config
        self._reader: ScrapeReader | None = None
        self._logs: dict[str, LogSizes] = {}  # by root
        self._timeline: MetadataTimeline | None = None
        self._of_losses, self._of_configs = _OwnCluster(uri, config), _OwnCluster(uri, config)
        self._of_topics = _OwnCluster(uri, config)
        self._errors = ErrorLog(logger, "console")
        self._warned_at = float("-inf")
        self._warnings: SeenCluster | None = None
        self.cluster = SharedReading("the cluster", self._read_cluster, seconds)
        every = _SIZES_TIMES * seconds
        self._sizes = SharedReading("the sizes of logs", self._read_sizes, every, _SIZES_PATIENCE, True)
        self.history = SharedReading("the history", self._read_history, seconds, _HISTORY_PATIENCE, True)
        self.broker_configs = SharedReading("the settings of brokers", self._read_configs, seconds)
        self.topic_ids = SharedReading("the topics", self._read_topic_ids, 0.0)
        self._losses = KeyedReadings[LossQuestion, LossReport](seconds, _MOST_QUESTIONS, loss_patience, True)
        self._lags = KeyedReadings[object, dict[TopicPartition, Lag | LakelogException]](seconds, _MOST_QUESTIONS)
        self._past = KeyedReadings[object, Partitions](_PAST_SECONDS, _MOST_PAST)
        self._turns = threading.BoundedSemaphore(_MOST_RECORD_READERS)

    @property
    def is_healthy(self) -> bool:
        """Whether the last reading of the cluster has succeeded."""
        return not self.cluster.has_failed

    def sizes(self) -> Mapping[int, ReplicaSizes]:
        """The sizes of replicas by broker, as far as logs were read by now."""
        try:
            return self._sizes.get()
        except (LakelogException, OSError):
            return {}

    def what_if(self, asked: LossQuestion) -> LossReport:
        """The effects of a loss on the cluster. Raises as `predicted`, InvalidRequestException for a question that
        contradicts itself, and TimeoutException while it is predicted for the first time."""
        return self._losses.get(asked, "what becomes of the cluster", partial(self._predict, asked))

    def lags(
        self, group: str, partitions: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, Lag | LakelogException]:
        """The lag of a group in some partitions, with the offsets that it has committed, or the leader's error."""
        key = group, tuple(partitions.items())
        return self._lags.get(key, f"the lag of {group}", partial(self._read_lags, partitions))

    def metadata_at(self, version: DatedVersion) -> Partitions:
        """The partitions as a version of the metadata has them. It never changes, so it is read once."""
        seen = self.cluster.get()

        def read() -> Partitions:
            return MetadataTable.as_of(seen.root, version.at)[0].partitions

        return self._past.get((seen.cluster_id, version.version), f"version {version.version}", read)

    @contextmanager
    def records(self) -> Iterator[TopicView]:
        """A block that reads records through a view that threads share. Few requests do so at a time, as each may need
        much memory, or hang; raises TimeoutException if none of them ends in time."""
        if not self._turns.acquire(timeout=_TURN_SECONDS):
            raise TimeoutException(
                f"{_MOST_RECORD_READERS} requests read records, and none has ended within {_TURN_SECONDS:g} s"
            )
        try:
            with self._viewed() as view:
                yield view
        finally:
            self._turns.release()

    @contextmanager
    def _viewed(self) -> Iterator[TopicView]:
        """A block with the view: after an error its tables are opened again."""
        view = open_view(self.uri, self.config, reads_go_on=True)
        try:
            yield view
        except (LakelogException, OSError):
            forget_view(view)
            raise

    def _read_cluster(self) -> SeenCluster:
        try:
            self._reader = self._reader or ScrapeReader(self.uri, self.config)
            found, cluster = self._reader.read(), self._reader.cluster
            state = found.state
            if time.monotonic() - self._warned_at >= _NOTES_SECONDS or self._warnings is None:
                cluster.configs.refresh()
                state = with_warnings(cluster, state._replace(cordoned=cordons(cluster)))
                self._warned_at = time.monotonic()
            else:
                last = self._warnings.state
                state = state._replace(
                    throttled=last.throttled, unwritable=last.unwritable, refused=last.refused,
                    cordoned=last.cordoned, unknown=last.unknown,
                    unregistered=last.unregistered if not state.brokers else "",
                )  # fmt: skip
            seen = self._warnings = SeenCluster(time.time(), cluster, found._replace(state=state))
        except (LakelogException, OSError) as error:
            self._reader = None
            if self._warnings is not None:  # else the verb ends with it
                self._errors.failed(error)
            raise
        self._errors.worked()
        return seen

    def _read_sizes(self) -> dict[int, ReplicaSizes]:
        seen = self.cluster.get()
        brokers = list(seen.roots.items())
        found = in_threads(lambda each: self._sizes_of(seen, each[1]), brokers, _READERS)
        return {broker: sizes for (broker, _), sizes in zip(brokers, found, strict=True) if sizes is not None}

    def _sizes_of(self, seen: SeenCluster, uri: str) -> ReplicaSizes | None:
        """The sizes in one log; None if the log cannot be read. The overview shows why."""
        try:
            if uri not in self._logs:
                self._logs[uri] = LogSizes(seen.storage_of(uri))
            return self._logs[uri].refresh()
        except (LakelogException, OSError):
            self._logs.pop(uri, None)
            return None

    def _read_history(self) -> SeenHistory:
        seen = self.cluster.get()
        if self._timeline is None or self._timeline.cluster_id != seen.cluster_id:
            self._timeline = MetadataTimeline(seen.root, seen.cluster_id)
        return self._timeline.read_on()

    def _read_configs(self) -> dict[str, Mapping[str, str]]:
        with self._of_configs.opened() as cluster:
            cluster.configs.refresh()
            return {name: configs for (kind, name), configs in cluster.configs.configs.items() if kind == BROKER_TYPE}

    def _read_topic_ids(self) -> dict[str, str]:
        with self._of_topics.opened() as cluster:
            cluster.topics.refresh()
            return {topic.topic: topic.topic_id for topic in cluster.topics.topics.values()}

    def _predict(self, asked: LossQuestion) -> LossReport:
        with self._of_losses.opened() as cluster:
            return predicted(cluster, asked, None, _refuse, None, self.cluster.get().state.rows)

    def _read_lags(
        self, partitions: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, Lag | LakelogException]:
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)
        with self._viewed() as view:
            opened = open_partitions(view, by_topic)
            return {key: error_or(_lag, led, partitions[key]) for key, led in opened.items()}


def _lag(led: OpenPartition | LakelogException, committed: int | None) -> Lag:
    if isinstance(led, LakelogException):
        raise led
    return lag_of(led, committed)


def open_partitions(
    view: TopicView, wanted: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, OpenPartition | LakelogException]:
    """Partitions at their leaders, or why one cannot be read now: a page does not wait for a new leader. The rows of
    all are read before the first log, as `PartitionReader` wants it."""
    seen = {topic: error_or(view.leaderships, topic, numbers) for topic, numbers in wanted.items()}
    reader, found = PartitionReader(view), dict[TopicPartition, OpenPartition | LakelogException]()
    for topic, numbers in wanted.items():
        leaderships = seen[topic]
        for number in numbers:
            if isinstance(leaderships, LakelogException):
                found[topic, number] = leaderships
            elif number in leaderships:
                found[topic, number] = error_or(reader.open, leaderships[number])
    return found


def _refuse(why: str) -> NoReturn:
    raise InvalidRequestException(why)
