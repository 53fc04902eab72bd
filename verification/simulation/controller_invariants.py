"""Invariants of controllers: what they write and what they have decided. Each raises Violation if it does not hold."""

from __future__ import annotations

from collections.abc import Mapping

from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.errors import InvalidRequestException, UnknownServerException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning, original_replicas, target_replicas
from lakelog.verification.simulation.events import Violation
from lakelog.verification.simulation.history_facts import HistoryFacts
from lakelog.verification.simulation.tables import Metadata


def controllers_never_go_back(before: Metadata, after: Metadata) -> None:
    """The claim on the metadata never falls, and nobody overwrites the decision of a newer controller."""
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

    Another order of the same replicas is no reassignment, since nobody has to catch up. A new reassignment request may
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


def what_is_gone_was_deleted(checker: HistoryFacts, gone: PartitionRegistration) -> None:
    """A partition leaves the metadata when no replica has anything of it any more, and its topic is to be deleted."""
    partition, topics = gone.topic_id_partition, checker.world.topics
    left = [broker for broker in gone.replicas if checker.log(broker, partition).batches]
    topic = topics.at(topics.newest).topics.get(gone.topic)
    if left or topic is None or not topic.deleting:
        raise Violation("what_is_gone_was_deleted", f"{partition}: brokers {left} have records; {topic}")


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
