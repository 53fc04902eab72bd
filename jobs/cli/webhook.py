"""A webhook: JSON that is posted to a URL, such as that of a channel in Slack, Teams or Mattermost.

The URL is a secret, as whoever has it may post there. So no message names more of it than its host.
"""

import argparse
import json
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

_SOCKET_SECONDS = 10.0  # without a byte
_LONGEST_SECONDS = 30.0  # of a request, however slow its answer comes
_MOST_ANSWER = 1 << 16  # bytes that are read of it
_EXAMPLE = "give one such as https://hooks.example.com/services/T0/B0/secret"


class WebhookFailed(Exception):
    """The receiver does not have what was posted, or has it and its answer was lost."""


class _NoRedirect(HTTPRedirectHandler):
    """A post that follows a redirect is a GET, and posts nothing."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect is the answer."""


class Webhook:
    """Posts to one URL, by the proxies of the environment, and with the certificates of the system."""

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
