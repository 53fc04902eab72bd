"""Invariants after every step, each as a function of the step's change. Each raises Violation if it does not hold."""

from __future__ import annotations

from typing import NamedTuple

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog, role_version
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Replica
from lakelog.verification.simulation.controller_invariants import reassignments_end_at_their_target
from lakelog.verification.simulation.events import Violation
from lakelog.verification.simulation.history_facts import AcknowledgedBatch, Branch, Entry, HistoryFacts
from lakelog.verification.simulation.tables import SimulatedLogChange, SimulatedLogState


class LogCommit(NamedTuple):
    """The effect of a commit on one partition in a broker's log."""

    broker: int
    topic_id_partition: TopicIdPartition
    state_before: SimulatedLogState
    state: SimulatedLogState
    change: SimulatedLogChange

    @property
    def before(self) -> PartitionLog:
        """The partition's log before it."""
        return self.state_before.partition(self.topic_id_partition)

    @property
    def log(self) -> PartitionLog:
        """The partition's log after it."""
        return self.state.partition(self.topic_id_partition)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.topic_id_partition} on broker {self.broker}"


def offsets_are_without_gaps(_: HistoryFacts, commit: LogCommit) -> None:
    """A log has every offset from its start to its end once."""
    try:
        commit.log.check(commit.topic_id_partition)
    except CorruptRecordException as error:
        raise Violation("offsets_are_without_gaps", f"{commit.name}: {error}") from error


def one_record_at_an_offset_of_an_epoch(checker: HistoryFacts, commit: LogCommit) -> None:
    """No two logs differ at one (partition, offset, epoch), nor in what comes before it."""
    for batch in commit.change.adds:
        header = batch.header
        if header.topic_id_partition != commit.topic_id_partition:
            continue
        previous = next(
            (e.leader_epoch for e in checker.entries(commit.log, header.base_offset - 1, header.base_offset)), -1
        )
        for offset, value in enumerate(batch.values, header.base_offset):
            key = (commit.topic_id_partition, offset, header.leader_epoch)
            known = checker.values.setdefault(key, value)
            is_first = previous < 0 < offset  # the records before it were deleted
            before = previous if is_first else checker.previous_epochs.setdefault(key, previous)
            if known != value or before != previous:
                text = (
                    f"{commit.name}: offset {offset} of epoch {header.leader_epoch} is {value} after epoch {previous}"
                )
                raise Violation(
                    "one_record_at_an_offset_of_an_epoch", f"{text}, elsewhere {known} after epoch {before}"
                )
            previous = header.leader_epoch


def only_committed_is_deleted(checker: HistoryFacts, commit: LogCommit) -> None:
    """A leader's log start rises to no more than what is committed, and so far others may follow."""
    start = commit.change.log_starts.get(commit.topic_id_partition)
    if start is None or not commit.before.role.is_leader:
        return
    branch = checker.branch(commit.topic_id_partition, commit.before.role.leader_epoch)
    committed = len(checker.committed[branch])
    if start > committed or start < commit.before.log_start_offset:
        raise Violation("only_committed_is_deleted", f"{commit.name}: starts at {start}, {committed} are committed")
    checker.deleted[branch] = max(start, checker.deleted[branch])


def log_starts_follow_deletions(checker: HistoryFacts, commit: LogCommit) -> None:
    """No log starts where nobody has deleted to, nor above its own end."""
    start = commit.log.log_start_offset
    deleted = max((end for (p, _), end in checker.deleted.items() if p == commit.topic_id_partition), default=0)
    if start > min(deleted, commit.log.log_end_offset):
        text = f"{commit.name}: starts at {start} and ends at {commit.log.log_end_offset}, deletions reach {deleted}"
        raise Violation("log_starts_follow_deletions", text)


def records_begin_under_an_open_epoch(checker: HistoryFacts, commit: LogCommit) -> None:
    """A record that no log has had before is appended by a leader, under the very epoch that its log is open at."""
    for batch in commit.change.adds:
        header, role = batch.header, commit.before.role
        key = (commit.topic_id_partition, header.base_offset, header.leader_epoch)
        is_new = header.topic_id_partition == commit.topic_id_partition and key not in checker.values
        if is_new and not role.leads_at(header.leader_epoch):
            text = f"{commit.name}: {batch.values} appended under epoch {header.leader_epoch}, the log is {role}"
            raise Violation("records_begin_under_an_open_epoch", text)


def one_log_opens_an_epoch(checker: HistoryFacts, commit: LogCommit) -> None:
    """At most one log ever opens a leader epoch."""
    role = commit.change.roles.get(commit.topic_id_partition)
    if role is None or not role.is_leader:
        return
    opener = checker.openers.setdefault((commit.topic_id_partition, role.leader_epoch), commit.broker)
    if opener != commit.broker:
        raise Violation("one_log_opens_an_epoch", f"{commit.name}: epoch {role.leader_epoch} was opened by {opener}")


def roles_never_go_back(_: HistoryFacts, commit: LogCommit) -> None:
    """Neither the role of a partition nor the claim on a log falls. A stray replica may take its old role again."""
    is_lower = role_version(commit.log.role) < role_version(commit.before.role.before_stray)
    if is_lower or commit.state.broker_epoch < commit.state_before.broker_epoch:
        raise Violation("roles_never_go_back", f"{commit.name}: {commit.before.role} became {commit.log.role}")


def a_leader_truncates_nothing(_: HistoryFacts, commit: LogCommit) -> None:
    """A log that is open loses nothing."""
    if commit.topic_id_partition in commit.change.drops and commit.before.role.is_leader:
        raise Violation("a_leader_truncates_nothing", f"{commit.name}: truncated while {commit.before.role}")


def members_of_the_isr_keep_what_is_committed(checker: HistoryFacts, commit: LogCommit) -> None:
    """A truncation leaves what is committed to a member of the ISR."""
    registration = checker.registration(commit.topic_id_partition)
    if commit.topic_id_partition in commit.change.drops and registration and commit.broker in registration.isr:
        holds_committed(checker, commit.broker, commit.log, registration)


def no_row_claims_what_is_truncated(checker: HistoryFacts, commit: LogCommit) -> None:
    """While a row says that its replica is Fetching, its log has what it says."""
    if commit.topic_id_partition not in commit.change.drops:
        return
    table = checker.world.replicas[commit.broker]
    row = table.at(table.newest).replicas.get(commit.topic_id_partition)
    if row is not None and row.leader_epoch == commit.log.role.leader_epoch:
        row_is_true(row, commit.log)


def leaders_have_what_was_promised(checker: HistoryFacts, commit: LogCommit) -> None:
    """Who begins to lead by a clean election has what was acknowledged, committed and read before."""
    role = commit.change.roles.get(commit.topic_id_partition)
    if role is None or not role.is_leader:
        return
    partition, epoch, where = (
        commit.topic_id_partition,
        role.leader_epoch,
        f"{commit.name} leads at epoch {role.leader_epoch}",
    )
    branch = checker.branch(partition, epoch)
    for promise in checker.acknowledged[branch]:
        if promise.granted < epoch:
            leader_has(checker, commit.broker, commit.log, branch, promise)
    committed = checker.committed[branch][: checker.before(partition, epoch, checker.high_watermarks)]
    read = checker.read[branch][: checker.before(partition, epoch, checker.read_to)]
    has(checker, "read_is_never_denied", commit.log, branch, 0, read, where)
    has(checker, "committed_is_in_later_leaders", commit.log, branch, 0, committed, where)


def leader_has(
    checker: HistoryFacts, broker: int, log: PartitionLog, branch: Branch, promise: AcknowledgedBatch
) -> None:
    """A later leader has the acknowledged records."""
    where = f"broker {broker} leads at epoch {log.role.leader_epoch}"
    has(checker, "acknowledged_is_in_later_leaders", log, branch, promise.base_offset, list(promise.entries), where)


def has(
    checker: HistoryFacts, name: str, log: PartitionLog, branch: Branch, start: int, wanted: list[Entry], where: str
) -> None:
    """A log has the entries from `start` on."""
    lack = checker.lacks(log, branch, start, wanted)
    if lack:
        raise Violation(name, f"{where}: {lack}")


def leader_is_in_the_isr(_: HistoryFacts, __: PartitionRegistration | None, after: PartitionRegistration) -> None:
    """There is no leader, or it is in the ISR, whose members are replicas."""
    if after.leader not in (NO_LEADER, LEADER_DURING_DELETE, *after.isr) or not set(after.isr) <= set(after.replicas):
        raise Violation("leader_is_in_the_isr", f"{after}")


def epochs_never_go_back(_: HistoryFacts, before: PartitionRegistration | None, after: PartitionRegistration) -> None:
    """Leader and partition epoch rise; another leader or other replicas come with another leader epoch."""
    if before is None:
        return
    is_lower = after.leader_epoch < before.leader_epoch
    is_same_role = (before.leader, before.replicas) == (after.leader, after.replicas)
    is_unfenced = after.leader_epoch == before.leader_epoch and not is_same_role
    if is_lower or is_unfenced or after.partition_epoch <= before.partition_epoch:
        raise Violation("epochs_never_go_back", f"{before} became {after}")


def isr_holds_what_is_committed(
    checker: HistoryFacts, _: PartitionRegistration | None, after: PartitionRegistration
) -> None:
    """Every member of the ISR has all committed records."""
    for broker in after.isr:
        holds_committed(checker, broker, checker.log(broker, after.topic_id_partition), after)


def holds_committed(
    checker: HistoryFacts, broker: int, log: PartitionLog, registration: PartitionRegistration, start: int = 0
) -> None:
    """A member of the ISR has the committed records from `start` on, unless the topic is being deleted."""
    if registration.leader == LEADER_DURING_DELETE:
        return
    partition = registration.topic_id_partition
    branch = checker.branch(partition, registration.leader_epoch)
    lack = checker.lacks(log, branch, start, checker.committed[branch][start:])
    if lack:
        text = f"{partition} on broker {broker}, in the ISR {registration.isr}: {lack}"
        raise Violation("isr_holds_what_is_committed", text)


def row_is_true(row: Replica, log: PartitionLog) -> None:
    """A row that says Fetching has a LEO that is at most its log's."""
    if row.state == FollowerState.FETCHING and row.log_end_offset > log.log_end_offset:
        text = f"broker {row.broker_id}: the row's LEO is {row.log_end_offset}, the log's {log.log_end_offset}"
        raise Violation("a_row_never_claims_more_than_its_log", text)


OF_LOGS = (
    offsets_are_without_gaps, only_committed_is_deleted, log_starts_follow_deletions, records_begin_under_an_open_epoch,
    one_record_at_an_offset_of_an_epoch, one_log_opens_an_epoch, roles_never_go_back, a_leader_truncates_nothing,
    members_of_the_isr_keep_what_is_committed, no_row_claims_what_is_truncated, leaders_have_what_was_promised,
)  # fmt: skip
OF_METADATA = (
    leader_is_in_the_isr, epochs_never_go_back, isr_holds_what_is_committed, reassignments_end_at_their_target,
)  # fmt: skip
