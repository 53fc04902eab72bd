"""The load of a soak: for each topic producers that never stop, probes that measure outages, and a reader."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException, OffsetOutOfRangeException
from lakelog.replication.storage.cluster import Cluster
from lakelog.verification.faults.number_producer import (
    AcknowledgedRecord,
    NumberProducer,
    NumberSender,
    RepeatedWork,
    Waits,
)
from lakelog.verification.faults.outages import OutageMeter

# Each producer of a topic: first number, records a partition, timeout (ms). One waits for brokers that are away, the
# other one keeps appending.
_PRODUCERS = ((0, 20, 60_000), (10**9, 2, 1_500))
_PROBE, _SPAN, _PROBE_TIMEOUT, _PROBE_PAUSE = 10**10, 10**6, 60_000, 2.0
# Many clients in one process poll the tables rarely, so the brokers get time on a small machine.
_CLIENT = Config(lakelog_poll_interval_ms=250)


class Probe(NumberSender, RepeatedWork):
    """Sends records to one partition, one after another."""

    def __init__(
        self, cluster_uri: str, topic: str, partitions: int, partition: int, config: Config = _CLIENT,
        has_keys: bool = False,
    ) -> None:  # fmt: skip
        first = (_PROBE + partition * _SPAN) * partitions + partition
        NumberSender.__init__(self, cluster_uri, topic, partitions, first, _PROBE_TIMEOUT, config, has_keys)
        RepeatedWork.__init__(self, f"probe of {topic}-{partition}", _PROBE_PAUSE)
        self.partition = partition

    def work(self) -> bool:
        """Sends one record."""
        return self.probe()


class LoadReader(RepeatedWork):
    """Reads a topic below the high watermarks from offset 0 on, and continues there after any error.

    `seen` has the records that it got. `out_of_order` counts records that did not have the next offset; of a topic that
    is compacted, those that had an earlier one. `skipped` counts offsets that it left out because they were deleted.
    """

    def __init__(self, cluster_uri: str, topic: str, partitions: int, is_compacted: bool = False) -> None:
        super().__init__(f"reader of {topic}")
        self._is_compacted = is_compacted
        self._topic = topic
        self._consumer = Consumer(cluster_uri, config=_CLIENT)
        self._view = TopicView(Cluster.open(cluster_uri))
        self.positions = dict.fromkeys(range(partitions), 0)
        self.seen: list[AcknowledgedRecord] = []
        self.out_of_order = 0
        self.skipped = 0
        self.errors: Counter[str] = Counter()

    def work(self) -> bool:
        """Reads once from all partitions."""
        try:
            answers = self._consumer.fetch(self._topic, self.positions)
        except LakelogException as error:
            self.errors[error.name] += 1
            return False
        for partition, answer in answers.items():
            if answer.error is None:
                self.take(partition, answer.records)
                if self._is_compacted:
                    self.positions[partition] = answer.next_offset
            else:
                self.errors[answer.error.name] += 1
                if isinstance(answer.error, OffsetOutOfRangeException):
                    self._skip(partition)
        return all(answer.error is None for answer in answers.values())

    def take(self, partition: int, records: pa.Table) -> None:
        """Stores records, and counts those that do not have the next offset."""
        for offset, value in zip(records["offset"].to_pylist(), records["value"].to_pylist(), strict=True):
            expected = self.positions[partition]
            self.out_of_order += offset < expected if self._is_compacted else offset != expected
            self.seen.append(AcknowledgedRecord(partition, offset, int(value)))
            self.positions[partition] = offset + 1

    def _skip(self, partition: int) -> None:
        """Continues at the log start if that is above the reader's position."""
        try:
            row = self._view.leaderships(self._topic, [partition])[partition].leader_row
        except LakelogException as error:
            self.errors[error.name] += 1
            return
        ahead = row.log_start_offset - self.positions[partition] if row else 0
        if ahead > 0:
            self.skipped += ahead
            self.positions[partition] += ahead


class TopicLoad:
    """The senders and the reader of one topic."""

    def __init__(
        self, cluster_uri: str, topic: str, partitions: int, config: Config = _CLIENT, is_compacted: bool = False
    ) -> None:
        self.topic, self.is_compacted = topic, is_compacted
        self._producers = [
            NumberProducer(cluster_uri, topic, partitions, first, records * partitions, timeout, config, is_compacted)
            for first, records, timeout in _PRODUCERS
        ]
        self.probes = [Probe(cluster_uri, topic, partitions, n, config, is_compacted) for n in range(partitions)]
        self.reader = LoadReader(cluster_uri, topic, partitions, is_compacted)
        self.meter = OutageMeter(cluster_uri, topic, partitions, config)

    @property
    def senders(self) -> list[NumberProducer | Probe]:
        """The producers and probes."""
        return [*self._producers, *self.probes]

    @property
    def acknowledged(self) -> list[AcknowledgedRecord]:
        """All records that the senders got acknowledgements for."""
        return [record for sender in (*self.senders, *self.meter.senders) for record in sender.acknowledged]

    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(len(sender.acknowledged) for sender in (*self.senders, *self.meter.senders))

    def has_begun(self) -> bool:
        """Whether every partition has acknowledged a record."""
        return all(probe.acknowledged for probe in self.probes)

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether the reader has reached these offsets."""
        return all(self.reader.positions[partition] >= end for partition, end in ends.items())


class SoakLoad:
    """The load on all topics, each with its number of partitions, and on those that are `compacted` records with keys.
    With `fsync` the producers sync what they write."""

    def __init__(
        self, cluster_uri: str, topics: Mapping[str, int], fsync: bool = False, compacted: Collection[str] = ()
    ) -> None:
        config = replace(_CLIENT, storage_fsync=fsync)
        self.topics: Sequence[TopicLoad] = [
            TopicLoad(cluster_uri, topic, number, config, topic in compacted) for topic, number in topics.items()
        ]

    def start(self) -> None:
        """Starts all senders and readers."""
        for load in self.topics:
            for work in (*load.senders, load.reader):
                work.start()

    def forget_waits(self) -> None:
        """Resets the waits: new brokers take long for the first records, and no fault is the reason."""
        for load in self.topics:
            for work in (*load.senders, load.reader):
                work.waits = Waits()

    def check(self) -> None:
        """Raises the error that ended a thread."""
        for load in self.topics:
            for work in (*load.senders, load.reader):
                work.check()

    def stop_senders(self) -> None:
        """Stops the senders after their current sends; the readers go on."""
        for load in self.topics:
            for sender in load.senders:
                sender.stop()

    def stop_readers(self) -> None:
        """Stops the readers after their current fetches."""
        for load in self.topics:
            load.reader.stop()

    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(load.count() for load in self.topics)
