"""A broker and a controller as processes: the metrics that each serves of itself, and its log as JSON."""

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lakelog.jobs import broker, controller
from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.metrics.exposition import OPEN_METRICS, SUMMARY, TEXT_FORMAT
from lakelog.jobs.metrics.process_metrics import JVM_UP, PROCESS_METRICS
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.clusters.process_cluster import SMALL
from lakelog.verification.server_process import ServerProcess
from tests.jobs.metrics.scraped import Page

SECONDS = 300.0
PORT = re.compile(r"serves its metrics at http://127\.0\.0\.1:(\d+)/metrics")
# A setting of Spark of which the JVM warns in its log.
DEPRECATED = ("--conf", "spark.kryoserializer.buffer.max.mb=8")
MEMORY = (1 << 24, 1 << 32)  # bytes that one of these processes may plausibly take


class Served(NamedTuple):
    """A process, and the port of its metrics."""

    process: ServerProcess
    port: int

    def page(self, form: str = TEXT_FORMAT) -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics", headers={"Accept": form.partition(";")[0]})
        text = connection.getresponse().read().decode()
        connection.close()
        return Page(text, form)

    def value(self, name: str, **labels: object) -> float:
        (found,) = self.page().of(name, **labels)
        return found

    def lines(self) -> list[dict[str, Any]]:
        """The lines of its log, each of which is an object."""
        return [json.loads(line) for line in self.process.log.read_text("utf-8").splitlines()]


@contextmanager
def started(name: str, words: tuple[str, ...], folder: Path) -> Iterator[Served]:
    process = ServerProcess(name, (*words, "--metrics-port", "0", "--log-format", "json"), folder / f"{words[0]}.log")
    process.start()
    try:

        def port() -> int | None:
            process.check()
            found = PORT.search(process.log.read_text("utf-8"))
            return int(found[1]) if found else None

        wait_until(lambda: port() is not None, f"{name} names the port", SECONDS)
        yield Served(process, port() or 0)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("served")
    format_cluster(StorageRoot.of(str(found / "cluster")), Config())
    return found


@pytest.fixture(scope="module")
def of_controller(folder: Path) -> Iterator[Served]:
    with started("controller", ("controller", "--cluster", str(folder / "cluster")), folder) as served:
        wait_until(lambda: served.page().of("lakelog_controller_active"), "there is a controller", SECONDS)
        yield served


@pytest.fixture(scope="module")
def of_broker(folder: Path, of_controller: Served) -> Iterator[Served]:
    where = ("--cluster", str(folder / "cluster"), "--root", str(folder / "broker"), "--broker-id", "7")
    with started("broker 7", ("broker", *SMALL, *DEPRECATED, *where), folder) as served:
        assert of_controller.process.is_running()
        wait_until(lambda: served.page().of("jvm_threads_current"), "the broker has a JVM", SECONDS)
        cluster = Cluster.open(str(folder / "cluster"), Config())
        wait_until(lambda: 7 in cluster.refresh_brokers(), "the broker is registered", SECONDS)
        yield served


def fields_of(pid: int | None) -> dict[str, str]:
    """What the operating system says of a process, from another file of it than the metrics come from."""
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines())


def check_process(served: Served) -> None:
    pid = served.process.pid
    page, fields = served.page(), fields_of(pid)
    (resident,), (virtual,) = page.of("process_resident_memory_bytes"), page.of("process_virtual_memory_bytes")
    assert resident == pytest.approx(int(fields["VmRSS"].split()[0]) * 1024, rel=0.3)
    assert virtual == pytest.approx(int(fields["VmSize"].split()[0]) * 1024, rel=0.3)
    (fds,), (most,) = page.of("process_open_fds"), page.of("process_max_fds")
    assert fds == pytest.approx(len(os.listdir(f"/proc/{pid}/fd")), abs=10)
    assert f"{most:.0f}" in Path(f"/proc/{pid}/limits").read_text()
    (began,) = page.of("process_start_time_seconds")
    assert began == pytest.approx(Path(f"/proc/{pid}").stat().st_ctime, abs=120)
    (cpu,) = page.of("process_cpu_seconds_total")
    assert 0 < cpu <= served.value("process_cpu_seconds_total")
    assert page.of("python_info", implementation="CPython") == [1]
    assert page.of("lakelog_build_info") == [1]
    assert len(page.of("python_gc_collections_total")) == 3
    assert page.of("lakelog_log_messages_total", level="ERROR") == [0]
    (polled,) = page.of("lakelog_last_poll_timestamp_seconds")
    assert began < polled
    wait_until(lambda: served.value("lakelog_last_poll_timestamp_seconds") > polled, "it polls on", SECONDS)


def names_of_metrics() -> set[str]:
    """The names of the samples of all metrics of a process."""
    of_each = ((m.name, f"{m.name}_count", f"{m.name}_sum") for m in PROCESS_METRICS if m.kind == SUMMARY)
    return {m.name for m in PROCESS_METRICS if m.kind != SUMMARY} | {n for _, *names in of_each for n in names}


def test_a_controller_serves_the_metrics_of_its_process(of_controller: Served) -> None:
    check_process(of_controller)
    wait_until(lambda: of_controller.value("lakelog_controller_active") == 1, "it is active", SECONDS)
    names = of_controller.page().names()
    assert not {name for name in names if name.startswith(("jvm_", "lakelog_jvm_", "lakelog_micro_"))}


def test_a_broker_serves_the_metrics_of_its_process_and_of_its_jvm(of_broker: Served) -> None:
    check_process(of_broker)
    page = of_broker.page()
    assert page.of(JVM_UP) == [1]
    for area in ("heap", "nonheap"):
        (used,), (held,) = (page.of(f"jvm_memory_{kind}_bytes", area=area) for kind in ("used", "committed"))
        assert MEMORY[0] < used <= held < MEMORY[1]
    assert page.of("jvm_memory_max_bytes", area="heap") == [pytest.approx(512 << 20, rel=0.1)], "--driver-memory"
    counts, sums = page.of("jvm_gc_collection_seconds_count"), page.of("jvm_gc_collection_seconds_sum")
    assert len(counts) == len(sums) == 2, "the serial collector of young and of old objects"
    assert sum(counts) > 0
    assert 0 < sum(sums) < 60
    assert page.of("jvm_threads_current")[0] > 10
    (resident,) = page.of("lakelog_jvm_process_resident_memory_bytes")
    assert MEMORY[0] < page.of("process_resident_memory_bytes")[0]
    assert 1 << 27 < resident < MEMORY[1]
    assert page.of("lakelog_jvm_process_open_fds")[0] > 10
    assert page.of("lakelog_jvm_process_cpu_seconds_total")[0] > 1
    missing = names_of_metrics() - page.names()
    assert missing == {
        "lakelog_controller_active",
        "lakelog_micro_batches_total",  # it follows nobody
        "lakelog_micro_batch_rows",
        "lakelog_micro_batch_seconds",
    }


def test_the_page_of_a_process_is_right_in_the_other_format_too(of_broker: Served) -> None:
    names = of_broker.page(OPEN_METRICS).names()
    assert names == of_broker.page().names()


def test_a_jvm_that_hangs_holds_up_neither_the_page_nor_the_broker(of_broker: Served, folder: Path) -> None:
    (jvm,) = (int(p.name) for p in Path("/proc").glob("[0-9]*") if is_child(p, of_broker.process.pid))
    os.kill(jvm, signal.SIGSTOP)
    try:
        page = of_broker.page()
        assert page.of(JVM_UP) == [0]
        assert not page.of("jvm_threads_current")
        assert page.of("process_open_fds")
        cluster = Cluster.open(str(folder / "cluster"), Config())
        beat = cluster.refresh_brokers()[7].heartbeat
        wait_until(lambda: cluster.refresh_brokers()[7].heartbeat > beat, "the broker's heart beats", SECONDS)
    finally:
        os.kill(jvm, signal.SIGCONT)
    wait_until(lambda: of_broker.value(JVM_UP) == 1, "the JVM answers again", SECONDS)


def is_child(process: Path, parent: int | None) -> bool:
    try:
        status = (process / "status").read_text()
    except OSError:  # it has ended
        return False
    return f"\nPPid:\t{parent}\n" in status and status.startswith("Name:\tjava")


def test_each_line_of_the_log_of_a_process_is_an_object(of_broker: Served, of_controller: Served) -> None:
    for served, kind in ((of_broker, "broker"), (of_controller, "controller")):
        lines = served.lines()
        own = [line for line in lines if line["process"] == kind]
        assert own
        for line in lines:
            assert {"ts", "level", "logger", "message", "process", kind} <= line.keys()
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
            assert datetime.fromisoformat(line["ts"]).tzinfo is not None
            assert line["level"] in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    lines = of_broker.lines()
    assert [line["epoch"] for line in lines if "is registered under epoch" in line["message"]] == [1]
    assert {line["broker"] for line in lines} == {"7"}
    of_jvm = {line["logger"]: line for line in lines if line["process"] == "jvm"}
    assert "incubator" in of_jvm["stderr"]["message"], "words of Java itself"
    warning = of_jvm["org.apache.spark.SparkConf"]
    assert "spark.kryoserializer.buffer.max.mb" in warning["message"]
    assert warning["level"] == "WARNING"


@pytest.mark.parametrize("verb", [broker, controller])
def test_a_port_in_use_is_one_error_before_anything_starts(
    verb: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = ["--root", str(folder / "another"), "--broker-id", "8"] if verb is broker else []
        assert verb.main(["--cluster", str(folder / "cluster"), *own, "--metrics-port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    words = f"--metrics-port {port} at 127.0.0.1: Address already in use"
    assert line == f"lakelog: InvalidConfigurationException: {words}"
    assert not (folder / "another").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--metrics-host", "::1"], "--metrics-host goes with --metrics-port only"),
        (["--metrics-port", "1", "--metrics-host", "a/b"], "--metrics-host: 'a/b' is not the name or address of a"),
        (["--metrics-port", "70000"], "--metrics-port: "),
        (["--metrics-port", "1", "--describe"], "--metrics-port is for a controller that runs"),
        (["--log-format", "xml"], "--log-format: invalid choice: 'xml'"),
    ],
)
def test_a_wrong_option_is_one_error(
    words: list[str], error: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert controller.main(["--cluster", str(folder / "cluster"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line


def test_the_processes_end_in_order_with_their_ports(of_broker: Served, of_controller: Served) -> None:
    assert of_broker.process.stop(SECONDS) == 0
    assert of_controller.process.stop(SECONDS) == 0
    for served in (of_broker, of_controller):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", served.port))
        assert served.lines()[-1]["level"] in ("INFO", "WARNING"), "also the last lines are objects"
