"""A steady load on a topic while a broker dies and comes back: when each send was acknowledged, and who led when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from lakelog.jobs.demo.failover_picture import FailoverRun
from lakelog.jobs.web.metadata_timeline import MetadataTimeline
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.storage.cluster import Cluster

SEND = 50  # records
_IN_FLIGHT = 20  # sends that wait for their acknowledgement
_TIMEOUT_MS = 120_000
_WARM_UP, _BEFORE, _AFTER, _BACK, _SHOWN = 3.0, 5.0, 3.0, 5.0, 20.0  # seconds, see `run_over_a_failure`


class SteadyLoad:
    """Sends a few records at a time with acks=all, in a thread of its own, until its block ends. `acknowledged`: when
    each send was acknowledged, in seconds since the epoch. `sent`: the number of records. The end of the block raises
    the first error of a send."""

    def __init__(self, cluster_uri: str, topic: str, records: pa.Table) -> None:
        self._producer, self._topic, self._records = Producer(cluster_uri, acks="all"), topic, records
        self._room, self._ends = threading.Semaphore(_IN_FLIGHT), threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._send_all)
        self.acknowledged: list[float] = []
        self.sent = 0

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def _send_all(self) -> None:
        try:
            with self._producer:
                while not self._ends.is_set() and not self._errors and self.sent < self._records.num_rows:
                    self._room.acquire()
                    part = self._records.slice(self.sent, SEND)
                    future = self._producer.send_async(self._topic, part, timeout_ms=_TIMEOUT_MS)
                    self.sent += part.num_rows
                    future.add_done_callback(self._end)
        except Exception as error:  # the end of the block raises it
            self._errors.append(error)

    def _end(self, future: Future[dict[int, RecordMetadata]]) -> None:
        try:
            raise_first_error(future.result())
            self.acknowledged.append(time.time())
        except Exception as error:
            self._errors.append(error)
        finally:
            self._room.release()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Lets the load go on until the condition is true, a send has failed, or no record is left."""
        while self._thread.is_alive() and not self._errors and not condition():
            self._ends.wait(0.05)

    def go_on_until(self, at: float) -> None:
        """Lets the load go on until a time, in seconds since the epoch."""
        self.wait_until(lambda: time.time() >= at)


class Failure(NamedTuple):
    """A failure under load. `cause` causes it, and returns a text for it. `repair` undoes it, with the text `repaired`;
    None: it lasts."""

    cause: Callable[[], str]
    repair: Callable[[], None] | None
    repaired: str


def run_over_a_failure(
    cluster_uri: str, topic: str, records: pa.Table, failure: Failure
) -> tuple[FailoverRun, int, int]:
    """Sends records, after 3 seconds of warm-up, for 20 seconds, or longer if the failover takes long. The failure
    comes after 5 seconds. It is repaired 3 seconds after sends are acknowledged again, and at least 5 more seconds
    follow.

    Returns the run, the number of records that were sent, and the ms from the failure to the first acknowledgement
    after the longest time without one. Raises LakelogException if a send fails."""
    with SteadyLoad(cluster_uri, topic, records) as load:
        begin = time.time() + _WARM_UP
        load.go_on_until(begin + _BEFORE)
        failed = time.time()
        words, before = failure.cause(), len(load.acknowledged)
        load.wait_until(lambda: len(load.acknowledged) > before + _IN_FLIGHT)  # one that began after the failure
        times = [failed, *(at for at in load.acknowledged if at > failed)]
        resumed = max(pairwise(times), key=lambda pair: pair[1] - pair[0], default=(failed, failed))[1]
        marks = [(failed, words), (resumed, "sends are acknowledged again")]
        if failure.repair is not None:
            load.go_on_until(resumed + _AFTER)
            failure.repair()
            marks.append((time.time(), failure.repaired))
        load.go_on_until(max(begin + _SHOWN, marks[-1][0] + _BACK))
        end = time.time()
    cluster = Cluster.open(cluster_uri)
    known = MetadataTimeline(cluster.root, cluster.cluster_id).read_on().topic(topic)
    run = FailoverRun(begin, end, load.acknowledged, marks, known.changes(known.partitions))
    return run, load.sent, round((resumed - failed) * 1000)
