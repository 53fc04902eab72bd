"""The server: formats, compression, a cluster that goes away and comes back, and the process with its signals."""

import gzip
import http.client
import logging
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakelog.jobs import exporter
from lakelog.jobs.cli.addresses import Address
from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import OPEN_METRICS, TEXT_FORMAT, Labels, content_type
from lakelog.jobs.metrics.metrics_server import MetricsServer
from tests.clients.world import World
from tests.jobs.metrics.scraped import LONG, Page, scrape
from tests.processes import wait_until

OF_THE_SCRAPE = {"lakelog_up", "lakelog_scrape_duration_seconds"}


@pytest.fixture
def server(scrapes: ClusterScrapes) -> Iterator[MetricsServer]:
    server = MetricsServer(Address("127.0.0.1", 0), scrapes, "/lake/<cluster>")
    with server.in_background():
        yield server


def ask(
    server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT_FORMAT),
        ("*/*", TEXT_FORMAT),
        ("text/plain;version=0.0.4", TEXT_FORMAT),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/OpenMetrics-Text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", OPEN_METRICS),
    ],
)
def test_prometheus_gets_the_format_that_it_asks_for(server: MetricsServer, accept: str, form: str) -> None:
    status, headers, text = ask(server, Accept=accept)
    assert (status, headers["content-type"], content_type(accept)) == (200, form, form)
    assert Page(text.decode(), form).of("lakelog_up") == [1]
    assert text.endswith(b"# EOF\n") == (form == OPEN_METRICS)


def test_a_page_may_be_compressed(server: MetricsServer) -> None:
    _, headers, text = ask(server, Accept_Encoding="gzip")
    assert headers["content-encoding"] == "gzip"
    assert Page(gzip.decompress(text).decode()).of("lakelog_up") == [1]


@pytest.mark.parametrize(
    ("path", "method", "status", "content"),
    [
        ("/", "GET", 200, b'href="metrics"'),
        ("/", "GET", 200, b"/lake/&lt;cluster&gt;"),
        ("/", "HEAD", 200, b""),
        ("/metrics", "HEAD", 200, b""),
        ("/metrics?collect=all", "GET", 200, b"lakelog_up 1"),
        ("/nothing", "GET", 404, b"there is /metrics"),
        ("/metrics", "POST", 501, b"Unsupported method"),
    ],
)
def test_each_path_has_its_answer(
    server: MetricsServer, path: str, method: str, status: int, content: bytes
) -> None:  # fmt: skip
    found, _, text = ask(server, path, method)
    assert found == status
    assert content in text
    assert text or method == "HEAD"


def test_a_client_of_http_1_0_gets_no_pieces(server: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert Page(text.decode()).of("lakelog_up") == [1]


def test_several_clients_get_whole_pages_at_the_same_time(server: MetricsServer) -> None:
    pages: list[bytes] = []
    threads = [threading.Thread(target=lambda: pages.append(ask(server)[2])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [Page(text.decode()).of("kafka_brokers") for text in pages] == [[2]] * 4


def test_a_client_too_many_is_told_so_and_the_next_one_is_served(server: MetricsServer) -> None:
    server.most_clients = 2
    quiet = [socket.create_connection(("127.0.0.1", server.address.port)) for _ in range(2)]
    assert wait_until(lambda: ask(server)[0] == 503, "both are being served")
    for connection in quiet:
        connection.close()
    assert wait_until(lambda: ask(server)[0] == 200, "both have gone")


def test_a_client_that_takes_too_long_is_left(server: MetricsServer) -> None:
    server.longest_seconds = 0.0
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert connection.recv(1) == b""


@pytest.mark.parametrize("leaves", ["nothing", "an empty folder", "a file"])
def test_a_cluster_that_is_away_has_no_metrics_and_its_error_is_logged_once(
    world: World, scrapes: ClusterScrapes, leaves: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, away = scrape(scrapes), f"{world.uri}-away"
    shutil.move(world.uri, away)
    if leaves == "an empty folder":
        Path(world.uri).mkdir()
    elif leaves == "a file":
        Path(world.uri).touch()
    pages = [scrape(scrapes) for _ in range(5)]
    assert [page.of("lakelog_up") for page in pages] == [[0]] * 5
    assert {name for page in pages for name in page.names()} == OF_THE_SCRAPE
    logged = [record for record in caplog.records if record.name.endswith("exporter")]
    assert {record.levelno for record in logged} == {logging.WARNING}
    # The open tables meet one error, and opening them again may meet another one.
    assert len(logged) == len({record.getMessage() for record in logged}) <= 2
    assert all(record.exc_info is None for record in caplog.records)
    shutil.rmtree(world.uri) if Path(world.uri).is_dir() else Path(world.uri).unlink(missing_ok=True)
    shutil.move(away, world.uri)
    assert scrape(scrapes).names() == before.names()


def test_another_cluster_at_the_same_place_is_served_once_it_was_opened(
    world: World, scrapes: ClusterScrapes, tmp_path: Path
) -> None:
    shutil.rmtree(world.uri)
    shutil.move(World(str(tmp_path / "other")).uri, world.uri)
    first, second = scrape(scrapes), scrape(scrapes)
    assert (first.of("lakelog_up"), second.of("lakelog_up")) == ([0], [1])
    assert second.of("lakelog_controller_epoch") == []


def test_a_port_in_use_is_one_error(server: MetricsServer, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert exporter.main(["--cluster", world.uri, "--listen", str(server.address)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"lakelog: InvalidConfigurationException: --listen {server.address}: Address already in use"


def test_a_host_that_can_be_none_is_one_error(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert exporter.main(["--cluster", world.uri, "--listen", f"{'ä' * 70}:9308"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lakelog: InvalidConfigurationException: --listen {'ä' * 70}:9308: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(world: World, number: signal.Signals, tmp_path: Path) -> None:
    config = tmp_path / "monitor.properties"
    config.write_text("broker.session.timeout.ms=3600000\n")
    words = ["exporter", "--cluster", world.uri, "--listen", "127.0.0.1:0", "--command-config", str(config)]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.jobs", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = int(line.strip().removesuffix("/metrics").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/metrics")
        assert Page(connection.getresponse().read().decode()).of("kafka_brokers") == [2]
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, ""), line
    assert line == f"Serving the metrics of {world.uri} at http://127.0.0.1:{port}/metrics\n"


def test_an_exporter_of_a_cluster_with_three_roots_says_how_each_is(tmp_path: Path) -> None:
    world = World(str(tmp_path), cluster_roots=3)
    scrapes = ClusterScrapes(world.uri, LONG, Labels({}))
    roots = [f"{tmp_path}/cluster-{number}" for number in (1, 2, 3)]
    page = scrape(scrapes)
    for root in roots:
        assert page.of("lakelog_cluster_root_votes", root=root) == [1]
        assert page.of("lakelog_cluster_root_error", root=root) == [0]
        assert page.of("lakelog_cluster_root_commits_behind", root=root) == [0]
    shutil.move(roots[2], tmp_path / "away")
    page = scrape(scrapes)
    assert page.of("lakelog_up") == [1]
    assert page.of("lakelog_cluster_root_error", root=roots[2]) == [1]
    assert page.of("lakelog_cluster_root_error", root=roots[0]) == [0]
