"""The sabotages that the stack tier has to catch: shipped storage, rounds and rules with a line broken.

Each is a past bug, or one that a careless clean-up of the code could make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakelog.replication.server.registration import Registration
from lakelog.replication.storage.delta.compare_and_set import compare_and_set
from lakelog.replication.storage.delta.delta_log import CommitConflict, DeltaLog
from lakelog.replication.storage.log import segment_pieces
from lakelog.replication.storage.log.broken_segments import SoughtRange
from lakelog.replication.storage.log.log_change import LogChange
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.piece_writer import write_pieces
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.verification.simulation.stack.breaks import StackSabotage, at
from lakelog.verification.simulation.stack.criticals import CRITICALS
from lakelog.verification.simulation.stack.identity_sabotage import IDENTITY
from lakelog.verification.simulation.stack.schedules import rare
from lakelog.verification.simulation.stack.shared_sabotage import SHARED

_next, _decoded_batches = Registration._next, segment_pieces._decoded_batches
_may_meet = SoughtRange.may_meet


def _is_decided_once(
    log: ReplicaLog, cause: Any, decide: Callable[[LogState], Any], deadline: Any = None, patience: Any = None
) -> Any:
    decided: list[LogChange | None] = []

    def attempt(age: float | None) -> int | None:
        with log._lock:
            state = log._refresh(age)
            decided.append(decided[0] if decided else decide(state))
            return None if decided[0] is None else log._commit(cause, decided[0])

    return compare_and_set(log.root, attempt, deadline, patience)


def _writes_what_it_had(table: StateTable, cause: Any, change: Any, txns: Any = None, *_: Any, **__: Any) -> Any:
    decided: list[Any] = []

    def attempt(age: float | None) -> int | None:
        with table._lock:
            table._refresh(age)
            decided.append(decided[0] if decided else change(list(table._rows)))
            return None if decided[0] is None else table._commit(dict(cause), decided[0], txns)

    return compare_and_set(table._log.root, attempt, None)


def _takes_silence_for_landed(_log: DeltaLog, _expected: int, _nonce: str, error: Exception) -> None:
    if isinstance(error, FileExistsError):
        raise CommitConflict(str(error)) from error


def _registers_as_before(registration: Registration, last: Any, *given: Any, **named: Any) -> Any:
    offered = _next(registration, last, *given, **named)
    registration._offered = replace(offered, broker_epoch=max(1, offered.broker_epoch - 1)) if last else offered
    return registration._offered


def _spoils_a_row(*given: Any) -> Any:
    for piece in _decoded_batches(*given):
        rows = piece.table
        value = pa.array([*rows["value"].to_pylist()[:-1], b"spoilt"], rows.schema.field("value").type)
        yield replace(piece, table=rows.set_column(rows.schema.get_field_index("value"), "value", value))


def _leaves_out_a_batch(root: Any, leader: Any, pieces: Any) -> Any:
    return write_pieces(root, leader, pieces[:-1] or pieces)


STORAGE: dict[str, StackSabotage] = {
    "errors_are_taken_for_landed": StackSabotage(
        "a commit without an answer counts as landed, without a check",
        at(("storage.delta.delta_log.DeltaLog._settle", _takes_silence_for_landed)),
    ),
    "changes_are_decided_once": StackSabotage(
        "a writer that loses a compare-and-set commits the same change again",
        at(("storage.log.replica_log.ReplicaLog.transact", _is_decided_once)),
    ),
    "state_is_written_over": StackSabotage(
        "a writer that loses a compare-and-set on a state table overwrites the winner's rows",
        at(("storage.tables.state_table.StateTable.update", _writes_what_it_had)),
    ),
    "the_predecessor_is_not_checked": StackSabotage(
        "a commit counts even if the commit before it is gone",
        at(("storage.delta.known_commits.KnownCommits.is_there", lambda *_: True)),
        rare.commit_into_a_hole,
    ),
    "commits_are_known_by_name": StackSabotage(
        "a file with the name of a known commit counts as that commit",
        at(("storage.delta.known_commits.KnownCommits._is_known", lambda _, __, stamp: stamp is not None)),
        rare.commit_into_a_hole,
    ),
    "compaction_spoils_a_row": StackSabotage(
        "compaction writes another value than it read",
        at(("storage.log.segment_pieces._decoded_batches", _spoils_a_row)),
    ),
    "compaction_drops_a_batch": StackSabotage(
        "compaction leaves out a batch",
        at(
            ("storage.log.compaction.write_pieces", _leaves_out_a_batch),
            ("storage.log.replica_log.check_change", lambda *_: None),
        ),
    ),
    "broker_epochs_stand_still": StackSabotage(
        "a new process has the broker epoch of the one before it",
        at(("server.registration.Registration._next", _registers_as_before)),
    ),
}


_MAY_MEET = "storage.log.broken_segments.SoughtRange.may_meet"
FETCHES: dict[str, StackSabotage] = {
    "nobody_is_behind": StackSabotage(
        "a follower that finds what it lacks does not mark its partitions as behind",
        at(("server.fetcher.fetch_states.SharedFetchStates.fell_behind", lambda *_: None)),
    ),
    "a_failed_copy_fails_alone": StackSabotage(
        "the plan keeps the other segments of a partition of which a copy has failed",
        at(("server.fetcher.segment_copier._leave_out", lambda wanted, _: wanted)),
    ),
    "files_end_before_their_last_offset": StackSabotage(
        "a fetch reads no file that ends at its offset",
        at((_MAY_MEET, lambda sought, file: _may_meet(sought._replace(offset=sought.offset + 1), file))),
    ),
    "files_of_the_first_partition": StackSabotage(
        "a fetch reads only files that may hold the first of its partitions",
        at((_MAY_MEET, lambda sought, file: _may_meet(sought._replace(partitions=(sought.partitions[0],) * 2), file))),
    ),
}
STACK_SABOTAGES: dict[str, StackSabotage] = {**CRITICALS, **STORAGE, **FETCHES, **IDENTITY, **SHARED}
