"""Alerts: which problems of a cluster have begun or ended since the last report to a receiver, and the webhook that
reports them.

It keeps the state that the receiver knows, and queues nothing. After a time without the receiver it reports the present
state. It does not report a problem that has come and gone meanwhile.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lakelog.jobs.admin.cluster_status import Problem, line_of
from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.waiting import wait_until

_MOST_NAMES = 1_000  # of partitions in one object
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # s between two posts that fail

# Ages, counts and versions differ from one look to the next. Numbers that name something stay.
_NUMBERS = re.compile(r"(?<!broker )(?<!brokers )(?<!\d, )(?<!and )(?<![\w./:-])\d+\b")
_UNITS = re.compile(r"# (?:s|min|h|d) ago")


# Errors of one outage differ from one look to the next.
UNREADABLE = "the cluster cannot be read: "
_SOCKET_SECONDS = 10.0  # without a byte
_LONGEST_SECONDS = 30.0  # of a request, however slow its answer comes
_MOST_ANSWER = 1 << 16  # bytes that are read of it
_EXAMPLE = "give one such as https://hooks.example.com/services/T0/B0/secret"


class ProblemChange(NamedTuple):
    """The changes to report. `begun`: problems that are new, or have new partitions. `ended`: those that were told, and
    are over. `left`: the number of all problems there are."""

    begun: tuple[Problem, ...]
    ended: tuple[Problem, ...]
    left: int


class ProblemWatch:
    """Compares what there is with what was told. A problem is told once it has lasted `least` seconds."""

    def __init__(self, least: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._clock = least, clock
        self._now: dict[str, Problem] = {}
        self._since: dict[str, float] = {}
        self._told: dict[str, Problem] = {}

    def look(self, found: Sequence[Problem], is_whole: bool = True) -> None:
        """Takes the problems that there are. `is_whole`: whether these are all; if not, nothing is over."""
        now = {key_of(problem): problem for problem in found}
        self._now = now if is_whole else {**self._told, **now}
        moment = self._clock()
        self._since = {key: self._since.get(key, moment) for key in self._now}

    def change(self) -> ProblemChange | None:
        """The changes to report now; None if there are none."""
        moment = self._clock()
        begun = tuple(
            problem for key, problem in self._now.items()
            if self._is_news(key, problem) and moment - self._since[key] >= self._least
        )  # fmt: skip
        ended = tuple(problem for key, problem in self._told.items() if key not in self._now)
        return ProblemChange(begun, ended, len(self._now)) if begun or ended else None

    def note_reported(self, change: ProblemChange) -> None:
        """Notes that a change was reported."""
        self._told.update((key_of(problem), problem) for problem in change.begun)
        for problem in change.ended:
            self._told.pop(key_of(problem), None)

    def _is_news(self, key: str, problem: Problem) -> bool:
        told = self._told.get(key)
        return told is None or not set(problem.names) <= set(told.names)


def key_of(problem: Problem) -> str:
    """The key of a problem. Two problems with the same key are one, even if an age or the number of partitions
    differs."""
    if problem.what.startswith(UNREADABLE):
        return UNREADABLE
    text = _UNITS.sub("# ago", _NUMBERS.sub("#", problem.what))
    return text.replace("# partition is", "# partitions are")


def change_lines(change: ProblemChange) -> list[str]:
    """The change for people."""
    lines = [f"- {line_of(problem)}\n  To do: {problem.do}." for problem in change.begun]
    return lines + [f"- Over: {line_of(problem)}" for problem in change.ended]


def change_object(cluster: str, change: ProblemChange, at: float) -> Mapping[str, object]:
    """The change for programs, with a `text` that chats show. `at`: in seconds since the epoch."""
    state = "no problem is left" if not change.left else f"{change.left} problem{'s' if change.left > 1 else ''}"
    return {
        "version": 1,
        "cluster": cluster,
        "at": dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="milliseconds"),
        "status": "firing" if change.left else "resolved",
        "text": "\n".join([f"Lakelog cluster {cluster}: {state}", *change_lines(change)]),
        "problems": change.left,
        "begun": [_object(problem) for problem in change.begun],
        "ended": [_object(problem) for problem in change.ended],
    }


def _object(problem: Problem) -> Mapping[str, object]:
    return {
        "what": problem.what,
        "partitions": list(problem.names[:_MOST_NAMES]),
        "partition_count": len(problem.names),
        "do": problem.do,
    }


class WebhookFailed(Exception):
    """The receiver does not have what was posted, or has it and its answer was lost."""


class _NoRedirect(HTTPRedirectHandler):
    """A post that follows a redirect is a GET, and posts nothing."""

    def redirect_request(self, *_: Any) -> None:
        """Returns None, so that the redirect is the answer."""


class Webhook:
    """Posts JSON to one URL, such as that of a channel in Slack, Teams or Mattermost, by the proxies of the environment
    and with the certificates of the system.

    The URL is a secret, as whoever has it may post there. So no message names more of it than its host.
    """

    def __init__(self, url: str) -> None:
        """`url`: as `webhook_url` returns it."""
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self.longest = _LONGEST_SECONDS
        self._url = url
        self._opener = build_opener(_NoRedirect)
        self._under_way: threading.Thread | None = None

    def post(self, content: Mapping[str, object]) -> None:
        """Posts an object; returns once the receiver has said with a status of 2xx that it has it. Raises
        WebhookFailed."""
        if self._under_way is not None and self._under_way.is_alive():
            raise WebhookFailed(f"{self.name}: its last answer has not ended yet")
        outcome: list[str] = []
        body = json.dumps(content).encode()
        thread = threading.Thread(target=lambda: outcome.append(self._send(body)), name="webhook", daemon=True)
        self._under_way = thread
        thread.start()
        thread.join(self.longest)
        error = outcome[0] if outcome else f"no answer within {self.longest:.0f} s"
        if error:
            raise WebhookFailed(f"{self.name}: {error}")

    def _send(self, body: bytes) -> str:
        """Why the receiver has not got it; empty if it has."""
        headers = {"Content-Type": "application/json", "User-Agent": "lakelog"}
        try:
            request = Request(self._url, body, headers, method="POST")
            with self._opener.open(request, timeout=_SOCKET_SECONDS) as answer:
                answer.read(_MOST_ANSWER)
                return ""
        except HTTPError as error:
            error.close()
            return f"it answers {error.code} {_phrase(error.code)}".rstrip()
        except URLError as error:
            return _words(error.reason)
        except (OSError, HTTPException, ValueError) as error:
            return _words(error)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _words(reason: object) -> str:
    """Why there was no answer; the texts of http.client may have the URL, so that only their names are used."""
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError):
        return str(getattr(reason, "verify_message", "") or reason.strerror or type(reason).__name__)
    return type(reason).__name__


def webhook_url(text: str) -> str:
    """A type of argparse: the URL of a webhook. Its errors do not have it."""
    try:
        parts = urlsplit(text)
        is_right = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_right = False
    if not is_right or not text.isascii() or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(f"this is no URL: {_EXAMPLE}")
    if parts.scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"the URL begins with {parts.scheme}://, not https:// or http://: {_EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise argparse.ArgumentTypeError(f"a user and a password in the URL are not sent: {_EXAMPLE}")
    return text


class ProblemPosts:
    """Posts changes. While the receiver does not take them, what is posted next is the newest state."""

    def __init__(self, webhook: Webhook, uri: str, least: float) -> None:
        self._webhook, self._uri = webhook, uri
        self.watch = ProblemWatch(least)
        self._pause, self._next_at, self._said = _FIRST_PAUSE, 0.0, ""

    def post_until(self, deadline: float, is_stopped: Callable[[], bool]) -> None:
        """Posts what is to be told, if anything is, and again after a pause if that fails, up to a monotonic time."""
        while (change := self.watch.change()) is not None and self._next_at < deadline:
            wait_until(lambda: is_stopped() or time.monotonic() >= self._next_at)
            if is_stopped():
                return
            try:
                self._webhook.post(change_object(self._uri, change, time.time()))
            except WebhookFailed as error:
                self._note_failure(str(error))
            else:
                self.watch.note_reported(change)
                self._pause, self._said = _FIRST_PAUSE, ""

    def _note_failure(self, error: str) -> None:
        self._next_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if error != self._said:
            self._said = error
            say(f"lakelog: the webhook fails, and is tried again: {error}")
