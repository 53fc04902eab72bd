"""`python -m lakelog.verification.s3.server FOLDER`: a small object store on loopback that answers errors on
request. A test that freezes it gets a store that hangs.

The last part of FOLDER is the name of the bucket. The server writes its port to `<FOLDER>.port`, beside the folder.
While a file `<FOLDER>.errors` exists, it answers every request with 503, but still carries out every third put.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from lakelog.jobs.cli.waiting import wait_until
from lakelog.verification.server_process import ServerProcess

_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_PAGE = 1000
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_UPLOADS = ".uploads"
_LOST_ANSWERS = 3  # every third put is carried out although the answer is an error
_PATIENCE_SECONDS = 60.0


class Request(NamedTuple):
    """A request for a key of the bucket, or without a key for the bucket itself. Names of headers are in lower case."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


class Response(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def error(status: int, code: str) -> Response:
    """An error response in the format of S3."""
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    return Response(status, body, {"Content-Type": "application/xml"})


def answer(store: ObjectStore, request: Request) -> Response:
    """Carries out a request."""
    try:
        return _METHODS[request.method](store, request)
    except NoSuchKey:
        return error(404, "NoSuchKey")
    except PreconditionFailed:
        return error(412, "PreconditionFailed")


def _get(store: ObjectStore, request: Request) -> Response:
    if not request.key:
        return _list(store, request.query)
    stored, content = store.head(request.key), store.get(request.key)
    wanted = _RANGE.fullmatch(request.headers.get("range", ""))
    if not wanted:
        return Response(200, content, _headers(stored))
    first, last = wanted.groups()
    start = int(first) if first else max(0, len(content) - int(last))
    stop = min(int(last) + 1, len(content)) if first and last else len(content)
    if start >= len(content):
        return error(416, "InvalidRange")
    headers = {**_headers(stored), "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    return Response(206, content[start:stop], headers)


def _head(store: ObjectStore, request: Request) -> Response:
    if not request.key:
        return Response(200)
    stored = store.head(request.key)
    return Response(200, b"", {**_headers(stored), "Content-Length": str(stored.size)})


def _put(store: ObjectStore, request: Request) -> Response:
    query, only_new = request.query, request.headers.get("if-none-match") == "*"
    if "uploadId" in query:
        store.put_part(query["uploadId"], int(query["partNumber"]), request.body)
        return Response(200, b"", {"ETag": f'"{query["partNumber"]}"'})
    source = request.headers.get("x-amz-copy-source")
    if source is not None:
        copied = store.put(request.key, store.get(unquote(source.lstrip("/").partition("/")[2])), only_new)
        return _xml("CopyObjectResult", f"<ETag>{escape(copied.etag)}</ETag>")
    return Response(200, b"", {"ETag": store.put(request.key, request.body, only_new).etag})


def _post(store: ObjectStore, request: Request) -> Response:
    if "uploads" in request.query:
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{store.begin_upload()}</UploadId>")
    if "uploadId" in request.query:
        only_new = request.headers.get("if-none-match") == "*"
        stored = store.complete_upload(request.query["uploadId"], request.key, only_new)
        result = f"<Key>{escape(request.key)}</Key><ETag>{stored.etag}</ETag>"
        return _xml("CompleteMultipartUploadResult", result)
    keys = [key.decode() for key in _KEY.findall(request.body)]
    for key in keys:
        store.delete(unescape(key))
    return _xml("DeleteResult", "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys))


def _delete(store: ObjectStore, request: Request) -> Response:
    if "uploadId" in request.query:
        store.abort_upload(request.query["uploadId"])
    else:
        store.delete(request.key)
    return Response(204)


def _list(store: ObjectStore, query: Mapping[str, str]) -> Response:
    after = max(query.get("start-after", ""), query.get("continuation-token", ""))
    found = store.list(query.get("prefix", ""), query.get("delimiter", ""), after)
    page = found[: min(_PAGE, int(query.get("max-keys", _PAGE)))]
    body = "".join(map(_listed, page)) + f"<KeyCount>{len(page)}</KeyCount>"
    if len(page) < len(found) and page:
        body += f"<NextContinuationToken>{escape(page[-1].key)}</NextContinuationToken>"
    is_truncated = str(len(page) < len(found)).lower()
    return _xml("ListBucketResult", f"{body}<IsTruncated>{is_truncated}</IsTruncated>")


def _listed(stored: Stored) -> str:
    key = escape(stored.key)
    if stored.size is None:
        return f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"
    modified = datetime.fromtimestamp(stored.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    fields = f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size><StorageClass>STANDARD</StorageClass>"
    return f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>{fields}</Contents>"


def _xml(name: str, body: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} {_NAMESPACE}>{body}</{name}>'
    return Response(200, text.encode(), {"Content-Type": "application/xml"})


def _headers(stored: Stored) -> dict[str, str]:
    modified = formatdate(stored.modified, usegmt=True)
    return {"ETag": stored.etag, "Last-Modified": modified, "Content-Type": "application/octet-stream"}


_METHODS = {"GET": _get, "HEAD": _head, "PUT": _put, "POST": _post, "DELETE": _delete}


class NoSuchKey(Exception):
    """No object has this key."""


class PreconditionFailed(Exception):
    """The request requires that no object has this key, but one exists."""


@dataclass(frozen=True)
class Stored:
    """An object in a listing. Without a size, it is a group of keys with a common prefix."""

    key: str
    size: int | None = None
    modified: float = 0.0
    etag: str = ""


class ObjectStore:
    """The objects below a folder. Any number of threads may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads = folder / _UPLOADS
        self._uploads.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, content: bytes, only_new: bool) -> Stored:
        """Writes an object. With `only_new`, only the first writer of a key succeeds. Raises PreconditionFailed."""
        path, draft = self._path(key), self._uploads / uuid.uuid4().hex
        draft.write_bytes(content)
        try:
            self._publish(draft, path, only_new)
        finally:
            draft.unlink(missing_ok=True)
        return self.head(key)

    def _publish(self, draft: Path, path: Path, only_new: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not only_new:
            draft.replace(path)
            return
        try:
            os.link(draft, path)
        except FileExistsError:
            raise PreconditionFailed(path) from None

    def get(self, key: str) -> bytes:
        """The content of an object. Raises NoSuchKey."""
        try:
            return self._path(key).read_bytes()
        except OSError:
            raise NoSuchKey(key) from None

    def head(self, key: str) -> Stored:
        """The size (bytes) and the time of an object. Raises NoSuchKey."""
        path = self._path(key)
        if not path.is_file():
            raise NoSuchKey(key)
        return _stored(key, path)

    def delete(self, key: str) -> None:
        """Deletes an object. A missing object is no error, nor is a folder, because S3 has no folders."""
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):
            self._path(key).unlink(missing_ok=True)

    def list(self, prefix: str, delimiter: str, after: str) -> list[Stored]:
        """The objects whose keys begin with `prefix` and come after `after`, in order. Keys with the delimiter after
        the prefix are grouped by their common prefix."""
        parent, _, _ = prefix.rpartition("/")
        found = self._below(parent + "/" if parent else "", prefix, delimiter)
        return sorted((stored for stored in found if stored.key > after), key=lambda stored: stored.key)

    def _below(self, parent: str, prefix: str, delimiter: str) -> Iterator[Stored]:
        try:
            entries = list(os.scandir(self._folder / parent))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = parent + entry.name
            if entry.name == _UPLOADS or not (key + "/").startswith(prefix):
                continue
            if not entry.is_dir():
                yield from self._listed(key, prefix)
            elif not delimiter:
                yield from self._below(key + "/", prefix, delimiter)
            elif any(files for _, _, files in os.walk(self._folder / key)):
                yield Stored(key + "/")

    def _listed(self, key: str, prefix: str) -> Iterator[Stored]:
        try:
            if key.startswith(prefix):
                yield _stored(key, self._folder / key)
        except FileNotFoundError:
            return  # it has just been deleted

    def begin_upload(self) -> str:
        """Begins an upload in parts and returns its id."""
        upload = uuid.uuid4().hex
        (self._uploads / upload).mkdir()
        return upload

    def put_part(self, upload: str, number: int, content: bytes) -> None:
        """Stores a part."""
        (self._uploads / upload / f"{number:05}").write_bytes(content)

    def complete_upload(self, upload: str, key: str, only_new: bool) -> Stored:
        """Joins the parts to an object. Raises PreconditionFailed."""
        parts = sorted((self._uploads / upload).iterdir())
        stored = self.put(key, b"".join(part.read_bytes() for part in parts), only_new)
        self.abort_upload(upload)
        return stored

    def abort_upload(self, upload: str) -> None:
        """Deletes the parts."""
        for part in (self._uploads / upload).iterdir():
            part.unlink()
        (self._uploads / upload).rmdir()

    def _path(self, key: str) -> Path:
        if ".." in key.split("/") or key.startswith("/"):
            raise NoSuchKey(key)
        return self._folder / key


def _stored(key: str, path: Path) -> Stored:
    found = path.stat()
    return Stored(key, found.st_size, found.st_mtime, f'"{found.st_mtime_ns:x}-{found.st_size:x}"')


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
    parent: int | None = None  # the process with which a store in a process of its own ends

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._store = ObjectStore(folder)
        self._bucket = f"/{folder.name}"
        self._errors = errors_file(folder)
        self._puts = 0
        self._lock = threading.Lock()

    def service_actions(self) -> None:
        """Ends with the process that has started this one, however that has ended."""
        if self.parent is not None and os.getppid() != self.parent:
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
        server.parent = os.getppid()
        draft = port_file(folder).with_suffix(".draft")
        draft.write_text(str(server.server_port))
        draft.replace(port_file(folder))
        server.serve_forever()


class StoreProcess(ServerProcess):
    """The process of an object store. Its objects are the files of a folder, whose name is that of the bucket."""

    module = "lakelog.verification.s3.server"

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__("store", (str(folder),), log)
        self.program = (sys.executable, "-m", self.module)
        self.folder = folder

    def await_options(self) -> dict[str, str]:
        """The options for clients, once the store listens. Raises BrokerNotAvailableException, TimeoutException."""

        def listens() -> bool:
            self.check()
            return port_file(self.folder).exists()

        wait_until(listens, "the store listens", _PATIENCE_SECONDS)
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port_file(self.folder).read_text()}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        }

    def begin_errors(self) -> None:
        """Makes the store answer every request with an error."""
        errors_file(self.folder).touch()

    def end_errors(self) -> None:
        """Makes the store work again."""
        errors_file(self.folder).unlink(missing_ok=True)

    @property
    def has_errors(self) -> bool:
        """Whether the store answers every request with an error."""
        return errors_file(self.folder).exists()


if __name__ == "__main__":
    serve(StoreServer, Path(sys.argv[1]))
