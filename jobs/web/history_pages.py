"""The pages that go back in time: who led and who was in sync at any time that the metadata's history has.

Charts are SVG: a lane a partition, see `leader_lanes`, and a line for what was wrong in the whole cluster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from lakelog.jobs.cluster_events import first_partitions
from lakelog.jobs.web.leader_lanes import LANE, TOP, Window, lanes
from lakelog.jobs.web.metadata_timeline import DatedVersion, PartitionChange, SeenHistory, around
from lakelog.jobs.web.page_kit import (
    Console,
    Content,
    PageRequest,
    Query,
    Sources,
    not_found,
    option,
    paged,
    sql_text,
    url,
)
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.replication.storage.delta.table_history import utc
from lakelog.replication.storage.readings.metadata_history import ClusterEvent

_SPANS = {"all": math.inf, "7 days": 7 * 86_400.0, "a day": 86_400.0, "an hour": 3600.0, "10 minutes": 600.0}
_LANES, _EVENTS = 20, 10  # partitions and events on a page
_BEFORE = 0.8  # of a span lies before the time that is shown
_HIGH = 120.0  # of the chart of the cluster


def _window(query: Query, at: float, first: float, now: float) -> Window:
    """The span that the query asks for, around a time, within what is known."""
    span = _SPANS[query.choice("span", tuple(_SPANS))]
    if span >= now - first:
        return Window(first, max(now, first + 1))
    begin = max(first, min(at - _BEFORE * span, now - span))
    return Window(begin, min(now, begin + span))


def _asked(query: Query, history: SeenHistory, now: float) -> float:
    """The time that is asked for; now by default. Raises PageError 404 if history does not reach back to it."""
    at, first = query.time("at"), history.begins_at
    if first is None:
        raise not_found("the metadata has no history yet")
    if at is not None and at < first:
        raise not_found(f"history does not reach back to {utc(at)}: it begins at {utc(first)}")
    return now if at is None else at


def event_line(history: SeenHistory, group: Sequence[ClusterEvent]) -> tuple[ClusterEvent, str, int]:
    """Equal events of one commit: the first of them, the names of their partitions, and the time in ms since the epoch
    from which their history shows them."""
    first = group[0]
    where = "" if first.topic is None else first_partitions(group)
    return first, where, history.milliseconds_of(first.version)


def cluster_history(console: Console, request: PageRequest) -> Content:
    """The partitions of the cluster at a time."""
    query = request.query
    query.allow("at", "span", "show", "page")
    history, now = console.readings.history.get(), time.time()
    at = _asked(query, history, now)
    show = query.choice("show", ("all", "not whole"))
    version = history.version_at(at)
    assert version is not None, "history reaches back to it"
    known = console.readings.metadata_at(version).values()
    then = sorted(
        (r for r in known if r.leader != LEADER_DURING_DELETE), key=lambda r: (r.topic, r.partition)
    )  # fmt: skip
    short = [r for r in then if r.leader < 0 or set(r.replicas) - set(r.adding_replicas) - set(r.isr)]
    leads: dict[int, int] = {}
    for registration in then:
        leads[registration.leader] = leads.get(registration.leader, 0) + 1
    window = _window(query, at, history.begins_at or at, now)
    times = [each.at for each in history.versions if each.changed]
    facts = {
        "at_ms": round(at * 1000), "is_now": query.text("at") == "", "version": version, "show": show,
        "shown": paged(short if show != "all" else then, query), "leads": sorted(leads.items()),
        "whole": len(then) - len(short), "all": len(then), "offline": sum(r.leader < 0 for r in then),
        **_slider(query, history, times, at, now, ("history",)),
        "chart": _lines(history.versions, window), "window": window, "at_x": window.x(at),
    }  # fmt: skip
    return Content("history.html", "History", console.readings.cluster.get().at, facts, _cluster_sources(at))


def _cluster_sources(at: float) -> Sources:
    when = sql_text(utc(at)[:19].replace("T", " "))
    return Sources([], (
        f"lakelog.register_views(spark, cluster, as_of={when}, prefix=\"then_\")",
        "SELECT topic, partition, leader, isr, replicas FROM then_partitions ORDER BY topic, partition",
    ))  # fmt: skip


def topic_history(console: Console, request: PageRequest) -> Content:
    """The leaders and the ISRs of the partitions of a topic, at a time and before and after it."""
    query, topic = request.query, request.name
    query.allow("at", "span", "page")
    history, now = console.readings.history.get(), time.time()
    at = _asked(query, history, now)
    known = history.topic(topic)
    times = known.times
    if not times:
        raise not_found(f"history has no topic {topic[:250]}")
    shown = paged(known.partitions, query, _LANES)
    changes = known.changes(shown.items)
    then = _state(changes, at)
    window = _window(query, at, max(times[0], history.begins_at or 0.0), now)
    facts = {
        "topic": topic, "is_there": topic in console.readings.cluster.get().topics_by_name,
        "at_ms": round(at * 1000), "is_now": query.text("at") == "", "shown": shown,
        "rows": [(number, then.get(number)) for number in shown.items],
        **_slider(query, history, times, at, now, ("topics", topic, "history")),
        "lanes": lanes(changes, shown.items, window, now), "window": window, "at_x": window.x(at),
        "height": TOP + LANE * len(shown.items) + 24,
        "leaders": sorted({change.leader for change in changes if change.leader is not None}),
        "events": [
            event_line(history, [event])
            for event in reversed(history.events) if event.topic == topic and event.at <= at
        ][:_EVENTS],
    }  # fmt: skip
    sql = f"SELECT * FROM isr_history WHERE topic = {sql_text(topic)} ORDER BY partition, version"
    sources = Sources([console.command("events", *option("--topic", topic), "--since", "P7D")], (sql,))
    return Content("topic_history.html", f"History of {topic}", console.readings.cluster.get().at, facts, sources)


def _slider(
    query: Query, history: SeenHistory, times: Sequence[float], at: float, now: float, path: Iterable[object]
) -> dict[str, object]:
    """The bounds of the slider, and the links to the changes before and after. A link to a change names the first
    millisecond that has it."""
    before, after = around(times, at)
    span = query.choice("span", tuple(_SPANS))

    def link(found: float | None) -> str | None:
        return None if found is None else url(*path, at=math.ceil(found * 1000), span=span if span != "all" else "")

    first = math.ceil((history.begins_at or now) * 1000)
    return {
        "first_ms": first, "last_ms": max(first, round(now * 1000)), "before": link(before), "after": link(after),
        "now_url": url(*path), "span": span, "spans": tuple(_SPANS),
    }  # fmt: skip


def _state(changes: Sequence[PartitionChange], at: float) -> dict[int, PartitionChange]:
    """The partitions of a topic at a time, by number."""
    found: dict[int, PartitionChange] = {}
    for change in changes:
        if change.at <= at:
            found[change.partition] = change
    return {number: change for number, change in found.items() if not change.is_removed}


def _lines(versions: Sequence[DatedVersion], window: Window) -> dict[str, object]:
    """The numbers of partitions that were offline and under-replicated, as steps: of the changes at one place of the
    chart the most, and the last. So a chart is no longer for more commits."""
    shown = [v for v in versions if v.at <= window.end]
    inside = [v for n, v in enumerate(shown) if n + 1 == len(shown) or shown[n + 1].at >= window.begin]
    most = max((max(v.offline, v.under_replicated) for v in inside), default=0)

    def path(values: Sequence[int]) -> str:
        places: dict[int, list[int]] = {}
        for version, value in zip(inside, values, strict=True):
            places.setdefault(round(window.x(version.at)), []).append(value)
        words, last = list[str](), None
        for x, found in places.items():
            for value in (max(found), found[-1]):
                if value != last:
                    y = round(TOP + _HIGH * (1 - value / max(1, most)), 2)
                    words.append(f"M{x} {y}" if last is None else f"H{x}V{y}")
                last = value
        return "".join(words) + f"H{window.x(window.end)}"

    return {
        "most": most,
        "offline": path([v.offline for v in inside]), "short": path([v.under_replicated for v in inside]),
    }  # fmt: skip
