"""The console as an ASGI application: its routes, its error pages, and what keeps a browser from being misused.

A page is complete HTML. It has no inline style and no inline script, so that the Content-Security-Policy forbids both:
text of a record that escaped the templates could still not run. Every answer has the same headers.
"""

from __future__ import annotations

import asyncio
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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from lakelog.jobs.admin.heartbeats import ago
from lakelog.jobs.cli.numbers import size_text
from lakelog.jobs.web.change_desk import Drafts
from lakelog.jobs.web.change_pages import (
    MOST_BODY,
    AnswerPage,
    ChangePages,
    Form,
    Redirect,
    SignInNeeded,
    sign_in_content,
)
from lakelog.jobs.web.cluster_pages import broker, brokers, events, overview, reassignments, what_if
from lakelog.jobs.web.group_pages import group, groups
from lakelog.jobs.web.history_pages import cluster_history, topic_history
from lakelog.jobs.web.page_kit import (
    Console,
    Content,
    Page,
    PageError,
    PageRequest,
    Query,
    Sources,
    group_url,
    page_error,
    url,
)
from lakelog.jobs.web.record_pages import messages
from lakelog.jobs.web.sign_in import SESSION_SECONDS, Session
from lakelog.jobs.web.topic_pages import consumers, topic, topic_configs, topics
from lakelog.replication.errors import LakelogException, one_line

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]
Build = Callable[[Request], Content]
OwnPage = Callable[[str, Query, Session[Drafts] | None], Content]
TakeForm = Callable[[Form], Redirect | AnswerPage]

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_FOLDER = Path(__file__).parent
_THREADS = 16  # pages that are built at the same time
_SECONDS = 60.0  # that building a page may take
_FORM_THREADS, _FORM_SECONDS = 16, 90.0  # the same for forms, which wait for verbs
_BODY_SECONDS = 30.0  # within which a form has to come

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send forms with the Origin null
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


def web_app(console: Console, hosts: Collection[str] | None = None, changes: ChangePages | None = None) -> App:
    """The application. `hosts`: the names under which browsers may ask for it; None: any. A page of another site whose
    name was made to lead here, which is DNS rebinding, has its own name in the header Host. `changes`: the pages that
    change the cluster; without them no route takes anything but GET and HEAD."""
    shown = _Shown(console, changes)
    routes = [Route(path, shown.endpoint(shown.page(page)), methods=["GET"]) for path, page in PAGES]
    if changes is not None:
        pages = {path: shown.endpoint(shown.own_page(page)) for path, page in changes.pages}
        forms = {path: shown.form_endpoint(changes, take) for path, take in changes.forms}
        routes += [_route(path, pages.get(path), take) for path, take in forms.items()]
    routes += [
        Route(f"/static/{name}", partial(_static, (_FOLDER / "static" / name).read_bytes(), kind), methods=["GET"])
        for name, kind in _STATIC.items()
    ]
    routes.append(Route("/healthz", shown.health, methods=["GET"]))
    handlers: dict[Any, Any] = {HTTPException: shown.refused, Exception: shown.failed}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)


def _route(path: str, page: Endpoint | None, form: Endpoint) -> Route:
    """One route for a page and its form: of two, Starlette would refuse another method in the name of the first one."""

    async def answered(request: Request) -> Response:
        return await (form if page is None or request.method == "POST" else page)(request)

    return Route(path, answered, methods=["POST"] if page is None else ["GET", "POST"])


class _Guard:
    """Adds the headers to every answer, refuses requests under a wrong name, and answers those that wait when the
    console ends. It is the outermost: a middleware of Starlette would not see the page of an error that nobody
    expected."""

    def __init__(self, app: App, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_begun = False

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
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
        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # by the server, which ends
            if is_begun:
                raise
            words = "The console ends: what was asked for may still be carried out.\n"
            await PlainTextResponse(words, HTTPStatus.SERVICE_UNAVAILABLE)(scope, receive, send_with_headers)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and not (":" in name and not name.endswith("]")) else host).lower()


async def _static(content: bytes, kind: str, _: Request) -> Response:
    return Response(content, media_type=f"{kind}; charset=utf-8")


class _Shown:
    """Builds pages in threads, and tells in a page why one cannot be built."""

    def __init__(self, console: Console, changes: ChangePages | None) -> None:
        self._console, self._changes = console, changes
        self._limiter, self._form_limiter = anyio.CapacityLimiter(_THREADS), anyio.CapacityLimiter(_FORM_THREADS)
        self._templates = templates()

    def page(self, page: Page) -> Build:
        """The function that builds a page that only reads."""
        return lambda request: page(self._console, PageRequest(_name(request), _query(request)))

    def own_page(self, page: OwnPage) -> Build:
        """The function that builds a page for a user who has signed in."""
        return lambda request: page(_name(request), _query(request), self._session(request))

    def endpoint(self, build: Build) -> Endpoint:
        """The route of a page."""

        def answer(request: Request) -> Response:
            return self._rendered(build(request), request)

        async def answered(request: Request) -> Response:
            late = f"This page could not be built within {_SECONDS:g} s."
            return await self._in_thread(answer, request, self._limiter, _SECONDS, late)

        return answered

    def form_endpoint(self, changes: ChangePages, take: TakeForm) -> Endpoint:
        """The route of a form. What its body is, is read only if it comes from this console."""

        async def answered(request: Request) -> Response:
            try:
                changes.check_origin(request)
                with anyio.fail_after(_BODY_SECONDS):
                    body = await _body(request)
            except PageError as error:
                return self._problem(request, error)
            except TimeoutError:
                words = f"the form has not come whole within {_BODY_SECONDS:g} s"
                return self._problem(request, PageError(HTTPStatus.REQUEST_TIMEOUT, words))
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it

            def answer(_: Request) -> Response:
                return self._taken(changes, take, request, body)

            late = f"There is no answer within {_FORM_SECONDS:g} s: what was asked for may still be carried out."
            return await self._in_thread(answer, request, self._form_limiter, _FORM_SECONDS, late)

        return answered

    def _taken(self, changes: ChangePages, take: TakeForm, request: Request, body: bytes) -> Response:
        found = take(changes.form_of(request, body))
        if isinstance(found, AnswerPage):
            return self._rendered(found.content, request, found.status)
        answer = RedirectResponse(found.to, HTTPStatus.SEE_OTHER)
        if found.cookie:
            answer.set_cookie(
                changes.cookie, found.cookie, httponly=True, secure=changes.is_secure, samesite="strict",
                max_age=int(SESSION_SECONDS),
            )  # fmt: skip
        elif found.cookie is not None:
            answer.delete_cookie(changes.cookie, httponly=True, secure=changes.is_secure, samesite="strict")
        return answer

    async def _in_thread(
        self, answer: Callable[[Request], Response], request: Request, limiter: anyio.CapacityLimiter, seconds: float,
        late: str,
    ) -> Response:  # fmt: skip
        try:
            with anyio.fail_after(seconds):
                return await anyio.to_thread.run_sync(
                    self._answered, answer, request, limiter=limiter, abandon_on_cancel=True
                )
        except TimeoutError:
            return self._problem(request, PageError(503, late))

    def _answered(self, answer: Callable[[Request], Response], request: Request) -> Response:
        try:
            return answer(request)
        except SignInNeeded as error:
            return self._rendered(sign_in_content(str(error), error.back), request, HTTPStatus.UNAUTHORIZED)
        except PageError as error:
            return self._problem(request, error)
        except (LakelogException, OSError) as error:
            return self._problem(request, page_error(error))

    def _session(self, request: Request) -> Session[Drafts] | None:
        return None if self._changes is None else self._changes.session_of(request)

    def _rendered(self, content: Content, request: Request, status: int = 200) -> Response:
        text = self._templates.get_template(content.template).render(
            **content.facts, title=content.title, at=content.at, sources=content.sources, query=Query([]),
            uri=self._console.readings.uri, path=request.url.path, navigation=NAVIGATION,
            changed=_query(request).changed, may_change=self._changes is not None, session=self._session(request),
        )  # fmt: skip
        return HTMLResponse(text, status)

    def _problem(self, request: Request, error: PageError) -> Response:
        """A page with one sentence."""
        status = error.status
        title = {400: "This cannot be asked", 404: "Not found", 503: "The cluster cannot be read"}.get(
            status, HTTPStatus(status).phrase
        )
        now = dt.datetime.now(dt.UTC).timestamp()
        facts = {"sentence": _sentence(str(error)), "status": status}
        content = Content("problem.html", title, now, facts, Sources([self._console.command("status")]))
        answer = self._rendered(content, request, status)
        answer.headers.update(error.headers)
        return answer

    async def refused(self, request: Request, error: Exception) -> Response:
        """A path or a method that there is not."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = f"there is no page {request.url.path[:100]}: the pages are linked above"
        if status == 405:
            why = "this console only reads, so it takes" if self._changes is None else "this page takes"
            words = f"{request.method} is not allowed: {why} {_allowed(error)}"
        answer = self._problem(request, PageError(status, words))
        answer.headers.update(getattr(error, "headers", None) or {})  # Allow of status 405
        return answer

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error of the console itself. Starlette logs it afterwards, with its trace."""
        logger.error("%s: %s: %s", request.url.path, type(error).__name__, error)
        words = "the console has failed to build this page: its log on stderr says why"
        return self._problem(request, PageError(500, words))

    async def health(self, _: Request) -> Response:
        """200 if the last reading of the cluster has succeeded, and none hangs."""
        is_healthy = self._console.readings.is_healthy
        words = "ok\n" if is_healthy else "the cluster could not be read\n"
        return PlainTextResponse(words, 200 if is_healthy else 503)


def _name(request: Request) -> str:
    found: str = request.path_params.get("name", "")
    return found


def _query(request: Request) -> Query:
    return Query(request.query_params.multi_items())


def _allowed(error: Exception) -> str:
    return " and ".join(sorted((getattr(error, "headers", None) or {}).get("Allow", "GET, HEAD").split(", ")))


async def _body(request: Request) -> bytes:
    """The body of a request. Raises PageError 413 for more bytes than any form has."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_BODY:
            raise PageError(413, f"a form of this console has at most {MOST_BODY} bytes")
    return bytes(found)


def templates() -> Environment:
    """The environment of the templates: every value is escaped, and a name that is not there is an error."""
    found = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "num": _number, "bytes": _bytes, "ago": ago, "time": _time, "iso": _iso, "ms": _milliseconds,
        "micros": _microseconds, "marked": _marked, "sentence": _sentence,
    }  # fmt: skip
    found.globals |= {"url": url, "group_url": group_url}
    return found


def _sentence(words: str) -> str:
    """An error's words as a sentence of a page."""
    found = one_line(words).strip()
    return found[:1].upper() + found[1:] + ("" if found.endswith((".", "!", "?")) else ".")


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
