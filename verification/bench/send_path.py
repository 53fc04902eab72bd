"""The way of an acknowledged send: which part was waited for at each moment, from the call of `send` to its answer.

The parts follow one another without gaps or overlaps, so they add up to the time of the send. Each part ends at a mark:
the leader whose HW came last, its slowest follower that counted, and that follower's micro-batch give the marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.verification.bench.spans import COMMIT, WRITE, Span

LEADER_ROUND, FETCH_ROUND = "LeaderRound.run", "FetchRound.run"
LOOK, APPEND_FETCHED, PUBLISH = "ReadLeaderships", "AppendFetched", "PublishReplicas"
APPEND, HIGH_WATERMARK = "append", "high watermark"  # the reasons of commits

# In the order of a micro-batch, after `latestOffset`. Spark counts `addBatch` with what our
# function does in it.
PHASES = ("walCommit", "getBatch", "queryPlanning")

Mark = tuple[str, float]  # a part, and the time at which it ends


@dataclass(frozen=True)
class MicroBatch:
    """Spark's report of one micro-batch: its query, its start in seconds since the epoch, and the ms of its phases."""

    query: str
    batch: int
    start: float
    phases: Mapping[str, float]

    @property
    def found(self) -> float:
        """When its source has told Spark of its rows, in seconds since the epoch."""
        return self.start + self.phases.get("latestOffset", 0) / 1000

    @property
    def end(self) -> float:
        """The end in seconds since the epoch."""
        return self.start + self.phases.get("triggerExecution", 0) / 1000


class Trace:
    """All spans of some sends. `leader_of` has the leader of each partition that they wrote to."""

    def __init__(
        self, spans: Iterable[Span], batches: Iterable[MicroBatch], leader_of: Mapping[TopicIdPartition, int]
    ) -> None:  # fmt: skip
        self.spans = sorted(spans, key=lambda span: span.start)
        self.batches = list(batches)
        self.leader_of = leader_of
        self._parts: dict[int, list[Span]] = {}
        for span in self.spans:
            self._parts.setdefault(span.parent, []).append(span)

    def parts(self, span: Span, name: str = "") -> list[Span]:
        """The spans that are directly part of one, in order; only those of a name, if it is given."""
        return [part for part in self._parts.get(span.id, []) if name in ("", part.name)]

    def within(self, span: Span, *names: str) -> list[Span]:
        """All spans of these names that are part of one, also of its parts, in order of their start."""
        found = [part for part in self.parts(span) for part in (part, *self.within(part, *names))]
        return [part for part in found if part.name in names]

    def named(self, name: str, start: float, end: float) -> list[Span]:
        """The spans of a name that end between two times."""
        return [span for span in self.spans if span.name == name and start <= span.end <= end]

    def batch_of(self, fetch: Span, leader: int) -> MicroBatch | None:
        """The micro-batch that a fetch round from a leader ran in."""
        brokers = {f"broker-{broker_of(commit)}" for commit in self.within(fetch, COMMIT)}
        ends = f"-{leader}"
        of_query = (b for b in self.batches if b.query.split(":")[0] in brokers and b.query.endswith(ends))
        return next((batch for batch in of_query if batch.start <= fetch.start <= batch.end), None)

    def began(self, batch: MicroBatch, fetch: Span) -> bool:
        """Whether a micro-batch began for this fetch round. Otherwise it was open already: see `LoopHolder`."""
        rounds = self.named(FETCH_ROUND, batch.found, fetch.start)
        return all(other.thread != fetch.thread or other.start < batch.found for other in rounds)

    def told_at(self, fetch: Span) -> float:
        """When a fetch round began to commit the follower's rows; its end if the rows had no news."""
        published = [commit for publish in self.parts(fetch, PUBLISH) for commit in self.within(publish, COMMIT)]
        return published[-1].start if published else fetch.end

    def fetches(self, send: Span) -> list[tuple[Span, int]]:
        """The fetch rounds that appended records of a send, and the leader of each."""
        rounds = {span.id: span for span in self.spans if span.name == FETCH_ROUND}
        appended = self.named(APPEND_FETCHED, send.start, send.end)
        leaders = {
            span.parent: self.leader_of[partition]
            for span in appended
            for partition in span.step.plan.starts()
            if partition in self.leader_of
        }
        return [(rounds[parent], leader) for parent, leader in leaders.items() if parent in rounds]


def parts_of(trace: Trace, send: Span) -> dict[str, float] | None:
    """The seconds of each part of a send, in order, which add up to its time; None if a step on its way is not known,
    for example because a follower fetched without its query."""
    looks = trace.named(LOOK, send.start, send.end)
    published = _last_publish(trace, send, looks)
    if published is None:
        return None
    leader = broker_of(published)
    rounds = [r for r in trace.named(LEADER_ROUND, 0, published.start) if r.thread == published.thread]
    told = {f.id: trace.told_at(f) for f, source in trace.fetches(send) if source == leader}
    seen = [f for f, _ in trace.fetches(send) if rounds and told.get(f.id, published.end) <= rounds[-1].end]
    if not (rounds and seen):
        return None
    fetch = max(seen, key=lambda each: told[each.id])
    marks = [
        *_client_marks(trace, send, leader), *_stream_marks(trace, fetch, leader), *_fetch_marks(trace, fetch),
        *_leader_marks(trace, rounds[-1], published), ("client: waits for its next look", looks[-1].start),
        ("client: sees the HW", send.end),
    ]  # fmt: skip
    return durations(send.start, marks)


def batch_parts(trace: Trace, send: Span) -> list[dict[str, float]]:
    """The seconds of each part of every micro-batch that began for records of a send. They add up to the time from the
    moment on at which it had found the segments until its first round has ended; then it waits for more."""
    found = []
    for fetch, leader in trace.fetches(send):
        batch = trace.batch_of(fetch, leader)
        if batch and trace.began(batch, fetch):
            steps = [("our function: decides", step.start) for step in trace.parts(fetch)]
            ends = [(f"our function: {step.name}", step.end) for step in trace.parts(fetch)]
            marks = [*_phase_marks(batch), ("Spark: calls our function", fetch.start)]
            marks += [mark for pair in zip(steps, ends, strict=True) for mark in pair]
            found.append(durations(batch.found, [*marks, ("our function: decides", fetch.end)]))
    return found


def durations(start: float, marks: Sequence[Mark]) -> dict[str, float]:
    """The seconds of each part. A mark before the one that precedes it ends an empty part."""
    found: dict[str, float] = {}
    for name, end in marks:
        found[name] = found.get(name, 0.0) + max(0.0, end - start)
        start = max(start, end)
    return found


def broker_of(commit: Span) -> int:
    """The broker below whose root a table lies: `broker-2` of `…/broker-2/replicas`."""
    return int(commit.table.split("/")[-2].removeprefix("broker-"))


def _last_publish(trace: Trace, send: Span, looks: Sequence[Span]) -> Span | None:
    """The commit that told the client's last look of the last HW."""
    leaders = {broker_of(commit) for commit in _appended(trace, send)}
    commits = trace.named(COMMIT, send.start, looks[-1].end) if looks else []
    told = [c for c in commits if c.why == HIGH_WATERMARK and broker_of(c) in leaders]
    return max(told, key=lambda commit: commit.end, default=None)


def _appended(trace: Trace, send: Span) -> list[Span]:
    """The commits of a producer to the logs of leaders."""
    return [commit for commit in trace.named(COMMIT, send.start, send.end) if commit.why == APPEND]


def _client_marks(trace: Trace, send: Span, leader: int) -> list[Mark]:
    """Until the commit to the leader's log. Other leaders may get theirs at the same time, on other threads."""
    appended = _appended(trace, send)
    end = max(commit.end for commit in appended if broker_of(commit) == leader)
    parts = sorted((*trace.named(WRITE, send.start, end), *appended), key=lambda part: part.end)
    marks = [("client: reads metadata, gives records their partitions", min(part.start for part in parts))]
    names = {WRITE: "client: writes segments", COMMIT: "client: commits"}
    for part in (part for part in parts if part.end <= end):
        marks += [("client: reads logs, decides", part.start), (names[part.name], part.end)]
    return marks


def _stream_marks(trace: Trace, fetch: Span, leader: int) -> list[Mark]:
    """Until our function runs. Spark reports a micro-batch's start and the time of each phase."""
    batch = trace.batch_of(fetch, leader)
    if batch is None or not trace.began(batch, fetch):  # Spark reports a micro-batch when it has ended
        return [("follower: waits until its open micro-batch goes on", fetch.start)]
    marks = [("waits until its stream has found the segments", batch.found), *_phase_marks(batch)]
    return [(f"follower: {name}", end) for name, end in [*marks, ("Spark: calls our function", fetch.start)]]


def _phase_marks(batch: MicroBatch) -> list[Mark]:
    ends = accumulate((batch.phases.get(phase, 0) / 1000 for phase in PHASES), initial=batch.found)
    return [(f"Spark: {phase}", end) for phase, end in zip(PHASES, list(ends)[1:], strict=True)]


def _fetch_marks(trace: Trace, fetch: Span) -> list[Mark]:
    marks: list[Mark] = []
    for step in trace.parts(fetch):
        marks += [("follower: decides", step.start), (f"follower: {step.name}", step.end)]
        if step.name == PUBLISH:
            break
    return marks


def _leader_marks(trace: Trace, looked: Span, published: Span) -> list[Mark]:
    marks: list[Mark] = [("leader: waits for its next look", looked.start)]
    for step in trace.parts(looked):
        marks += [("leader: decides", step.start), (f"leader: {step.name}", step.end)]
    return [*marks, ("leader: decides", published.start), ("leader: publishes the HW", published.end)]
