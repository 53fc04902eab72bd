"""`python -m lakelog.verification.s3.server FOLDER`: a small object store on loopback that answers errors on
request. A test that freezes it gets a store that hangs.

The last part of FOLDER is the name of the bucket. The server writes its port to `<FOLDER>.port`, beside the folder.
While a file `<FOLDER>.errors` exists, it answers every request with 503, but still carries out every third put.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from lakelog.verification.s3.object_store import ObjectStore
from lakelog.verification.s3.requests import Request, Response, answer, error

_LOST_ANSWERS = 3  # every third put is carried out although the answer is an error


def port_file(folder: Path) -> Path:
    """The file to which the server writes its port."""
    return folder.with_name(f"{folder.name}.port")


def errors_file(folder: Path) -> Path:
    """The file that makes the server answer errors while it exists."""
    return folder.with_name(f"{folder.name}.errors")


class StoreServer(ThreadingHTTPServer):
    """Serves a folder as a bucket, on a free port."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._store = ObjectStore(folder)
        self._bucket = f"/{folder.name}"
        self._errors, self._parent = errors_file(folder), os.getppid()
        self._puts = 0
        self._lock = threading.Lock()

    def service_actions(self) -> None:
        """Ends with the process that has started this one, however that has ended."""
        if os.getppid() != self._parent:
            sys.exit(f"{self._bucket}: the process that started this store has ended")

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Carries out a request, answers an error instead, or does both."""
        path, _, query = url.partition("?")
        bucket, _, key = unquote(urlsplit(path).path).lstrip("/").partition("/")
        if f"/{bucket}" != self._bucket:
            return error(404, "NoSuchBucket")
        request = Request(method, key, dict(parse_qsl(query, keep_blank_values=True)), headers, body)
        if not self._errors.exists():
            return answer(self._store, request)
        if method == "PUT" and self._loses_answer():
            answer(self._store, request)
        return error(503, "SlowDown")

    def _loses_answer(self) -> bool:
        with self._lock:
            self._puts += 1
            return self._puts % _LOST_ANSWERS == 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: StoreServer

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def handle_expect_100(self) -> bool:
        """Answers `Expect: 100-continue` at once; otherwise the client would wait for a second."""
        answered = super().handle_expect_100()
        self.wfile.flush()
        return answered

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = _body(self.rfile, headers)
        response = self.server.answer(self.command, self.path, headers, body)
        self.send_response(response.status)
        for name, value in {"Content-Length": str(len(response.body)), **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815


def _body(stream: BufferedIOBase | BytesIO, headers: dict[str, str]) -> bytes:
    """The body of a request. A client may send it in chunks of HTTP, in chunks of S3, or both."""
    if "chunked" in headers.get("transfer-encoding", ""):
        body = _joined(stream)
    else:
        body = stream.read(int(headers.get("content-length", 0)))
    return _joined(BytesIO(body)) if "aws-chunked" in headers.get("content-encoding", "") else body


def _joined(stream: BufferedIOBase | BytesIO) -> bytes:
    """Joins chunks. A line with its size is before each; lines up to an empty one follow the last chunk, of size 0."""
    chunks = []
    while size := int(stream.readline().partition(b";")[0], 16):
        chunks.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(chunks)


def serve(kind: Callable[[Path], StoreServer], folder: Path) -> None:
    """Serves a folder, and writes the port to its file once the server listens. It does not return."""
    with kind(folder) as server:
        draft = port_file(folder).with_suffix(".draft")
        draft.write_text(str(server.server_port))
        draft.replace(port_file(folder))
        server.serve_forever()


if __name__ == "__main__":
    serve(StoreServer, Path(sys.argv[1]))
