"""The effects of a loss on a cluster, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_snapshot import ClusterSnapshot, live_brokers
from lakelog.jobs.admin.prediction import Change, Forecast, change_row, counts, failover_delays
from lakelog.jobs.admin.published_rows import Rows
from lakelog.jobs.cli.console import Report, say
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.quorum_slot import majority
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.table_history import utc

_SHOWN = 30  # partitions in a table
_NAMED = 10  # partitions with one reason
_COLUMNS = ("partition", "leader", "new_leader", "isr", "new_isr", "outcome", "at_risk")


class VotingRoots(NamedTuple):
    """The cluster roots that vote, those of them that do not answer, and those that are lost."""

    voting: tuple[str, ...]
    silent: frozenset[str]
    lost: frozenset[str]

    @property
    def left(self) -> int:
        """How many of them still vote."""
        return len(set(self.voting) - self.silent - self.lost)

    @property
    def needed(self) -> int:
        """How many have to."""
        return majority(len(self.voting))


class LossReport(NamedTuple):
    """The state that was read, and the prediction. `rows`: those that show which records are at risk."""

    cluster: Cluster
    snapshot: ClusterSnapshot
    roots: VotingRoots
    forecast: Forecast
    changes: Sequence[Change]
    rows: Mapping[int, Rows]

    @property
    def is_harmless(self) -> bool:
        """Whether the exit status is OK."""
        bad = ("offline", "unclean_leader", "under_min_isr", "acks_all_waits", "records_at_risk", "unknown")
        found = counts(self.changes)
        return self.forecast.loss.can_commit and not any(found[name] for name in bad)

    @property
    def delays(self) -> list[tuple[int, str]]:
        """The parts of the time until a new leader leads, in ms; empty if nobody is killed who lives."""
        alive = live_brokers(self.snapshot.brokers).keys()
        is_elected = any(change.then.leader != change.now.leader for change in self.changes)
        if not (is_elected and self.forecast.loss.killed & alive and self.forecast.loss.can_commit):
            return []
        in_store = self.cluster.root.version_cache is not None
        return [(delay.ms, delay.what) for delay in failover_delays(self.cluster.config, in_store)]

    def notes(self) -> list[str]:
        """Remarks for the reader of the report."""
        brokers = self.snapshot.brokers
        lost = sorted(brokers.keys() - live_brokers(brokers).keys())
        found = [f"broker {broker} counts as lost already: {brokers[broker].state}" for broker in lost]
        if not self.snapshot.has_controller:
            found.append("no controller is active: nothing of this is decided before one is")
        if offline := _first(self.forecast.offline_anyway):
            found.append(f"without a leader anyway: {offline}")
        if due := _first(self.forecast.due_anyway):
            found.append(f"a controller has yet to decide on what has happened already, which changes {due}")
        return found + [
            f"the rows of broker {b} cannot be read: {why}" for b, why in self.rows.items() if isinstance(why, str)
        ]


def _first(partitions: Sequence[PartitionRegistration]) -> str:
    return first_names([registration.name for registration in partitions], _NAMED)


def as_object(facts: LossReport) -> dict[str, object]:
    """All of it, with all partitions that change."""
    loss, roots, delays = facts.forecast.loss, facts.roots, facts.delays
    return {
        "ok": facts.is_harmless,
        "cluster": facts.cluster.root.uri,
        "at": None if facts.snapshot.at is None else utc(facts.snapshot.at),
        "killed": sorted(loss.killed),
        "stopped": sorted(loss.stopped),
        "lost_broker_roots": sorted(loss.emptied),
        "lost_cluster_roots": sorted(roots.lost),
        "cluster_roots": {"voting": len(roots.voting), "left": roots.left, "needed": roots.needed},
        "metadata_version": facts.snapshot.metadata_version,
        "partitions": len(facts.forecast.partitions),
        "counts": counts(facts.changes),
        "new_leader_ms": sum(ms for ms, _ in delays) if delays else None,
        "new_leader_ms_parts": [{"ms": ms, "what": what} for ms, what in delays],
        "changes": [change_row(change) for change in facts.changes],
        "notes": facts.notes(),
    }


def show(facts: LossReport) -> None:
    """Prints the summary, the partitions that are worst off, and why."""
    for name, words in _summary(facts).items():
        print(f"{name:<12}{words}")
    rows = [change_row(change) for change in facts.changes]
    if rows:
        print()
        Report(rows[:_SHOWN], _COLUMNS).show()
        for why in dict.fromkeys(change.why for change in facts.changes[:_SHOWN] if change.why):
            names = [change.now.name for change in facts.changes if change.why == why]
            print(f"- {first_names(names, _NAMED)}: {why}")
    for note in facts.notes():
        print(f"Note: {note}.")
    if len(rows) > _SHOWN:
        say(f"The table has {_SHOWN} of {len(rows)} partitions, the worst first; -o json has all.")


def _summary(facts: LossReport) -> dict[str, str]:
    found, roots, loss, at = counts(facts.changes), facts.roots, facts.forecast.loss, facts.snapshot.at
    lines = {
        "what if": "; ".join(_losses(facts)) + ("" if at is None else f", at {utc(at)}"),
        "partitions": f"{len(facts.changes)} of {len(facts.forecast.partitions)} change: {_outcomes(found)}",
        "records": _records(found),
        "new leader": _time(facts),
    }
    if roots.lost or len(roots.voting) > 1:
        words = f"{roots.left} of {len(roots.voting)} cluster roots are left, and {roots.needed} decide"
        lines["roots"] = words if loss.can_commit else f"{words}: NO leader is elected, and no ISR changes"
    return lines


def _losses(facts: LossReport) -> Iterator[str]:
    loss = facts.forecast.loss
    for brokers, words in (
        (loss.killed - loss.emptied, "killed"),
        (loss.emptied, "lost with the root"),
        (loss.stopped, "stopped in order"),
    ):
        if brokers:
            yield f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))} {words}"
    yield from (f"cluster root {root} lost" for root in sorted(facts.roots.lost))


def _outcomes(found: Mapping[str, int]) -> str:
    words = {
        "offline": "offline", "unclean_leader": "with an unclean leader", "acks_all_waits": "where acks=all waits",
        "under_min_isr": "under min ISR", "new_leader": "with a new leader", "smaller_isr": "with a smaller ISR",
    }  # fmt: skip
    always = ("offline", "under_min_isr")
    return ", ".join(f"{found[name]} {each}" for name, each in words.items() if found[name] or name in always)


def _records(found: Mapping[str, int]) -> str:
    away = found["records_at_risk"] - found["records_lost"]
    parts = [
        (away, "committed records are away until a broker that has them is back"),
        (found["records_lost"], "committed records are LOST"),
        (found["unknown"], "partitions of which it is not known what is at risk"),
    ]
    told = [f"{count} {words}" for count, words in parts if count] or ["no committed record is at risk"]
    if found["uncommitted_records"]:
        told.append(f"{found['uncommitted_records']} above the HW, which acks=1 acknowledges, may be lost")
    return "; ".join(told)


def _time(facts: LossReport) -> str:
    loss, delays = facts.forecast.loss, facts.delays
    if not loss.can_commit:
        return "none before a majority of the cluster roots is back"
    told = []
    if delays:
        parts = ", ".join(f"{ms / 1000:g} s {what}" for ms, what in delays)
        told.append(f"at most {sum(ms for ms, _ in delays) / 1000:g} s after the loss, and two commits: {parts}")
    if loss.stopped:
        told.append("a broker that stops hands over before it ends")
    before = "" if facts.snapshot.has_controller or not told else "none before a controller is active; then "
    return f"{before}{'; '.join(told)}" or "nobody has to be elected"
