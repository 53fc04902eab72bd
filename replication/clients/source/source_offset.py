"""The offset of a query in its checkpoint. Spark: `KafkaSourceOffset`; ours also has the ids of cluster and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.record_batch import TopicPartition

_VERSION = 1
Each = TypeVar("Each")


class LastEpoch(NamedTuple):
    """The leader epoch of the last record before an offset, and the first offset that the log had of it."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True)
class SourceOffset:
    """The next offset to read of each partition, and the id of each topic: a topic made again has another id.

    `epochs`: the leader epoch of the record before the offset, where it is known, and where that epoch starts. In a log
    that an unclean election has put in the place of another, that record has another epoch (KIP-320).

    Spark does not log where a query starts. So the end of the first batch has it too, as `begun`: if that batch runs
    again, it reads the same records.
    """

    cluster_id: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_initial: bool = False
    begun: SourceOffset | None = None
    epochs: Mapping[TopicPartition, LastEpoch] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark, which compares it as text: equal offsets give equal texts."""
        ids = dict(sorted(self.topic_ids.items()))
        more = {"initial": True} if self.is_initial else {}
        begun = {"begun": self.begun.to_json()} if self.begun else {}
        return {
            "version": _VERSION,
            "cluster_id": self.cluster_id,
            "topic_ids": ids,
            "offsets": _by_topic(self.offsets),
            **({"epochs": _by_topic({p: list(epoch) for p, epoch in self.epochs.items()})} if self.epochs else {}),
            **more,
            **begun,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], cluster_id: str) -> SourceOffset:
        """The offset in a checkpoint. Raises InvalidConfigurationException if another source or version wrote it, or it
        is of another cluster."""
        if found.get("version") != _VERSION:
            raise InvalidConfigurationException(
                f"the checkpoint has the offset {dict(found)!r}, which this version of Lakelog did not write; "
                "start the query with a new checkpointLocation"
            )
        if found["cluster_id"] != cluster_id:
            raise InvalidConfigurationException(
                f"the checkpoint is of cluster {found['cluster_id']}, the option cluster names {cluster_id}; start the "
                "query with a new checkpointLocation"
            )
        offsets = _by_partition(found["offsets"])
        epochs = {partition: LastEpoch(*each) for partition, each in _by_partition(found.get("epochs", {})).items()}
        begun = cls.from_json(found["begun"], cluster_id) if "begun" in found else None
        return cls(cluster_id, dict(found["topic_ids"]), offsets, found.get("initial", False), begun, epochs)


def _by_topic(values: Mapping[TopicPartition, Each]) -> dict[str, dict[str, Each]]:
    topics: dict[str, dict[str, Each]] = {}
    for partition in sorted(values):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return topics


def _by_partition(topics: Mapping[str, Mapping[str, Each]]) -> dict[TopicPartition, Each]:
    return {TopicPartition(topic, int(n)): value for topic, each in topics.items() for n, value in each.items()}
