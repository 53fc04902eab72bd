"""How much of the new records a micro-batch takes. Spark: `KafkaMicroBatchStream.latestOffset`, `rateLimit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")


def limited(start: Mapping[Key, int], end: Mapping[Key, int], most: int) -> dict[Key, int]:
    """The end offsets of a micro-batch of at most `most` records, which partitions share in proportion to what they
    have. Each start and end is of the same partition."""
    sizes = {key: max(0, end[key] - start[key]) for key in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = {key: divmod(size * most, total) for key, size in sizes.items()}
    left = most - sum(share for share, _ in shares.values())
    # Partitions without a whole record come first, and then the largest remainders: a large one starves no other.
    first = sorted(shares, key=lambda key: (shares[key][0] == 0 and sizes[key] > 0, shares[key][1]), reverse=True)
    rounded_up = set(first[:left])
    return {key: start[key] + share + (key in rounded_up) for key, (share, _) in shares.items()}


def may_start(available: int, least: int | None, waited_ms: float, max_delay_ms: int) -> bool:
    """Whether a micro-batch starts: there are `least` records, or any and it has waited long enough."""
    return least is None or available >= least or waited_ms >= max_delay_ms
