"""Invariants after every step, each as a function of the step's change. Each raises Violation if it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.errors import CorruptRecordException, InvalidRequestException, UnknownServerException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog, role_version
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning, original_replicas, target_replicas
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.history_facts import AcknowledgedBatch, Branch, Entry, HistoryFacts
from lakelog.verification.simulation.simulated_tables import Metadata, SimulatedLogChange, SimulatedLogState


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
    """No log starts above the offset to which records were deleted, nor above its own end."""
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
    """While the state of a row is Fetching, its log has what the row claims."""
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


def row_is_true(row: ReplicaStatus, log: PartitionLog) -> None:
    """A row in the state Fetching has a LEO that is at most its log's."""
    if row.state == FollowerState.FETCHING and row.log_end_offset > log.log_end_offset:
        text = f"broker {row.broker_id}: the row's LEO is {row.log_end_offset}, the log's {log.log_end_offset}"
        raise Violation("a_row_never_claims_more_than_its_log", text)


def rows_never_go_back(_: HistoryFacts, before: ReplicaStatus | None, row: ReplicaStatus) -> None:
    """Each row of a broker is of the same or a later epoch; a leader's HW does not fall within one leadership."""
    if before is None:
        return
    epochs = [(each.leader_epoch, each.broker_epoch) for each in (before, row)]
    if epochs[1][0] < epochs[0][0] or epochs[1][1] < epochs[0][1]:
        raise Violation("rows_never_go_back", f"broker {row.broker_id}: {before} became {row}")


def high_watermark_never_falls(checker: HistoryFacts, _: ReplicaStatus | None, row: ReplicaStatus) -> None:
    """Within one leadership the HW rises, whichever process of the broker publishes it."""
    last = checker.high_watermarks.get((row.topic_id_partition, row.leader_epoch), 0)
    if row.role == LEADER_ROLE and row.high_watermark < last:
        text = f"broker {row.broker_id}, leader epoch {row.leader_epoch}: HW {last} became {row.high_watermark}"
        raise Violation("high_watermark_never_falls", text)


def rows_are_true(checker: HistoryFacts, _: ReplicaStatus | None, row: ReplicaStatus) -> None:
    """A row never claims more than its log."""
    log = checker.log(row.broker_id, row.topic_id_partition)
    if log.role.leader_epoch == row.leader_epoch:
        row_is_true(row, log)


def committed_prefixes_are_equal(checker: HistoryFacts, _: ReplicaStatus | None, row: ReplicaStatus) -> None:
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


def controllers_never_go_back(before: Metadata, after: Metadata) -> None:
    """The claim on the metadata never falls, and no controller overwrites the decision of a newer one."""
    if after.controller_epoch < before.controller_epoch:
        raise Violation("controllers_never_go_back", f"claim {before.controller_epoch} became {after.controller_epoch}")
    for partition, registration in after.partitions.items():
        last = before.partitions.get(partition)
        if last is not None and registration.controller_epoch < last.controller_epoch:
            raise Violation("controllers_never_go_back", f"{last} became {registration}")


def reassignments_end_at_their_target(
    checker: HistoryFacts, before: PartitionRegistration | None, after: PartitionRegistration
) -> None:
    """A reassignment ends with exactly its target assigned, all in sync, or, if it was cancelled, with its original
    replicas.

    Another order of the same replicas is no reassignment, as no replica has to catch up. A new reassignment request may
    end the current one at once, at another target.
    """
    is_same = not is_reassigning(before) and set(before.replicas) == set(after.replicas) if before else True
    if before is None or is_same or is_reassigning(after):
        return
    metadata = checker.world.metadata
    is_replaced = metadata.at(metadata.newest).request is not None
    order = set if is_replaced else tuple
    is_cancelled = is_reassigning(before) and order(after.replicas) == order(original_replicas(before))
    is_at_target = is_replaced or not is_reassigning(before) or after.replicas == target_replicas(before)
    if not is_cancelled and not (is_at_target and set(after.replicas) <= {*before.isr, *after.isr}):
        raise Violation("reassignments_end_at_their_target", f"{before} became {after}")


def what_is_removed_was_deleted(checker: HistoryFacts, removed: PartitionRegistration) -> None:
    """A partition leaves the metadata when no replica has anything of it any more, and its topic is to be deleted."""
    partition, topics = removed.topic_id_partition, checker.world.topics
    left = [broker for broker in removed.replicas if checker.log(broker, partition).batches]
    topic = topics.at(topics.newest).topics.get(removed.topic)
    if left or topic is None or not topic.deleting:
        raise Violation("what_is_removed_was_deleted", f"{partition}: brokers {left} have records; {topic}")


def a_new_broker_epoch_is_a_failure(
    seen: Mapping[int, BrokerView], before: ControllerContext, after: ControllerContext
) -> None:
    """A broker with a new epoch leaves every ISR, except as its last member, or if the new process has joined it
    already; older changes are fenced. A partition that is queued for deletion does not change, unless the deletion
    waits for a reassignment.
    """
    queued = {topic.topic_id for topic in after.topics.values() if topic.deleting}
    bounced = {b: v for b, v in before.brokers.items() if b in seen and seen[b].broker_epoch != v.broker_epoch}
    for partition, last in before.partitions.items() if bounced else ():
        now = after.partitions.get(partition)
        is_queued = now is not None and now.topic_id in queued and not is_reassigning(last)
        if now is None or is_queued or now.leader == LEADER_DURING_DELETE:
            continue
        for broker, view in bounced.items():
            is_fenced = now.partition_epoch > last.partition_epoch
            is_older = broker in now.isr and now.isr_epoch(broker) < view.broker_epoch
            if broker in last.replicas and not (is_fenced and (not is_older or now.isr == (broker,))):
                text = f"broker {broker} has begun another epoch: {last} became {now}"
                raise Violation("a_new_broker_epoch_is_a_failure", text)


def requests_are_read(request: AdminRequest, outcomes: Mapping[str, Outcome]) -> None:
    """A well-formed request is carried out or refused. It never counts as illegible, and never meets an error of the
    code."""
    faults = {InvalidRequestException.__name__, UnknownServerException.__name__}
    if any(outcome.error in faults for outcome in outcomes.values()):
        raise Violation("requests_are_read", f"{request}: {outcomes}")


OF_LOGS = (
    offsets_are_without_gaps, only_committed_is_deleted, log_starts_follow_deletions, records_begin_under_an_open_epoch,
    one_record_at_an_offset_of_an_epoch, one_log_opens_an_epoch, roles_never_go_back, a_leader_truncates_nothing,
    members_of_the_isr_keep_what_is_committed, no_row_claims_what_is_truncated, leaders_have_what_was_promised,
)  # fmt: skip
OF_METADATA = (
    leader_is_in_the_isr, epochs_never_go_back, isr_holds_what_is_committed, reassignments_end_at_their_target,
)  # fmt: skip
OF_ROWS = (rows_never_go_back, high_watermark_never_falls, rows_are_true, committed_prefixes_are_equal)
