"""Changes on their way: first a trial, which shows what would happen, then the change itself, once it is confirmed.

A change that was tried is kept here, and the confirmation is for that one: no browser sends the change again. It is
carried out once, however often its confirmation comes. Each runs in a thread of its own, so that it goes on when a
browser goes away.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.web.changes import ChangeKind, Given, topics_of
from lakelog.jobs.web.page_kit import PageError, page_error
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.jobs.web.sign_in import Session
from lakelog.jobs.web.verb_answers import VerbAnswer, VerbCall, VerbRunner
from lakelog.replication.errors import LakelogException, one_line

logger = logging.getLogger(__name__)

TRIAL_SECONDS = 600.0  # for which a trial may be confirmed
_WAIT_SECONDS = 40.0  # that a page waits for an answer: longer than request.timeout.ms is by default
_MOST_DRAFTS = 20  # of a session, the newest ones
_MOST_AT_ONCE = 8  # verbs that run


class _Running:
    """A verb that runs in a thread of its own. `ended`: set at its end, or to end the waits of pages for its answer."""

    def __init__(self, work: Callable[[], VerbAnswer]) -> None:
        self._work, self.ended = work, threading.Event()
        self._answer: VerbAnswer | None = None
        threading.Thread(target=self._run, name="change", daemon=True).start()

    def answer(self, seconds: float) -> VerbAnswer | None:
        """Its answer; None if there is none within this time."""
        self.ended.wait(seconds)
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._work()
        finally:
            self.ended.set()


class Draft:
    """A change of one session. `made_at`: on the monotonic clock; `topic_ids`: of the topics that it names and that
    there were, by name."""

    def __init__(
        self, change: ChangeKind, given: Given, call: VerbCall, made_at: float, topic_ids: Mapping[str, str]
    ) -> None:  # fmt: skip
        self.change, self.given, self.call = change, given, call
        self.made_at, self.topic_ids = made_at, topic_ids
        self.ticket = secrets.token_urlsafe(16)
        self.trial: _Running | None = None
        self.done: _Running | None = None

    def trial_answer(self) -> VerbAnswer | None:
        """The answer of the trial; None if there is none yet."""
        return None if self.trial is None else self.trial.answer(0.0)

    def outcome(self) -> VerbAnswer | None:
        """The outcome of the change; None if it is not known yet."""
        return None if self.done is None else self.done.answer(0.0)


Drafts: TypeAlias = dict[str, Draft]  # of a session, by their tickets


class ChangeDesk:
    """Tries changes, carries them out, and logs them. Threads share it. `wait`: the seconds that a page waits for an
    answer; `clock`: monotonic."""

    def __init__(
        self, readings: ConsoleReadings, invocation: Invocation, runner: VerbRunner, wait: float = _WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._readings, self._invocation, self._runner = readings, invocation, runner
        self._wait, self._clock = wait, clock
        self._lock = threading.Lock()
        self._running, self._under_way = 0, 0
        self._waited_for: list[_Running] = []

    @property
    def under_way(self) -> int:
        """The changes that are being carried out."""
        return self._under_way

    def command(self, call: VerbCall) -> str:
        """The command that does the same in a terminal."""
        return self._invocation.command(call.verb, *call.words, *call.done).strip("`")

    def try_out(self, session: Session[Drafts], change: ChangeKind, given: Given, address: str) -> Draft:
        """Starts the trial of a change, and waits for its answer for a time. Raises PageError."""
        try:
            call = change.call(given)
        except ValueError as error:
            raise PageError(400, str(error)) from None
        draft = Draft(change, given, call, self._clock(), self._topic_ids(given))
        with self._lock:
            draft.trial = self._begun(lambda: self._answer(call, True, address))
            while len(session.kept) >= _MOST_DRAFTS:
                del session.kept[next(iter(session.kept))]
            session.kept[draft.ticket] = draft
            trial = draft.trial
        self._wait_for(trial)
        return draft

    def carry_out(self, draft: Draft, typed: str, address: str) -> None:
        """Carries out what was tried, unless it was begun already, and waits for the outcome for a time. `typed`: the
        name that was typed again. Raises PageError."""
        answer = draft.trial_answer()
        if answer is None or not answer.is_ok:
            raise PageError(409, "this change cannot be confirmed: its trial has not succeeded")
        name = draft.given.get(draft.change.typed, "")
        if typed != name:
            raise PageError(400, f"{typed[:60]!r} is not {name!r}: type the name of the {draft.change.typed} again")
        now = draft.topic_ids if draft.done is not None else self._topic_ids(draft.given)
        with self._lock:
            if draft.done is None:
                again = [name for name, topic_id in draft.topic_ids.items() if now.get(name, topic_id) != topic_id]
                if again:
                    words = f"topic {', '.join(again)} was deleted and made again since: try the change again"
                    raise PageError(409, words)
                if self._clock() - draft.made_at > TRIAL_SECONDS:
                    raise PageError(
                        409, f"the trial is older than {TRIAL_SECONDS / 60:g} minutes: try the change again"
                    )
                draft.done = self._begun(lambda: self._logged(draft, address))
                self._under_way += 1
            done = draft.done
        self._wait_for(done)

    def let_go(self) -> None:
        """Ends the waits of all pages: the console ends."""
        with self._lock:
            for running in self._waited_for:
                running.ended.set()

    def _wait_for(self, running: _Running) -> None:
        with self._lock:
            self._waited_for.append(running)
        running.answer(self._wait)
        with self._lock:
            self._waited_for.remove(running)

    def _topic_ids(self, given: Given) -> Mapping[str, str]:
        """As they are now: what pages have read may be older than a topic that was made again."""
        try:
            found = self._readings.topic_ids.get()
        except (LakelogException, OSError) as error:
            raise page_error(error) from None
        return {name: found[name] for name in topics_of(given) if name in found}

    def _begun(self, work: Callable[[], VerbAnswer]) -> _Running:
        """A verb that runs from now on. The caller has the lock, which the verb needs at its end."""
        if self._running >= _MOST_AT_ONCE:
            raise PageError(503, f"{_MOST_AT_ONCE} changes and trials are under way: try again once one has ended")
        try:
            found = _Running(work)
        except RuntimeError:  # of threading
            raise PageError(503, "the console can start no thread now, so nothing was begun: try again") from None
        self._running += 1
        return found

    def _logged(self, draft: Draft, address: str) -> VerbAnswer:
        command = one_line(self.command(draft.call))
        logger.info("console, %s: begins %s", address, command)
        try:
            answer = self._answer(draft.call, False, address)
            level, word = (logging.INFO, "done") if answer.is_ok else (logging.WARNING, "failed")
            logger.log(level, "console, %s: %s: %s: %s", address, word, command, "; ".join(answer.lines))
        finally:
            with self._lock:
                self._under_way -= 1
        return answer

    def _answer(self, call: VerbCall, is_trial: bool, address: str) -> VerbAnswer:
        try:
            who = f"lakelog console on {socket.gethostname()}, for {address}"
            return self._runner.answer(call, is_trial, who)
        finally:
            with self._lock:
                self._running -= 1
