"""The invariants after each step: replica rows agree with their logs, and epochs only go up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning, original_replicas
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.verification.simulation.history_events import NO_FAULTS, Violation, as_violation
from lakelog.verification.simulation.stack.faulty_store import StoreUser
from lakelog.verification.simulation.stack.stack_processes import StackBroker

Committed = tuple[TopicIdPartition, int, str]  # a partition, its high watermark, and the chain there
Partitions = Mapping[TopicIdPartition, PartitionRegistration]
_NO_CLAIM = FollowerState.TRUNCATING, FollowerState.OFFLINE


def violation_of(error: Exception | Violation) -> Violation:
    """An error of shipped code as a violation: `the_code_does_not_fail` for errors of Lakelog and of the store,
    NO_FAULTS for any other."""
    is_ours = isinstance(error, (LakelogException, OSError))
    return as_violation(error, "the_code_does_not_fail" if is_ours else NO_FAULTS)


@contextmanager
def no_error_gets_out() -> Iterator[None]:
    """Turns an error inside the block into a Violation. The process whose step was interrupted must not handle it."""
    try:
        yield
    except Exception as error:
        raise violation_of(error) from error


def checked(
    publish: Callable[..., Any], actor: Callable[[], StoreUser | None], published_hws: set[Committed]
) -> Callable[..., Any]:
    """Wraps `publish`: raises Violation if a row differs from its log in end or lineage, and adds the high watermark of
    each leader's row to `published_hws`."""

    def published(table: ReplicaTable, rows: Iterable[ReplicaStatus], why: str) -> Any:
        who, published = actor(), list(rows)
        session = who.broker.session if isinstance(who, StackBroker) and who.broker is not None else None
        if who is not None and session is not None:
            for row in published:
                log = session.replica_manager._log.current().known(row.topic_id_partition)
                is_true = log.chain_at(row.log_end_offset) == row.chain and row.epochs == log.lineage
                if row.state not in _NO_CLAIM and not is_true:
                    text = f"{who.name} publishes {row} of a log that ends at {log.log_end}, {log.lineage}"
                    raise Violation("rows_tell_what_the_log_has", text)
                chain = log.chain_at(row.high_watermark)
                if row.role == LEADER_ROLE and row.high_watermark > 0 and chain is not None:
                    published_hws.add((row.topic_id_partition, row.high_watermark, chain))
        return publish(table, published, why)

    return published


def check_changes(before: Partitions, after: Partitions, logs: Callable[[], Mapping[int, ReplicaLog]]) -> None:
    """Raises Violation unless the change of the metadata is legal.

    A changed partition has a higher partition epoch, and a new leader a higher leader epoch. No controller overwrites a
    newer one's decision. Once no reassignment is under way, each replica is or was in the ISR, or was an original
    replica. A partition that is removed was being deleted, and no log has records of it.
    """
    for partition, then in before.items():
        now = after.get(partition)
        if now is None:
            _check_is_deleted(then, logs())
        elif now != then and not _may_follow(then, now):
            raise Violation("epochs_only_go_up", f"{now} came after {then}")
        elif now.controller_epoch < then.controller_epoch:
            raise Violation("controllers_never_go_back", f"{now} came after {then}")
        elif not is_reassigning(now) and not set(now.replicas) <= {*then.isr, *now.isr, *original_replicas(then)}:
            raise Violation("reassignments_end_at_their_target", f"{now} came after {then}")


def _check_is_deleted(removed: PartitionRegistration, logs: Mapping[int, ReplicaLog]) -> None:
    left = [broker for broker, log in logs.items() if log.current().known(removed.topic_id_partition).batches]
    if left or removed.leader != LEADER_DURING_DELETE:
        raise Violation("what_is_removed_was_deleted", f"{removed} is removed, and brokers {left} have records of it")


def _may_follow(then: PartitionRegistration, now: PartitionRegistration) -> bool:
    has_same_leader = now.leader == then.leader and now.leader_epoch == then.leader_epoch
    return now.partition_epoch > then.partition_epoch and (has_same_leader or now.leader_epoch > then.leader_epoch)
