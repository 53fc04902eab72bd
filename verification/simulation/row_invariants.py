"""Invariants of published rows, and of reads that rely on them. Each raises Violation if it does not hold."""

from __future__ import annotations

from lakelog.replication.protocol.replica_status import LEADER_ROLE, Replica
from lakelog.verification.simulation.events import Violation
from lakelog.verification.simulation.history_facts import Branch, Entry, HistoryFacts
from lakelog.verification.simulation.invariants import has, holds_committed, row_is_true


def rows_never_go_back(_: HistoryFacts, before: Replica | None, row: Replica) -> None:
    """What a broker says is of a later epoch each time; a leader's HW does not fall within one leadership."""
    if before is None:
        return
    epochs = [(told.leader_epoch, told.broker_epoch) for told in (before, row)]
    if epochs[1][0] < epochs[0][0] or epochs[1][1] < epochs[0][1]:
        raise Violation("rows_never_go_back", f"broker {row.broker_id}: {before} became {row}")


def high_watermark_never_falls(checker: HistoryFacts, _: Replica | None, row: Replica) -> None:
    """Within one leadership the HW rises, whichever process of the broker tells it."""
    last = checker.high_watermarks.get((row.topic_id_partition, row.leader_epoch), 0)
    if row.role == LEADER_ROLE and row.high_watermark < last:
        text = f"broker {row.broker_id}, leader epoch {row.leader_epoch}: HW {last} became {row.high_watermark}"
        raise Violation("high_watermark_never_falls", text)


def rows_are_true(checker: HistoryFacts, _: Replica | None, row: Replica) -> None:
    """A row never claims more than its log."""
    log = checker.log(row.broker_id, row.topic_id_partition)
    if log.role.leader_epoch == row.leader_epoch:
        row_is_true(row, log)


def committed_prefixes_are_equal(checker: HistoryFacts, _: Replica | None, row: Replica) -> None:
    """All leaders of one history agree on what lies below their HWs, no record is in it twice, and the ISR has it."""
    if row.role != LEADER_ROLE:
        return
    partition, name = row.topic_id_partition, f"broker {row.broker_id}, leader epoch {row.leader_epoch}"
    table, branch = checker.world.logs[row.broker_id], checker.branch(row.topic_id_partition, row.leader_epoch)
    log = table.at(row.log_version).partition(partition)
    checker.begin(log, branch)
    known = len(checker.committed[branch])
    first = checker.high_watermarks.get((partition, row.leader_epoch), 0)
    lack = checker.lacks(log, branch, first, checker.committed[branch][first : row.high_watermark])
    if lack or row.high_watermark > log.log_end_offset:
        raise Violation("committed_prefixes_are_equal", f"{name}: HW {row.high_watermark}: {lack}")
    new = checker.commit(log, branch, row.high_watermark)
    _nothing_twice(checker, branch, new, name)
    for broker, later in checker.later_leaders(partition, row.leader_epoch) if new else ():
        has(
            checker,
            "committed_is_in_later_leaders",
            later,
            branch,
            known,
            new,
            f"broker {broker} leads at {later.role}",
        )
    registration = checker.registration(partition)
    if registration and checker.branch(partition, registration.leader_epoch) == branch:
        for broker in registration.isr if row.high_watermark > known else ():
            holds_committed(checker, broker, checker.log(broker, partition), registration, known)


def _nothing_twice(checker: HistoryFacts, branch: Branch, new: list[Entry], name: str) -> None:
    values = checker.committed_values[branch]
    for entry in new:
        if entry.value in values:
            raise Violation("nothing_is_committed_twice", f"{name}: {entry.value} is committed twice")
        values.add(entry.value)


def read_is_committed(checker: HistoryFacts, branch: Branch, found: list[Entry], high_watermark: int) -> None:
    """What is read is all that was committed below the HW, in the history that it was read from."""
    committed = checker.committed[branch][:high_watermark]
    if found != committed:
        raise Violation("read_is_never_denied", f"{branch}: {found} was read, {committed} is committed")


OF_ROWS = (rows_never_go_back, high_watermark_never_falls, rows_are_true, committed_prefixes_are_equal)
