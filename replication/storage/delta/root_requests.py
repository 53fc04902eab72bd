"""Requests of a process to the roots of a cluster: each runs in a thread, so no root holds up the others.

A request that has begun cannot be taken back. So the process waits for the answers that it needs, and the other
requests go on. It sends no more to a root at which many requests hang: else a root that never answers would take all
threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.in_threads import start_thread

logger = logging.getLogger(__name__)

SOON_SECONDS = 1.0  # how long a step waits for roots that it can do without
_PENDING = 8  # requests of this process that may hang at one root
_HANGS_SECONDS = 1.0  # a request that takes longer hangs
_MOST_PENDING = 64  # requests of this process at one root, whether they hang or not

Value = TypeVar("Value")


class Answers:
    """The answers of roots, as they come. None is the answer of a root that has failed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: dict[str, Any] = {}

    def put(self, root: str, answer: Any) -> None:
        """Adds the answer of a root."""
        with self._changed:
            self._found[root] = answer
            self._changed.notify_all()

    def wait_for(self, is_enough: Callable[[Mapping[str, Any]], bool], most: int, timeout: float) -> dict[str, Any]:
        """The answers that have come once they are enough, or `most` have come, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._found) == most or is_enough(self._found), timeout)
            return dict(self._found)


class RootRequests:
    """The requests of one process. Threads may share it. `timeout`: how long a step waits for answers, in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._pending: dict[str, list[float]] = {}  # by URI: when the requests that are under way have begun

    def ask(
        self, calls: Mapping[str, tuple[QuorumMember, Callable[[], Any]]],
        is_enough: Callable[[Mapping[str, Any]], bool] = lambda _: False, timeout: float | None = None,
        most_needed: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Runs a call at each root, and returns the answers by the names of the calls, without those that are None.

        It returns once `is_enough` says so, all answers have come, or the timeout is over. Once `most_needed` answers
        have come and are not enough, it waits one more second: a root that hangs may never answer."""
        answers, most = Answers(), len(calls) if most_needed is None else most_needed
        for name, (member, call) in calls.items():
            self.begin(name, member, answers, call)
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        found = _given(answers.wait_for(
            lambda found: len(_given(found)) >= most or is_enough(_given(found)), len(calls), _until(deadline)
        ))  # fmt: skip
        if not is_enough(found):
            left = min(SOON_SECONDS, _until(deadline)) if len(found) >= most else _until(deadline)
            found = _given(answers.wait_for(lambda found: is_enough(_given(found)), len(calls), left))
        return found

    def at_each(
        self, call: Callable[[QuorumMember], Value], members: Sequence[QuorumMember], timeout: float | None = None
    ) -> dict[str, Value | LakelogException]:
        """Calls `call` with each of these roots. Returns each result or error, by URI."""

        def ask(member: QuorumMember) -> Any:
            try:
                return (call(member),)
            except (LakelogException, OSError) as error:
                return (error if isinstance(error, LakelogException) else KafkaStorageException(str(error)),)

        timeout = self.timeout if timeout is None else timeout
        found = self.ask({member.root.uri: (member, partial(ask, member)) for member in members}, timeout=timeout)
        late = (KafkaStorageException(f"has not answered within {timeout:g} s"),)
        return {member.root.uri: found.get(member.root.uri, late)[0] for member in members}

    def soon(
        self, call: Callable[[QuorumMember], Value], members: Sequence[QuorumMember]
    ) -> dict[str, Value | LakelogException]:
        """As `at_each`, but waits a second at most. It does not wait for a root at which an earlier request hangs, else
        many calls in a row would wait a second each."""
        hanging = [member for member in members if self.hanging(member.root.uri)]
        late = self.at_each(call, hanging, 0.0)
        return late | self.at_each(call, [each for each in members if each not in hanging], SOON_SECONDS)

    def begin(
        self, name: str, member: QuorumMember, answers: Answers, call: Callable[[], Any],
        at_end: Callable[[], None] = lambda: None,
    ) -> bool:  # fmt: skip
        """Runs a call at a root in a thread, puts its answer under `name`, and calls `at_end` before that.

        It does not run the call if several requests hang at the root, or if one hangs there and no thread can be
        started. Then the answer is None, and it returns False."""
        uri, began_at = member.root.uri, time.monotonic()
        with self._lock:
            pending = self._pending.setdefault(uri, [])
            hanging = self.hanging(uri)
            is_away = hanging >= _PENDING or len(pending) >= _MOST_PENDING
            if not is_away:
                pending.append(began_at)

        def run() -> None:
            answer = None
            try:
                answer = call()
            except (LakelogException, OSError) as error:
                logger.debug("%s: %s", uri, error)
            finally:
                with self._lock:
                    pending.remove(began_at)
                at_end()
                answers.put(name, answer)

        if not is_away:
            if run_in_thread(run, f"quorum {uri}", may_run_here=not hanging):
                return True
            with self._lock:
                pending.remove(began_at)
        at_end()
        answers.put(name, None)
        return False

    def hanging(self, uri: str) -> int:
        """The number of requests of this process that hang at a root."""
        latest = time.monotonic() - _HANGS_SECONDS
        return sum(began_at <= latest for began_at in tuple(self._pending.get(uri, ())))


def run_in_thread(run: Callable[[], None], name: str, may_run_here: bool = True) -> bool:
    """Runs `run` in a thread. If none can be started, as when this process has too many or ends, it runs it here if
    that is allowed. Returns whether it was run."""
    try:
        start_thread(run, name)
    except RuntimeError:
        if may_run_here:
            run()
        return may_run_here
    return True


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _given(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {root: answer for root, answer in answers.items() if answer is not None}
