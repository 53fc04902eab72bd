"""The steps of a fetcher's round. `broker_steps` explains steps; `fetch_round` has their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.carry_out import Result
from lakelog.replication.protocol.truncation import Truncation


class ReadLeaderRows(NamedTuple):
    """Reads the leader's rows of these partitions. Answer: its rows by partition."""

    partitions: tuple[TopicIdPartition, ...]


class ReadFollowedLogs(NamedTuple):
    """Reads this broker's log up to its newest commit. Answer: `OwnLogs` of these partitions."""

    partitions: tuple[TopicIdPartition, ...]


class ReadLeaderBatches(NamedTuple):
    """Reads from the leader's log the ends of the batches that end above these offsets. Answer: `LeaderBatches`."""

    offsets: Mapping[TopicIdPartition, int]
    topics: Mapping[TopicIdPartition, str]


class LeaderBatches(NamedTuple):
    """The ends of a leader's batches, in order, and the errors of partitions whose batches could not be read."""

    ends: Mapping[TopicIdPartition, Sequence[LogEnd]]
    failed: Mapping[TopicIdPartition, LakelogException]


class TellDiverged(NamedTuple):
    """Counts these divergences, and logs that the partitions' histories differ from their leaders'."""

    partitions: tuple[TopicIdPartition, ...]


class TruncateLogs(NamedTuple):
    """One commit on the log: removes the batches that the leader lacks."""

    truncations: Mapping[TopicIdPartition, Truncation]


class FinishTruncation(NamedTuple):
    """In memory: the logs agree with their leaders', may be fetched from their LEOs, and no HW is above its LEO.

    The round carries out this step and `AdvanceFetchOffsets` itself, and never yields them.
    """

    partitions: tuple[TopicIdPartition, ...]


class ThrottleFetch(NamedTuple):
    """In memory: asks which partitions a quota holds back, given their lags in records. Answer: `Throttled`."""

    lags: Mapping[TopicIdPartition, int]


class Throttled(NamedTuple):
    """The partitions to leave out, with their delays in seconds, and the byte limits of the others."""

    left_out: Mapping[TopicIdPartition, float] = {}
    limits: tuple[ByteLimit, ...] = ()


class FetchHeaders(NamedTuple):
    """Reads batch headers of these partitions from the leader's log: those of the commits since the last fetch, if the
    log has moved, and for lagging ones all that end above their log ends. Answer: `FetchedHeaders`."""

    log_ends: Mapping[TopicIdPartition, LogEnd]
    lagging: frozenset[TopicIdPartition]
    topics: Mapping[TopicIdPartition, str]


class FetchedHeaders(NamedTuple):
    """Batches in any order, perhaps late or twice; the errors of partitions with a broken file; and whether new
    commits or segments could not be read."""

    batches: Sequence[FetchedBatch]
    failed: Mapping[TopicIdPartition, LakelogException]
    commits_have_gap: bool


class CopyBatches(NamedTuple):
    """Copies the plan's batches next to this broker's log, without a commit. Answer: the errors of partitions that
    could not be copied."""

    plan: AppendPlan


class AppendFetched(NamedTuple):
    """One commit on the log: appends the plan's batches, if every log still has the same role and ends with the chain
    before its first batch."""

    plan: AppendPlan
    leader_epochs: Mapping[TopicIdPartition, int]


class AdvanceFetchOffsets(NamedTuple):
    """In memory: moves fetch offsets to the log ends, and HWs to the leaders' HWs."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int]


class FollowHighWatermarks(NamedTuple):
    """In memory: sets HWs to the leaders' HWs where given, and caps all of them at the log ends."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int] = {}


class RaiseLogStarts(NamedTuple):
    """One commit on the log: raises log starts, if each log still follows under its leader epoch. `starts`: leader
    epoch and offset of each partition."""

    starts: Mapping[TopicIdPartition, tuple[int, int]]


FetchStep: TypeAlias = (
    ReadLeaderRows | ReadFollowedLogs | ReadLeaderBatches | TellDiverged | TruncateLogs | FinishTruncation
    | ThrottleFetch | FetchHeaders | CopyBatches | AppendFetched | AdvanceFetchOffsets | FollowHighWatermarks |
    RaiseLogStarts | PublishReplicas
)  # fmt: skip

Round: TypeAlias = carry_out.Round[FetchStep, Result]
