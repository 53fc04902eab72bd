"""How long a fetch that has failed waits: twice as long after each failure in a row, with jitter, up to a bound.

Kafka: `ExponentialBackoff`. [FT-13]
"""

from __future__ import annotations

_MULTIPLIER = 2
_JITTER = 0.2  # so that the partitions and brokers that one root has failed do not come back to it all at once

# Times the first backoff. At the defaults that is half of replica.lag.time.max.ms: a wait alone costs no follower its
# place in the ISR.
_MOST = 5


def backoff_ms(first_ms: float, failures: int, drawn: float) -> float:
    """Milliseconds to wait after that many failures in a row, 1 or more. `drawn`: a random number from 0 to 1."""
    grown = min(_MULTIPLIER ** min(failures - 1, _MOST), _MOST)
    jitter = 1 + _JITTER * (2 * drawn - 1)
    return first_ms * min(grown * jitter, _MOST)
