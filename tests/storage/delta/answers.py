"""A storage that loses answers, so that the writer must find out whether its commit has landed."""

from collections.abc import Callable
from typing import Any

import pytest

from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog


def lose_an_answer(
    monkeypatch: pytest.MonkeyPatch, of: Callable[[DeltaLog, dict[str, str]], bool] = lambda _log, _cause: True,
    landed: bool = True, error: Exception | None = None,
) -> list[dict[str, str]]:  # fmt: skip
    """Loses the answer of the first commit that `of` names, which lands if `landed`. Returns the lost causes."""
    commit, lost = DeltaLog.commit, []

    def loses(log: DeltaLog, cause: dict[str, str], *args: Any, **options: Any) -> int:
        if lost or not of(log, cause):
            return commit(log, cause, *args, **options)
        lost.append(cause)
        if landed:
            commit(log, cause, *args, **options)
        raise error or CommitUnknown("the answer was lost")

    monkeypatch.setattr(DeltaLog, "commit", loses)
    return lost


def refuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no commit lands, and none is answered."""

    def refuses(*_args: Any, **_options: Any) -> int:
        raise CommitUnknown("connection refused")

    monkeypatch.setattr(DeltaLog, "commit", refuses)


def land_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit lands, and from then on the store does not answer."""
    commit = DeltaLog.commit

    def lands(*args: Any, **options: Any) -> int:
        commit(*args, **options)
        refuse_all(monkeypatch)
        monkeypatch.setattr(DeltaLog, "move", lambda *_: [])
        raise CommitUnknown("connection reset")

    monkeypatch.setattr(DeltaLog, "commit", lands)
