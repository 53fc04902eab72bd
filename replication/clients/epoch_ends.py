"""Where leader epochs end in a leader's log.

Kafka: `ReplicaManager.lastOffsetForLeaderEpoch`. KIP-101, KIP-279. [EP-03]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lakelog.replication.clients.consumer_fetch import led_log
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import NotLeaderOrFollowerException
from lakelog.replication.protocol.leader_epoch import end_offset_for


class EpochEndOffset(NamedTuple):
    """The largest epoch at or below the requested one, and the offset after its last record; -1 if unknown."""

    leader_epoch: int
    end_offset: int


def epoch_ends(
    view: TopicView, topic: str, partition: int, epochs: Iterable[int], broker_id: int | None
) -> dict[int, EpochEndOffset]:
    """See `Consumer.epoch_end`."""
    seen = TopicWatch(view, topic, [partition]).leadership(partition)
    registration = seen.registration
    if broker_id not in (None, registration.leader):
        raise NotLeaderOrFollowerException(
            f"{topic}-{partition}: broker {broker_id} does not lead, broker {registration.leader} does"
        )
    log = led_log(seen, lambda leader: view.log(leader).refresh())
    return {e: EpochEndOffset(*end_offset_for(log.lineage, log.log_end_offset, e)) for e in epochs}
