"""How long a failed fetch waits: twice as long after each failure in a row, with jitter, up to a bound.

Kafka: `ExponentialBackoff`. [FT-13]
"""

from __future__ import annotations

_MULTIPLIER = 2
_JITTER = 0.2  # so that not all fetchers return at the same time to a root that has failed

# The bound, as a multiple of the first backoff. With default settings it is half of replica.lag.time.max.ms, so that a
# wait alone takes no follower out of the ISR.
_MOST = 5


def backoff_ms(first_ms: float, failures: int, drawn: float) -> float:
    """Milliseconds to wait after 1 or more `failures` in a row, at most 5 times `first_ms`. `drawn` is a random number
    from 0 to 1."""
    grown = min(_MULTIPLIER ** min(failures - 1, _MOST), _MOST)
    jitter = 1 + _JITTER * (2 * drawn - 1)
    return first_ms * min(grown * jitter, _MOST)
