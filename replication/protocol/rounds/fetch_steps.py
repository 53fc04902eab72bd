"""The steps of a fetcher's round: see `steps`, and `fetch_round` for their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.carry_out import Result
from lakelog.replication.protocol.rounds.steps import PublishReplicas
from lakelog.replication.protocol.truncation import Truncation


class ReadLeaderRows(NamedTuple):
    """A read of what the leader says of these partitions, answered with its rows by partition."""

    partitions: tuple[TopicIdPartition, ...]


class ReadFollowedLogs(NamedTuple):
    """A read of this broker's log up to its newest commit, answered with `OwnLogs` of these partitions."""

    partitions: tuple[TopicIdPartition, ...]


class ReadLeaderBatches(NamedTuple):
    """A read of the leader's log: where the batches end that end above these offsets, answered with `LeaderBatches`."""

    offsets: Mapping[TopicIdPartition, int]
    topics: Mapping[TopicIdPartition, str]


class LeaderBatches(NamedTuple):
    """The ends of a leader's batches, in order; and why those of other partitions cannot be told."""

    ends: Mapping[TopicIdPartition, Sequence[LogEnd]]
    failed: Mapping[TopicIdPartition, LakelogException]


class TellDiverged(NamedTuple):
    """Counts these partitions and says loudly that they have another history than their leaders'."""

    partitions: tuple[TopicIdPartition, ...]


class TruncateLogs(NamedTuple):
    """One commit on the log that adds nothing new: the ends that the leader's history does not have."""

    truncations: Mapping[TopicIdPartition, Truncation]


class FinishTruncation(NamedTuple):
    """In memory: the logs agree with their leaders', and may be fetched from their ends; no HW is above one. The round
    carries this out itself, and yields it never; the same holds for `AdvanceFetchOffsets`."""

    partitions: tuple[TopicIdPartition, ...]


class ThrottleFetch(NamedTuple):
    """In memory: which partitions a quota holds back, by their lags in records; answered with `Throttled`."""

    lags: Mapping[TopicIdPartition, int]


class Throttled(NamedTuple):
    """The partitions to leave out, and for how many seconds; and how many bytes may be taken of the others."""

    left_out: Mapping[TopicIdPartition, float] = {}
    limits: tuple[ByteLimit, ...] = ()


class FetchHeaders(NamedTuple):
    """A read of the leader's log: the batches that the stream has brought of these partitions, and of those that lag
    all that end above their log ends. Answered with `FetchedHeaders`."""

    log_ends: Mapping[TopicIdPartition, LogEnd]
    lagging: frozenset[TopicIdPartition]
    topics: Mapping[TopicIdPartition, str]


class FetchedHeaders(NamedTuple):
    """Batches in any order, also such as come late or twice; the partitions of which a broken file keeps some from
    being told; and whether the stream has left commits out."""

    batches: Sequence[FetchedBatch]
    failed: Mapping[TopicIdPartition, LakelogException]
    stream_has_gap: bool


class CopyBatches(NamedTuple):
    """Copies the batches of a plan next to this broker's log, committed by nobody. Answered with the partitions whose
    batches could not be copied, and why."""

    plan: AppendPlan


class AppendFetched(NamedTuple):
    """One commit on the log: the batches of the plan, if every log still ends with the chain that they follow, in the
    same role."""

    plan: AppendPlan
    leader_epochs: Mapping[TopicIdPartition, int]


class AdvanceFetchOffsets(NamedTuple):
    """In memory: fetch offsets follow the log ends, and HWs the leaders'."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int]


class FollowHighWatermarks(NamedTuple):
    """In memory: HWs follow the leaders', or stay where no leader's is given, but are not above the log ends."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int] = {}


class RaiseLogStarts(NamedTuple):
    """One commit on the log: each log starts at its offset, if it still follows under the leader epoch."""

    starts: Mapping[TopicIdPartition, tuple[int, int]]


FetchStep: TypeAlias = (
    ReadLeaderRows | ReadFollowedLogs | ReadLeaderBatches | TellDiverged | TruncateLogs | FinishTruncation
    | ThrottleFetch | FetchHeaders | CopyBatches | AppendFetched | AdvanceFetchOffsets | FollowHighWatermarks |
    RaiseLogStarts | PublishReplicas
)  # fmt: skip

Round: TypeAlias = carry_out.Round[FetchStep, Result]
