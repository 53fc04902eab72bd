"""The console as an ASGI application: its routes, its error pages, and what keeps a browser from being misused.

A page is complete HTML. It has no inline style and no inline script, so that the Content-Security-Policy forbids both:
text of a record that escaped the templates could still not run. Every answer has the same headers.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lakelog.jobs.admin.heartbeats import ago
from lakelog.jobs.cli.console import one_line
from lakelog.jobs.cli.numbers import size_text
from lakelog.jobs.web.cluster_pages import broker, brokers, events, overview, reassignments, what_if
from lakelog.jobs.web.group_pages import group, groups
from lakelog.jobs.web.history_pages import cluster_history, topic_history
from lakelog.jobs.web.page_kit import Console, Content, Page, PageError, PageRequest, Query, Sources, group_url, url
from lakelog.jobs.web.record_pages import messages
from lakelog.jobs.web.topic_pages import consumers, topic, topic_configs, topics
from lakelog.replication.errors import (
    GroupIdNotFoundException,
    LakelogException,
    UnknownTopicIdException,
    UnknownTopicOrPartitionException,
)

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_FOLDER = Path(__file__).parent
_THREADS = 16  # pages that are built at the same time
_SECONDS = 60.0  # that building a page may take

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATIC = {"console.css": "text/css", "console.js": "text/javascript"}

NAVIGATION = (
    ("Overview", "/"), ("Brokers", "/brokers"), ("Topics", "/topics"), ("Groups", "/groups"),
    ("Reassignments", "/reassignments"), ("Events", "/events"), ("History", "/history"), ("What if", "/what-if"),
)  # fmt: skip

PAGES: tuple[tuple[str, Page], ...] = (
    ("/", overview),
    ("/brokers", brokers),
    ("/brokers/{name}", broker),
    ("/topics", topics),
    ("/topics/{name}", topic),
    ("/topics/{name}/messages", messages),
    ("/topics/{name}/consumers", consumers),
    ("/topics/{name}/settings", topic_configs),
    ("/topics/{name}/history", topic_history),
    ("/groups", groups),
    ("/groups/{name}", group),
    ("/reassignments", reassignments),
    ("/what-if", what_if),
    ("/events", events),
    ("/history", cluster_history),
)

_NOT_FOUND = (UnknownTopicOrPartitionException, UnknownTopicIdException, GroupIdNotFoundException)


def web_app(console: Console, hosts: Collection[str] | None = None) -> App:
    """The application. `hosts`: the names under which browsers may ask for it; None: any. A page of another site whose
    name was made to lead here, which is DNS rebinding, has its own name in the header Host."""
    shown = _Shown(console)
    routes = [Route(path, shown.endpoint(page), methods=["GET"]) for path, page in PAGES]
    routes += [
        Route(f"/static/{name}", partial(_static, (_FOLDER / "static" / name).read_bytes(), kind), methods=["GET"])
        for name, kind in _STATIC.items()
    ]
    routes.append(Route("/healthz", shown.health, methods=["GET"]))
    handlers: dict[Any, Any] = {HTTPException: shown.refused, Exception: shown.failed}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)


class _Guard:
    """Adds the headers to every answer, and refuses requests under a wrong name. It is the outermost: a middleware of
    Starlette would not see the page of an error that nobody expected."""

    def __init__(self, app: App, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                new = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in known]
                message["headers"] = [*message["headers"], *new]
            await send(message)

        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if self._hosts is not None and _without_port(host) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            words = f"The header Host is {host[:100]!r}: this console answers under {names} only.\n"
            await PlainTextResponse(words, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and not (":" in name and not name.endswith("]")) else host).lower()


async def _static(content: bytes, kind: str, _: Request) -> Response:
    return Response(content, media_type=f"{kind}; charset=utf-8")


class _Shown:
    """Builds pages in threads, and tells in a page why one cannot be built."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._templates = templates()

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """The route of a page."""

        async def answer(request: Request) -> Response:
            try:
                with anyio.fail_after(_SECONDS):
                    return await anyio.to_thread.run_sync(
                        self._built, page, request, limiter=self._limiter, abandon_on_cancel=True
                    )
            except TimeoutError:
                return self._problem(request, 503, f"This page could not be built within {_SECONDS:g} s.")

        return answer

    def _built(self, page: Page, request: Request) -> Response:
        asked = PageRequest(request.path_params.get("name", ""), Query(request.query_params.multi_items()))
        try:
            return self._rendered(page(self._console, asked), request)
        except PageError as error:
            return self._problem(request, error.status, str(error))
        except _NOT_FOUND as error:
            return self._problem(request, 404, str(error))
        except LakelogException as error:
            return self._problem(request, 503, f"{error.name}: {error}")
        except OSError as error:
            words = error.strerror or str(error)
            return self._problem(request, 503, f"{error.filename}: {words}" if error.filename else words)

    def _rendered(self, content: Content, request: Request, status: int = 200) -> Response:
        text = self._templates.get_template(content.template).render(
            **content.facts, title=content.title, at=content.at, sources=content.sources, query=Query([]),
            uri=self._console.readings.uri, path=request.url.path, navigation=NAVIGATION,
            changed=Query(request.query_params.multi_items()).changed,
        )  # fmt: skip
        return HTMLResponse(text, status)

    def _problem(self, request: Request, status: int, words: str) -> Response:
        """A page with one sentence."""
        sentence = one_line(words).strip()
        sentence = sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith((".", "!", "?")) else ".")
        title = {400: "This cannot be asked", 404: "Not found", 503: "The cluster cannot be read"}.get(
            status, HTTPStatus(status).phrase
        )
        now = dt.datetime.now(dt.UTC).timestamp()
        facts = {"sentence": sentence, "status": status}
        content = Content("problem.html", title, now, facts, Sources([self._console.command("status")]))
        return self._rendered(content, request, status)

    async def refused(self, request: Request, error: Exception) -> Response:
        """A path or a method that there is not."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = f"there is no page {request.url.path[:100]}: the pages are linked above"
        if status == 405:
            words = f"{request.method} is not allowed: this console only reads, so it takes GET and HEAD"
        answer = self._problem(request, status, words)
        answer.headers.update(getattr(error, "headers", None) or {})  # Allow of status 405
        return answer

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error of the console itself. Starlette logs it afterwards, with its trace."""
        logger.error("%s: %s: %s", request.url.path, type(error).__name__, error)
        return self._problem(request, 500, "the console has failed to build this page: its log on stderr says why")

    async def health(self, _: Request) -> Response:
        """200 if the last reading of the cluster has succeeded, and none hangs."""
        is_healthy = self._console.readings.is_healthy
        words = "ok\n" if is_healthy else "the cluster could not be read\n"
        return PlainTextResponse(words, 200 if is_healthy else 503)


def templates() -> Environment:
    """The environment of the templates: every value is escaped, and a name that is not there is an error."""
    found = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "num": _number, "bytes": _bytes, "ago": ago, "time": _time, "iso": _iso, "ms": _milliseconds,
        "micros": _microseconds, "marked": _marked,
    }  # fmt: skip
    found.globals |= {"url": url, "group_url": group_url}
    return found


def _marked(words: str) -> Markup:
    """Words with what stands in backquotes as code."""
    parts = [escape(part) for part in words.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _number(value: float | None, digits: int = 0) -> str:
    """A number with its thousands apart; a dash if it is not known."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _bytes(size: int | None) -> str:
    """A number of bytes; a dash if it is not known."""
    return "–" if size is None else size_text(size)


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _microseconds(value: int) -> str:
    """A timestamp of a record; the number where no calendar has such a year."""
    try:
        return (_EPOCH + dt.timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return f"{value} µs"


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")


def _milliseconds(value: int | None) -> str:
    """A time span in ms; -1 is without an end."""
    if value is None:
        return "–"
    return "no limit" if value < 0 else f"{value} ms" if value < 2000 else ago(value / 1000)
