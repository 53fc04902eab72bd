"""How far a streaming query is behind.

Spark reports it for its Kafka source, among the metrics of a source. It takes no metrics of a source in Python, but the
progress has both offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def offsets_behind_latest(progress: Mapping[str, Any] | None) -> list[dict[str, float]]:
    """The records that were committed and not read yet at the end of a micro-batch, over the partitions of each source
    of `format("lakelog")`: `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest`, `minOffsetsBehindLatest`.

    `progress` is `query.lastProgress`, or the `event.progress` of a `StreamingQueryListener`. Sources of other formats,
    those without a partition, and those whose offsets are not as this source writes them, are left out. Raises
    TypeError for anything else, such as the query itself. Spark: `KafkaMicroBatchStream.metrics`.

        print(lakelog.offsets_behind_latest(query.lastProgress))
    """
    if not isinstance(progress, Mapping | None):
        raise TypeError(f"progress is a {type(progress).__name__}; give query.lastProgress, or event.progress")
    sources = (progress or {}).get("sources", ())
    if not isinstance(sources, Sequence) or not all(isinstance(source, Mapping) for source in sources):
        raise TypeError(f"progress has the sources {sources!r}; give query.lastProgress, or event.progress")
    return [_metrics(behind) for source in sources if (behind := _behind(source))]


def _behind(source: Mapping[str, Any]) -> list[int]:
    end, latest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    return [max(0, offset - end.get(partition, 0)) for partition, offset in latest.items()] if end else []


def _offsets(text: str | Mapping[str, Any] | None) -> dict[tuple[str, str], int]:
    """The offset of each partition, from an offset in Spark's progress; nothing for one of another source."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, Mapping) or "cluster_id" not in found:
        return {}
    topics = found.get("offsets")
    if not isinstance(topics, Mapping) or not all(isinstance(each, Mapping) for each in topics.values()):
        return {}
    offsets = {(topic, number): offset for topic, each in topics.items() for number, offset in each.items()}
    return offsets if all(type(offset) is int for offset in offsets.values()) else {}


def _metrics(behind: list[int]) -> dict[str, float]:
    return {
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "maxOffsetsBehindLatest": max(behind),
        "minOffsetsBehindLatest": min(behind),
    }
