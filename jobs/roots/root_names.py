"""Who has a root in a cluster, and the names of the roots' folders."""

from __future__ import annotations

from lakelog.replication.config import Owner


def owners(brokers: int) -> tuple[Owner, ...]:
    """Who has a root in a cluster of so many brokers."""
    return ("cluster", *range(1, brokers + 1))


def root_name(owner: Owner) -> str:
    """The name of the folder of the cluster's root or of a broker's: `cluster`, `broker-1`."""
    return owner if isinstance(owner, str) else f"broker-{owner}"
