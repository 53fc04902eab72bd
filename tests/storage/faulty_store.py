"""An object store that breaks its promises, one at a time."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from lakelog.verification.s3.server import Response, StoreServer, error
from tests.hanging import ends, in_background

Answer = Callable[[str, str, dict[str, str], bytes], Response]
Fault = Callable[[Answer, str, str, dict[str, str], bytes], Response]
SIGNATURE = "X-Amz-Signature="  # in a URL that is signed
BUCKET = "faulty"  # no other test asks one of that name: clients of a process are kept by it
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "told-to-nobody", "AWS_REGION": "us-east-1"}


class FaultyStore(StoreServer):
    """A store whose `fault` stands between a client and its answers."""

    fault: Fault | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        right = super().answer
        return (
            right(method, url, headers, body) if self.fault is None else self.fault(right, method, url, headers, body)
        )

    @property
    def options(self) -> dict[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}", "AWS_ALLOW_HTTP": "true"}

    def objects(self) -> list[str]:
        """The keys of the bucket."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)


@contextmanager
def faulty_store(folder: Path) -> Iterator[FaultyStore]:
    with FaultyStore(folder / BUCKET) as store:
        serving = in_background(lambda: store.serve_forever(0.01))
        yield store
        store.shutdown()
        assert ends(serving)


def is_listing(url: str) -> bool:
    return "list-type" in url


def ignores_conditions(answer, method, url, headers, body):
    return answer(method, url, {name: value for name, value in headers.items() if name != "if-none-match"}, body)


def answers_conditions_wrongly(answer, method, url, headers, body):
    found = answer(method, url, headers, body)
    return error(405, "MethodNotAllowed") if found.status == 412 else found


def overwrites_what_it_refuses(answer, method, url, headers, body):
    found = answer(method, url, headers, body)
    if found.status == 412:
        answer(method, url, {name: value for name, value in headers.items() if name != "if-none-match"}, body)
    return found


def lists_late():
    """Each listing is that of the one before."""
    seen: dict[str, Response] = {}

    def late(answer, method, url, headers, body):
        found = answer(method, url, headers, body)
        if not is_listing(url):
            return found
        last, seen[url] = seen.get(url, found), found
        return last

    return late


def reads_late():
    """A cache that never notices that a file was written again, or has gone."""
    cached: dict[str, Response] = {}

    def late(answer, method, url, headers, body):
        found = answer(method, url, headers, body)
        if method != "GET" or is_listing(url) or "range" in headers:
            return found
        if found.status == 200:
            cached.setdefault(url, found)
        return cached.get(url, found)

    return late


def changes_content(answer, method, url, headers, body):
    """A gateway that takes lines to end as on Windows."""
    found = answer(method, url, headers, body)
    if method != "GET" or is_listing(url) or found.status != 200:
        return found
    return found._replace(body=found.body.replace(b"\n", b"\r"))


def refuses(*methods: str) -> Fault:
    def refused(answer, method, url, headers, body):
        kind = "LIST" if is_listing(url) else method
        return error(403, "AccessDenied") if kind in methods else answer(method, url, headers, body)

    return refused


def with_other_keys(_answer, _method, _url, _headers, _body):
    return error(403, "InvalidAccessKeyId")


def an_hour_ahead(store: FaultyStore) -> Fault:
    def ahead(answer, method, url, headers, body):
        found = answer(method, url, headers, body)
        path = store.folder.parent / url.partition("?")[0].lstrip("/")
        if method == "PUT" and path.is_file():
            now = path.stat().st_mtime
            os.utime(path, (now + 3600, now + 3600))
        return found

    return ahead


def with_headers(prefix: str = "", **headers: str) -> Fault:
    """It sends these headers with each object whose key begins with the prefix."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def told(answer, method, url, headers, body):
        found, key = answer(method, url, headers, body), unquote(url.partition("?")[0]).removeprefix(f"/{BUCKET}/")
        is_object = found.status == 200 and key.startswith(prefix) and not is_listing(url)
        return found._replace(headers={**found.headers, **named}) if is_object else found

    return told


def expires(day: str = "Thu, 31 Dec 2026 00:00:00 GMT", rule: str = "old%20files", prefix: str = "") -> Fault:
    """Its bucket has a lifecycle rule that deletes objects whose keys begin with the prefix: S3 says so with each of
    them, at midnight of a day, and encodes the rule's id."""
    return with_headers(prefix, x_amz_expiration=f'expiry-date="{day}", rule-id="{rule}"')


def refuses_signed_urls(answer, method, url, headers, body):
    return error(403, "AccessDenied") if SIGNATURE in url else answer(method, url, headers, body)


def hangs(until: threading.Event) -> Fault:
    """It answers no request until it is let go."""

    def silent(answer, method, url, headers, body):
        until.wait()
        return answer(method, url, headers, body)

    return silent
