"""The exporter as a server: each scrape reads the cluster anew. While the cluster cannot be read, it serves
`lakelog_up 0`, and no metric of an earlier scrape."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import NamedTuple

from lakelog.jobs.metrics.cluster_counters import ClusterCounters
from lakelog.jobs.metrics.exposition import Family, Labels, content_type, page
from lakelog.jobs.metrics.metric_families import metric_families, scrape_families
from lakelog.jobs.metrics.scrape_reader import Scrape, ScrapeReader
from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import InvalidConfigurationException, LakelogException

logger = logging.getLogger(__name__)

_CLIENT_SECONDS = 30.0  # a client that reads or writes nothing for so long is left
_GZIP = 31  # zlib: with a header of gzip
_FASTEST = 1  # level of compression: higher ones take several times as long for this text


class Address(NamedTuple):
    """Where the exporter listens. An IPv6 address is without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterScrapes:
    """The scrapes of one cluster. They come one after another, whoever asks."""

    def __init__(self, uri: str, config: Config, labels: Labels, has_sizes: bool = False) -> None:
        """Reads the cluster once, so that counters begin here. `has_sizes`: see `ScrapeReader`. Raises as
        `Cluster.open` and `ScrapeReader.read`."""
        self._open, self._labels = partial(ScrapeReader, uri, config, has_sizes), labels
        self._lock = threading.Lock()
        self._counters = ClusterCounters()
        self._errors = ErrorLog(logger, "scrape")
        self._reader: ScrapeReader | None = self._open()
        self._counters.observe(self._reader.read())

    def scrape(self) -> Iterator[Family]:
        """Reads the cluster, and returns its metrics as they are now. Several threads read it one after another."""
        with self._lock:
            started = time.monotonic()
            found = self._read()
            counts = None if found is None else self._counters.observe(found)
            seconds = time.monotonic() - started
        of_scrape = scrape_families(found is not None, seconds, self._labels)
        if found is None or counts is None:
            return of_scrape
        return chain(of_scrape, metric_families(found, counts, self._labels))

    def _read(self) -> Scrape | None:
        """None if the cluster root cannot be read. Then the next scrape opens it anew."""
        try:
            self._reader = self._reader or self._open()
            found = self._reader.read()
        except (LakelogException, OSError) as error:
            self._reader = None
            self._errors.failed(error)
            return None
        self._errors.worked()
        return found


class MetricsServer(ThreadingHTTPServer):
    """Serves the metrics at `/metrics`, and a page with a link at `/`."""

    daemon_threads = True  # a scrape that hangs in a store does not keep the process

    def __init__(self, address: Address, scrapes: ClusterScrapes, title: str) -> None:
        """Raises InvalidConfigurationException if it cannot listen there."""
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.scrapes, self.title = scrapes, title
        try:
            super().__init__(address, _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidConfigurationException(f"--listen {address}: {reason}") from None
        self.address = Address(address.host, self.server_address[1])  # the port that was free, if 0 was given

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no error of ours."""
        is_ours = not isinstance(sys.exception(), OSError)
        logger.log(logging.ERROR if is_ours else logging.DEBUG, "request of %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "lakelog", ""
    protocol_version = "HTTP/1.1"  # a page that is cut short must not look whole: its pieces say when it ends
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:
        self.close_connection = True
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send_metrics()
        elif path == "/":
            self._send_links()
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "there is /metrics")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_metrics(self) -> None:
        form = content_type(self.headers.get("Accept", ""))
        is_zipped = "gzip" in self.headers.get("Accept-Encoding", "")
        is_framed = self.request_version == "HTTP/1.1"
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", form)
        for name, value, is_sent in (
            ("Content-Encoding", "gzip", is_zipped),
            ("Transfer-Encoding", "chunked", is_framed),
            ("Connection", "close", True),
        ):
            if is_sent:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        pieces = page(self.server.scrapes.scrape(), form)
        for piece in _zipped(pieces) if is_zipped else pieces:
            if piece:  # an empty one would end the page
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_framed else piece)
        if is_framed:
            self.wfile.write(b"0\r\n\r\n")

    def _send_links(self) -> None:
        title = escape(self.server.title)
        text = (
            f'<!DOCTYPE html><html lang="en"><title>Lakelog exporter</title><h1>Lakelog exporter</h1>'
            f'<p>{title}</p><p><a href="metrics">Metrics</a></p></html>\n'
        ).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s: %s", self.client_address[0], format % args)


def _zipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    whole = zlib.compressobj(_FASTEST, wbits=_GZIP)
    for piece in pieces:
        yield whole.compress(piece)
    yield whole.flush()
