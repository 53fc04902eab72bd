"""What a process counts for its metrics, and that a scrape keeps nobody from counting."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakelog.jobs.metrics.exposition import TEXT_FORMAT, page
from lakelog.jobs.metrics.jvm_figures import JvmReader
from lakelog.jobs.metrics.process_metrics import JVM_UP, ProcessScrapes, ServerFigures, process_figures
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_requests import DOLLARS
from tests.hanging import ends, in_background, raises
from tests.jobs.metrics.scraped import Page
from tests.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture
def scrapes() -> Iterator[ProcessScrapes]:
    logger = logging.getLogger("lakelog")
    before = list(logger.handlers)
    yield ProcessScrapes()
    logger.handlers[:] = before


def scraped(scrapes: ProcessScrapes) -> Page:
    return Page(b"".join(page(scrapes.scrape(), TEXT_FORMAT)).decode())


def test_requests_are_counted_with_their_price(scrapes: ProcessScrapes, s3_options: dict[str, str]) -> None:
    before = scraped(scrapes)
    root = StorageRoot.of("s3://bucket/of-a-process", s3_options)
    root.write("a", b"1")
    assert root.read("a") == b"1"
    assert root.list() == ["a"]
    root.delete("a")
    after = scraped(scrapes)
    more = {m: after.of("lakelog_store_requests_total", method=m)[0] for m in DOLLARS}
    more = {m: count - before.of("lakelog_store_requests_total", method=m)[0] for m, count in more.items()}
    assert more == {"PUT": 1, "GET": 1, "LIST": 1, "DELETE": 1, "HEAD": 0, "POST": 0}
    (cost,), (was,) = (found.of("lakelog_store_dollars_total") for found in (after, before))
    assert cost - was == pytest.approx((5 + 0.4 + 5) / 1e6)
    for method, count in more.items():
        (spent,), (earlier,) = (f.of("lakelog_store_request_seconds_total", method=method) for f in (after, before))
        assert (spent > earlier) == (count > 0)


def test_messages_and_errors_are_counted(scrapes: ProcessScrapes) -> None:
    errors = ErrorLog(logging.getLogger("lakelog.tests"), "broker-3: counting")
    assert scraped(scrapes).of("lakelog_errors_total", work="counting") == [0]
    for _ in range(3):
        errors.failed(KafkaStorageException("away"))
    logging.getLogger("lakelog.tests").error("an error")
    found = scraped(scrapes)
    assert found.of("lakelog_errors_total", work="counting") == [3]
    assert found.of("lakelog_log_messages_total", level="WARNING") == [1], "the log has equal errors once"
    assert found.of("lakelog_log_messages_total", level="ERROR") == [1]


def test_the_names_of_works_do_not_depend_on_the_process(scrapes: ProcessScrapes) -> None:
    for name in ("broker 90417", "controller host-1-a2b3", "broker-90417: beat", "beat"):
        ErrorLog(logging.getLogger("lakelog.tests"), name).failed(KafkaStorageException("away"))
    found = scraped(scrapes)
    assert found.of("lakelog_errors_total", work="beat") == [2]
    assert found.of("lakelog_errors_total", work="round")[0] >= 2
    works = [sample.labels["work"] for sample in found.samples if sample.name == "lakelog_errors_total"]
    assert not [work for work in works if "host-1-a2b3" in work or "90417" in work]


def test_a_server_says_when_it_has_polled_and_whether_it_is_active(scrapes: ProcessScrapes) -> None:
    for active in (True, False):
        scrapes.server = lambda active=active: ServerFigures(1234.5, active)  # type: ignore[misc]
        found = scraped(scrapes)
        assert found.of("lakelog_last_poll_timestamp_seconds") == [1234.5]
        assert found.of("lakelog_controller_active") == [active]


def test_a_scrape_that_hangs_keeps_nobody_from_counting(scrapes: ProcessScrapes, s3_options: dict[str, str]) -> None:
    is_there, goes_on = threading.Event(), threading.Event()

    def hangs() -> None:
        is_there.set()
        goes_on.wait()

    scrapes.jvm = hangs
    thread = in_background(lambda: scraped(scrapes))
    is_there.wait()
    try:
        StorageRoot.of("s3://bucket/of-a-process", s3_options).list()
        ErrorLog(logging.getLogger("lakelog.tests"), "during a scrape").failed(KafkaStorageException("away"))
        scrapes.jvm = None
        assert scraped(scrapes).of("lakelog_errors_total", work="during a scrape") == [1]
    finally:
        goes_on.set()
        assert ends(thread)


def test_a_process_that_has_ended_has_no_figures() -> None:
    assert process_figures(0) is None


def test_the_micro_batches_of_a_query_are_counted_also_after_another_start(
    spark: "SparkSession", scrapes: ProcessScrapes, tmp_path: Path
) -> None:
    """A follower's query runs for half a minute before a micro-batch ends, so this is another one."""
    name = "broker-2:ReplicaFetcherThread-0-1"

    def start(folder: str) -> "StreamingQuery":
        rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        writer = rows.writeStream.format("noop").queryName(name)
        return writer.option("checkpointLocation", str(tmp_path / folder)).start()

    def count() -> float:
        return max(
            scraped(scrapes).of("lakelog_micro_batches_total", query="broker-2:ReplicaFetcherThread-0-1"), default=0
        )

    query = start("first")
    scrapes.jvm = JvmReader(spark, lambda: [query]).read
    try:
        wait_until(lambda: count() >= 2, "two have ended")
        found = scraped(scrapes)
        assert found.of(JVM_UP) == [1]
        assert found.of("lakelog_micro_batch_rows", query=name)[0] >= 0
        (whole,) = found.of("lakelog_micro_batch_seconds", query=name, phase="triggerExecution")
        assert whole >= max(found.of("lakelog_micro_batch_seconds", query=name)) > 0
        query.stop()
        before = count()
        assert before == count(), "none ends any more"
        query = start("second")
        wait_until(lambda: count() > before, "the second run goes on with the count")
    finally:
        query.stop()


def test_a_jvm_that_does_not_answer_is_down_and_up_again_once_it_does(
    spark: "SparkSession", scrapes: ProcessScrapes
) -> None:
    goes_on = threading.Event()

    def none() -> list["StreamingQuery"]:
        goes_on.wait()
        return []

    scrapes.jvm = JvmReader(spark, none).read
    try:
        found = scraped(scrapes)
        assert found.of(JVM_UP) == [0]
        assert not found.of("jvm_threads_current")
    finally:
        goes_on.set()
    assert wait_until(lambda: scraped(scrapes).of("jvm_threads_current"), "it answers")


def test_an_error_of_the_jvm_is_no_error_of_the_scrape(spark: "SparkSession", scrapes: ProcessScrapes) -> None:
    scrapes.jvm = JvmReader(spark, raises(KafkaStorageException("no queries"))).read  # type: ignore[arg-type]
    found = scraped(scrapes)
    assert found.of(JVM_UP) == [0]
    assert scraped(scrapes).of("lakelog_errors_total", work="metrics of the JVM")[0] >= 1
