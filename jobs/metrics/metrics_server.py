"""A server of metrics for Prometheus, which asks for them anew for each page.

It is a guest of its process. So few clients are served at a time, each for a limited time, and none keeps the process
from its end.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from lakelog.jobs.cli.addresses import Address, cannot_listen
from lakelog.jobs.metrics.exposition import Family, content_type, page

logger = logging.getLogger(__name__)

_CLIENT_SECONDS = 30.0  # how long a client may read and write nothing before it is left
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_PAUSE = 0.1  # s in which the server hears that it is to stop
_GZIP = 31  # zlib: with a header of gzip
_FASTEST = 1  # level of compression: higher ones take several times as long for this text


class Scrapes(Protocol):
    """The source of the pages that a server serves."""

    def scrape(self) -> Iterator[Family]:
        """The metrics as they are now. Several threads call it at a time."""


class MetricsServer(ThreadingHTTPServer):
    """Serves the metrics at `/metrics`, and a page with a link at `/`."""

    daemon_threads = True  # a scrape that hangs in a store does not keep the process
    most_clients = 16  # at a time
    longest_seconds = 120.0  # for a client, also a slow one

    def __init__(self, address: Address, scrapes: Scrapes, title: str, given: str = "") -> None:
        """`given`: the options with the address, if not --listen. Raises InvalidConfigurationException if it cannot
        listen there."""
        self.address_family = address.family
        self.scrapes, self.title = scrapes, title
        self._clients: dict[socket.socket, float] = {}  # when each came
        try:
            super().__init__(address, _Handler)
        except (OSError, OverflowError, TypeError) as error:  # a TypeError: a name that no host can have
            raise cannot_listen(given or f"--listen {address}", error) from None
        self.address = Address(address.host, self.server_address[1])  # the port that was free, if 0 was given

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Serves on a thread until the block ends; clients that are there then are left."""
        threading.Thread(target=self.serve_forever, args=(_PAUSE,), name="metrics", daemon=True).start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a client on a thread of its own, unless there are too many."""
        if len(self._clients) >= self.most_clients:
            with suppress(OSError):
                request.setblocking(False)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        self._clients[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Leaves clients that are there for too long: each byte that one reads or writes would begin its time anew."""
        for client, since in list(self._clients.items()):
            if time.monotonic() - since > self.longest_seconds:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        """Ends with a client."""
        self._clients.pop(request, None)
        super().close_request(request)

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

    do_HEAD = do_GET  # noqa: N815 (the name of the library)

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
            f'<!DOCTYPE html><html lang="en"><title>Lakelog metrics</title><h1>Lakelog metrics</h1>'
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
