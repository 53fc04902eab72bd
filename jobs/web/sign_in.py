"""Lets those change a cluster through the console who have its token. A sign-in begins a session that a cookie names.

The token and the names of sessions are kept as hashes, so that neither can be told by the time that a comparison takes.
Sessions are kept in memory: they end with the console.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

LEAST_TOKEN, _MOST_TOKEN = 32, 1_000  # characters
SESSION_SECONDS = 3600.0
_TRIES_SECONDS = 300.0
_TRIES_OF_ONE, _TRIES_OF_ALL = 5, 50  # wrong tokens in that time, from an address and in all
_MOST_SESSIONS = 100
_OTHERS, _GROUP_READS, _GROUP_WRITES = 0o007, 0o040, 0o030

Kept = TypeVar("Kept")


class Token:
    """A token that is kept as its hash."""

    def __init__(self, text: str) -> None:
        self._digest = _digest(text)

    def equals(self, text: str) -> bool:
        """Whether a text is the token, in a time that tells nothing of it."""
        return hmac.compare_digest(self._digest, _digest(text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def token_file(path: str) -> Token:
    """A type of argparse: a file that has a token in its only line, and that only its owner can read. A group may read
    one that belongs to `root`, as secrets do that a supervisor mounts. PostgreSQL has the same rule for keys."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            group = _GROUP_WRITES if found.st_uid == 0 else _GROUP_WRITES | _GROUP_READS
            if mode & (_OTHERS | group):
                raise argparse.ArgumentTypeError(
                    f"{path} has the mode {mode:03o}, so others than its owner may use it: `chmod 600` it, and put a "
                    "new token into it if others have read it"
                )
            content = file.read(_MOST_TOKEN + 3)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror or error}") from None
    text = content.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not LEAST_TOKEN <= len(text) <= _MOST_TOKEN:
        words = f"more than {_MOST_TOKEN}" if len(text) > _MOST_TOKEN else str(len(text))
        raise argparse.ArgumentTypeError(
            f"{path} has {words} characters: a token has {LEAST_TOKEN} to {_MOST_TOKEN}, such as those of "
            "`openssl rand -hex 32`"
        )
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise argparse.ArgumentTypeError(f"{path}: a token is one line of visible ASCII characters")
    return Token(text)


def origin(text: str) -> str:
    """A type of argparse: the scheme, host and port of a URL, as browsers send them in the header Origin."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    rest = (parts.path.removeprefix("/"), parts.query, parts.fragment, parts.username, parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(rest) or not _is_plain(parts.netloc):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the address of a console in a browser, such as https://lake.example.com"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port in (None, {"http": 80, "https": 443}[parts.scheme])
    return f"{parts.scheme}://{host}" + ("" if is_default else f":{port}")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not {*text} & {*" \\<>\"'`{}|^"}


class SignInRefused(Exception):
    """Why nobody is signed in, as one sentence. `seconds`: when the next try counts; 0: at once."""

    def __init__(self, sentence: str, seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Session(Generic[Kept]):
    """The state of somebody who has signed in. `csrf`: each form has it, and no other site can read it."""

    def __init__(self, ends_at: float, kept: Kept) -> None:
        self.csrf = secrets.token_urlsafe(32)
        self.ends_at, self.kept = ends_at, kept

    def is_own(self, csrf: str) -> bool:
        """Whether a form is one of this session."""
        return hmac.compare_digest(_digest(self.csrf), _digest(csrf))


class _Try(NamedTuple):
    at: float
    address: str


class SignIn(Generic[Kept]):
    """Begins and ends sessions. Threads share it. `new`: makes what a session keeps; `clock`: monotonic, in seconds."""

    def __init__(self, token: Token, new: Callable[[], Kept], clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._new, self._clock = token, new, clock
        self._lock = threading.Lock()
        self._sessions: dict[bytes, Session[Kept]] = {}
        self._wrong: deque[_Try] = deque()

    def begin(self, given: str, address: str) -> str:
        """Begins a session for a token that came from an address, and returns the value of its cookie. Raises
        SignInRefused for a wrong token, and for any token after too many wrong ones."""
        with self._lock:
            now = self._clock()
            self._check_tries(address, now)
            if not self._token.equals(given):
                self._wrong.append(_Try(now, address))
                raise SignInRefused("the token is wrong: it is the content of the file that --token-file names")
            self._forget_ended(now)
            while len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]  # the oldest
            cookie = secrets.token_urlsafe(32)
            self._sessions[_digest(cookie)] = Session(now + SESSION_SECONDS, self._new())
            return cookie

    def _check_tries(self, address: str, now: float) -> None:
        while self._wrong and now - self._wrong[0].at >= _TRIES_SECONDS:
            self._wrong.popleft()
        own = [each for each in self._wrong if each.address == address]
        for tries, most, whose in ((own, _TRIES_OF_ONE, f" from {address}"), (self._wrong, _TRIES_OF_ALL, "")):
            if len(tries) >= most:
                seconds = _TRIES_SECONDS - (now - tries[len(tries) - most].at)
                words = f"{most} wrong tokens have come{whose}: the next try counts in {seconds:.0f} s"
                raise SignInRefused(words, seconds)

    def _forget_ended(self, now: float) -> None:
        for name in [name for name, session in self._sessions.items() if session.ends_at <= now]:
            del self._sessions[name]

    def session(self, cookie: str | None) -> Session[Kept] | None:
        """The session that a cookie names; None if it has ended, or never begun."""
        if not cookie:
            return None
        with self._lock:
            self._forget_ended(self._clock())
            return self._sessions.get(_digest(cookie))

    def end(self, cookie: str | None) -> None:
        """Ends a session."""
        with self._lock:
            self._sessions.pop(_digest(cookie or ""), None)
