"""Carries out S3 requests on an object store: those that delta-rs and obstore send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from lakelog.verification.s3.object_store import NoSuchKey, ObjectStore, PreconditionFailed, Stored

_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_PAGE = 1000
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


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
        return Response(200, content, _told(stored))
    first, last = wanted.groups()
    start = int(first) if first else max(0, len(content) - int(last))
    stop = min(int(last) + 1, len(content)) if first and last else len(content)
    if start >= len(content):
        return error(416, "InvalidRange")
    told = {**_told(stored), "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    return Response(206, content[start:stop], told)


def _head(store: ObjectStore, request: Request) -> Response:
    if not request.key:
        return Response(200)
    stored = store.head(request.key)
    return Response(200, b"", {**_told(stored), "Content-Length": str(stored.size)})


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
        told = f"<Key>{escape(request.key)}</Key><ETag>{stored.etag}</ETag>"
        return _xml("CompleteMultipartUploadResult", told)
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
    told = f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size><StorageClass>STANDARD</StorageClass>"
    return f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>{told}</Contents>"


def _xml(name: str, body: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} {_NAMESPACE}>{body}</{name}>'
    return Response(200, text.encode(), {"Content-Type": "application/xml"})


def _told(stored: Stored) -> dict[str, str]:
    modified = formatdate(stored.modified, usegmt=True)
    return {"ETag": stored.etag, "Last-Modified": modified, "Content-Type": "application/octet-stream"}


_METHODS = {"GET": _get, "HEAD": _head, "PUT": _put, "POST": _post, "DELETE": _delete}
