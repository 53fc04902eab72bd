"""Describes changes of brokers, leaders and ISRs in lines for the controller's log.

The lines are the difference between two contexts: the one that was logged last, and the one after a commit. So each
change is logged once, even if a leader made it or the reply to its commit was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.protocol.partition_changes import partition_changes
from lakelog.replication.protocol.partition_registration import NO_LEADER


def cluster_changes(
    before: ControllerContext, after: ControllerContext, why: str, storage_errors: Mapping[int, str]
) -> list[str]:
    """One line for each broker that has started, gone or begun to stop, and one for all partitions.

    If a single broker has changed, it is the cause of the partitions' changes, and both share a line. Otherwise the
    line of the partitions names `why`, the event. `storage_errors` has the errors that brokers report, by id.
    """
    known = sorted(before.brokers.keys() | after.brokers.keys())
    brokers = [line for b in known if (line := _broker_change(b, before, after, storage_errors)) is not None]
    partitions = partition_changes(before.partitions, after.partitions)
    if not partitions:
        return brokers
    if len(brokers) == 1:
        return [f"{brokers[0]}: {partitions}"]
    return [*brokers, f"{why}: {partitions}"]


def _broker_change(
    broker: int, before: ControllerContext, after: ControllerContext, storage_errors: Mapping[int, str]
) -> str | None:
    was, now = before.brokers.get(broker), after.brokers.get(broker)
    if now is None:
        if was is not None and was.shutting_down:
            return f"broker {broker} has stopped"
        silence = f"no heartbeat for {after.config.broker_session_timeout_ms / 1000:g} s"
        error = storage_errors.get(broker)
        return f"broker {broker} is lost ({f'its storage fails: {error}' if error else silence})"
    if was is None:
        verb = "is back" if broker in before.registered else "has registered"
        return f"broker {broker} {verb} under broker epoch {now.broker_epoch}"
    if was.broker_epoch != now.broker_epoch:
        return f"broker {broker} has started again under broker epoch {now.broker_epoch}"
    if now.shutting_down and not was.shutting_down:
        return f"broker {broker} is shutting down"
    return None


def overview(context: ControllerContext) -> str:
    """The numbers of brokers and partitions, in one line for the log at failover."""
    dead = sorted(context.registered - context.brokers.keys())
    offline = sum(registration.leader == NO_LEADER for registration in context.partitions.values())
    return (
        f"brokers alive: {_numbers(sorted(context.brokers))}; dead: {_numbers(dead)}; "
        f"partitions: {len(context.partitions)}, {offline} of them offline"
    )


def _numbers(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"
