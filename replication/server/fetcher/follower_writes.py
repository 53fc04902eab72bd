"""What the fetchers of a broker write to its log and to its rows, in as few commits as they can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lakelog.replication.server.group_commit import GroupCommit
from lakelog.replication.storage.log.append import Fetched, append_as_follower
from lakelog.replication.storage.log.replica_log import ReplicaLog

_SOON_BYTES = 1 << 20  # others do not wait for a larger copy


class FollowerWrites:
    """The writes of one broker session. Fetchers that were told of new segments at about the same time, as after a send
    to several leaders, append in one commit and publish in another.

    `publish` writes the replica rows; its argument is the reason for the commit. `fetcher`: the one that calls.
    """

    def __init__(self, log: ReplicaLog, name: str, publish: Callable[[str], object]) -> None:
        self._log = log
        self._name = name
        self._write_rows = publish
        self._appends = GroupCommit(self._append)
        self._rows = GroupCommit(self._publish)

    def expect(self, fetcher: object, size: int = 0) -> None:
        """The fetcher was told of new segments, or begins to copy segments of so many bytes, and will append them."""
        if size <= _SOON_BYTES:
            self._appends.expect(fetcher)
        else:
            self._appends.give_up(fetcher)

    def append(self, fetcher: object, fetched: Fetched) -> None:
        """Commits what the fetcher has copied. Raises as `append_as_follower` and the error of this fetch."""
        self._appends.add(fetcher, _Append(fetcher, fetched))

    def publish(self, fetcher: object, why: str) -> None:
        """Publishes the replica rows with all that the fetcher has done. Raises StaleBrokerEpochException and
        KafkaStorageException."""
        self._rows.add(fetcher, why)

    def done(self, fetcher: object) -> None:
        """Ends a round of the fetcher: nobody waits for it any more."""
        self._appends.give_up(fetcher)
        self._rows.give_up(fetcher)

    def _append(self, appends: Sequence[_Append]) -> Sequence[Exception | None]:
        errors = append_as_follower(self._log, [append.fetched for append in appends], self._name)
        for append, error in zip(appends, errors, strict=True):
            if error is None:  # before any of them is told, so that each waits for the others' rows
                self._rows.expect(append.fetcher)
        return errors

    def _publish(self, reasons: Sequence[str]) -> Sequence[Exception | None]:
        self._write_rows(reasons[0])
        return [None] * len(reasons)


class _Append(NamedTuple):
    fetcher: object
    fetched: Fetched
