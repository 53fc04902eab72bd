"""The pages that change a cluster: the sign-in, a form for each change, and a page on which its trial is confirmed.

A request that changes anything is a POST. It has to come from a page of this console, which the header Origin tells,
and except for the sign-in from a session, with the word that only the session's own forms have. A GET changes nothing.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from lakelog.jobs.web.change_desk import TRIAL_SECONDS, ChangeDesk, Draft, Drafts
from lakelog.jobs.web.changes import CHANGES, ChangeKind, Given
from lakelog.jobs.web.page_kit import Content, PageError, Query, Sources, not_found, url
from lakelog.jobs.web.sign_in import SESSION_SECONDS, Session, SignIn, SignInRefused
from lakelog.jobs.web.verb_answers import VerbAnswer
from lakelog.replication.errors import ControllerNotAvailableException, TimeoutException

logger = logging.getLogger(__name__)

MOST_BODY = 64 * 1024
_MOST_TEXT, _MOST_LINES = 1_000, 20_000  # characters of a field of one line, and of several
_MOST_FIELDS = 20
_FORM = "application/x-www-form-urlencoded"
_CSRF, _TYPED, _TOKEN, _NEXT = "csrf", "typed", "token", "next"
_OWN_PATH = re.compile(r"/(?![/\\])[\w/.~%?=&+,:-]*", re.ASCII)  # of this console
_LATER = (ControllerNotAvailableException.__name__, TimeoutException.__name__, OSError.__name__)  # may work later


class SignInNeeded(Exception):
    """A page is for somebody who has signed in. `back`: where the sign-in leads."""

    def __init__(self, sentence: str, back: str) -> None:
        super().__init__(sentence)
        self.back = back


class Redirect(NamedTuple):
    """The answer of a form that has done its work: the page that shows it. `cookie`: a new one; empty: it ends."""

    to: str
    cookie: str | None = None


class Form(NamedTuple):
    """A form that was sent: the end of its path, its values, who has sent it, and from where."""

    name: str
    values: Query
    session: Session[Drafts] | None
    cookie: str | None
    address: str


class AnswerPage(NamedTuple):
    """A page in answer to a form."""

    content: Content
    status: int = 200


class ChangePages:
    """The pages and the forms of one console. Threads share it. `own_origin`: the scheme, host and port at which
    browsers reach it; None: those of the header Host. `cookie`: the name of its cookie."""

    def __init__(self, desk: ChangeDesk, sign_in: SignIn[Drafts], own_origin: str | None = None) -> None:
        self._desk, self._sign_in, self._origin = desk, sign_in, own_origin
        self.is_secure = own_origin is not None and own_origin.startswith("https:")
        prefix = "__Host-" if self.is_secure else ""  # browsers then refuse one that a neighbouring host has set
        self.cookie = f"{prefix}lakelog_session_{secrets.token_hex(4)}"  # hosts share cookies among all their ports

    def session_of(self, request: Request) -> Session[Drafts] | None:
        """The session of a browser, if it has one."""
        return self._sign_in.session(request.cookies.get(self.cookie))

    @property
    def forms(self) -> Sequence[tuple[str, Callable[[Form], Redirect | AnswerPage]]]:
        """The functions that take a form, by paths."""
        return (
            ("/sign-in", self._signed_in), ("/sign-out", self._signed_out), ("/change/{name}", self._tried),
            ("/changes/{name}", self._confirmed),
        )  # fmt: skip

    @property
    def pages(self) -> Sequence[tuple[str, Callable[[str, Query, Session[Drafts] | None], Content]]]:
        """The functions that only show, by paths. Each gets the end of the path, the query and the session."""
        return (
            ("/sign-in", self._sign_in_page),
            ("/change/{name}", self._form_page),
            ("/changes/{name}", self._draft_page),
        )

    def check_origin(self, request: Request) -> None:
        """Raises PageError 403 for a form of another site, also under a name that was made to lead here."""
        own = self._origin or f"http://{request.headers.get('host', '')}"
        given = request.headers.getlist("origin")
        if [each.lower() for each in given] != [own.lower()]:
            words = f"the header Origin is {', '.join(given)[:100]!r}" if given else "there is no header Origin"
            hint = "" if self._origin else "; behind a proxy, give its address with --origin"
            raise PageError(403, f"{words}: this console takes forms of {own[:100]} only{hint}")

    def form_of(self, request: Request, body: bytes) -> Form:
        """A form with its session. Raises PageError for one that cannot be read, or has not the session's word."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            raise PageError(415, f"forms are sent as {_FORM}")
        try:
            pairs = parse_qsl(
                body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
            )
        except ValueError:
            raise PageError(400, f"this is no form: it has at most {_MOST_FIELDS} values, in UTF-8") from None
        cookie = request.cookies.get(self.cookie)
        session = self._sign_in.session(cookie)
        values = Query(pairs)
        csrf = values.text(_CSRF)
        if session is not None and not request.url.path.startswith("/sign-in") and not session.is_own(csrf):
            raise PageError(403, "this form is not one of this session: open it again")
        address = request.client.host if request.client else "an unknown address"
        return Form(request.path_params.get("name", ""), values, session, cookie, address)

    def _sign_in_page(self, _: str, query: Query, session: Session[Drafts] | None) -> Content:
        query.allow(_NEXT)
        return sign_in_content("", query.text(_NEXT, _MOST_LINES), session is not None)

    def _signed_in(self, form: Form) -> Redirect:
        form.values.allow(_TOKEN, _NEXT)
        try:
            cookie = self._sign_in.begin(form.values.text(_TOKEN, _MOST_TEXT), form.address)
        except SignInRefused as error:
            logger.warning("console, %s: not signed in: %s", form.address, error)
            if error.seconds:
                raise PageError(429, str(error), {"retry-after": f"{error.seconds + 1:.0f}"}) from None
            raise SignInNeeded(str(error), form.values.text(_NEXT, _MOST_LINES)) from None
        self._sign_in.end(form.cookie)  # that of the same browser before
        logger.info("console, %s: signed in", form.address)
        return Redirect(_own(form.values.text(_NEXT, _MOST_LINES)), cookie)

    def _signed_out(self, form: Form) -> Redirect:
        self._sign_in.end(form.cookie)
        logger.info("console, %s: signed out", form.address)
        return Redirect("/", "")

    def _form_page(self, name: str, query: Query, session: Session[Drafts] | None) -> Content:
        """The form, with the values that the query gives."""
        change = _change(name)
        query.allow(*(field.name for field in change.fields))
        given = _given(change, query)
        _needed(session, change, given)
        return _form(change, given)

    def _tried(self, form: Form) -> Redirect | AnswerPage:
        """The trial of a change. A change that is refused at once comes back with its form."""
        change = _change(form.name)
        form.values.allow(_CSRF, *(field.name for field in change.fields))
        given = _given(change, form.values)
        session = _needed(form.session, change, given)
        try:
            draft = self._desk.try_out(session, change, given, form.address)
        except PageError as error:
            return AnswerPage(_form(change, given, str(error)), error.status)
        answer = draft.trial_answer()
        if answer is not None and not answer.is_ok:
            return AnswerPage(_form(change, given, *_told(answer)), 503 if answer.error in _LATER else 400)
        return Redirect(url("changes", draft.ticket))

    def _draft_page(self, name: str, query: Query, session: Session[Drafts] | None) -> Content:
        """The answer of a trial, and the outcome of the change."""
        query.allow()
        return self._draft(_draft_of(session, name))

    def _confirmed(self, form: Form) -> Redirect | AnswerPage:
        """A change that is confirmed: it is carried out once."""
        form.values.allow(_CSRF, _TYPED)
        draft = _draft_of(form.session, form.name)
        try:
            self._desk.carry_out(draft, form.values.text(_TYPED, _MOST_TEXT), form.address)
        except PageError as error:
            return AnswerPage(self._draft(draft, str(error)), error.status)
        return Redirect(url("changes", draft.ticket))

    def _draft(self, draft: Draft, sentence: str = "") -> Content:
        change, trial, outcome = draft.change, draft.trial_answer(), draft.outcome()
        is_ended = outcome is not None or (draft.done is None and trial is not None)
        facts = {
            "change": change, "ticket": draft.ticket, "trial": trial, "outcome": outcome, "sentence": sentence,
            "is_begun": draft.done is not None, "is_ended": is_ended, "minutes": TRIAL_SECONDS / 60,
            "command": self._desk.command(draft.call), "form": _filled_form(change, draft.given),
            "shown": change.shown(draft.given), "typed": draft.given.get(change.typed, ""),
        }  # fmt: skip
        return Content("draft.html", change.title, time.time(), facts, Sources([]))


def sign_in_content(sentence: str, back: str, is_signed_in: bool = False) -> Content:
    """The page that asks for the token. `sentence`: why; `back`: where it leads."""
    facts = {
        "sentence": sentence, "back": _own(back), "is_signed_in": is_signed_in, "minutes": SESSION_SECONDS / 60,
    }  # fmt: skip
    return Content("sign_in.html", "Sign in", time.time(), facts, Sources([]))


def _own(path: str) -> str:
    """A path of this console; the overview for any other address."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def _change(name: str) -> ChangeKind:
    if name not in CHANGES:
        raise not_found(f"there is no change {name[:60]!r}: there are {', '.join(CHANGES)}")
    return CHANGES[name]


def _given(change: ChangeKind, values: Query) -> dict[str, str]:
    """The values of a form. A field with choices takes only one of them."""
    return {
        field.name: values.choice(field.name, [value for value, _ in field.choices])
        if field.choices
        else values.text(field.name, _MOST_LINES if field.kind == "lines" else _MOST_TEXT)
        for field in change.fields
    }


def _filled_form(change: ChangeKind, given: Given) -> str:
    values = urlencode({name: value for name, value in given.items() if value})
    return f"{change.path}?{values}" if values else change.path


def _needed(session: Session[Drafts] | None, change: ChangeKind, given: Given) -> Session[Drafts]:
    if session is None:
        raise SignInNeeded("changes are for those who have signed in", _filled_form(change, given))
    return session


def _draft_of(session: Session[Drafts] | None, ticket: str) -> Draft:
    if session is None:
        raise SignInNeeded("changes are for those who have signed in", "/")
    found = session.kept.get(ticket)
    if found is None:
        raise not_found("this session knows no such change: it is too long ago, or of another session")
    return found


def _told(answer: VerbAnswer) -> tuple[str, Sequence[str]]:
    return answer.sentence, answer.lines[:-1]


def _form(change: ChangeKind, given: Mapping[str, str], sentence: str = "", before: Sequence[str] = ()) -> Content:
    facts = {"change": change, "given": given, "sentence": sentence, "before": before}
    return Content("change.html", change.title, time.time(), facts, Sources([]))
