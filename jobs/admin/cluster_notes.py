"""Compares the notes that brokers keep of the cluster root, on their own roots, with the cluster root that is there.

A broker that refuses the cluster root sends no heartbeat to it, so it looks dead. Therefore the notes of dead brokers
are read too. Their roots may be away with them, and hang: a command waits for all of them together, and not for long.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lakelog.jobs.cli.console import Row, say
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import TableState
from lakelog.replication.storage.root_identity import check_identity

_PATIENCE_SECONDS = 2.0


class Notes(NamedTuple):
    """The brokers that refuse or accept the cluster root, by id.

    `refused`: why brokers refuse it, as the end of a sentence about the root. `accepted`: those whose notes agree with
    it. `empty`: those that have noted nothing. `unread`: why the notes of others cannot be read.
    """

    refused: dict[int, str]
    accepted: list[int]
    empty: list[int]
    unread: dict[int, str]

    def of_others(self) -> Iterator[str]:
        """A sentence about each broker that does not refuse the cluster root, or of which that is not known."""
        yield from (f"Broker {broker} accepts the cluster root." for broker in self.accepted)
        yield from (
            f"Broker {broker} has noted nothing of a cluster root, and believes the one that it finds."
            for broker in self.empty
        )
        yield from (f"The note of broker {broker} cannot be read: {why}." for broker, why in self.unread.items())


def read_notes(cluster: Cluster, brokers: Mapping[int, BrokerRegistration]) -> Notes:
    """Reads what brokers have noted, and compares it with the cluster root. Raises KafkaStorageException if that cannot
    be read."""
    differences: dict[frozenset[tuple[str, TableState]], str | None] = {}  # brokers at rest have all noted the same
    notes = Notes({}, [], [], {})
    for broker, states in sorted(_notes(cluster, brokers).items()):
        if isinstance(states, str):
            notes.unread[broker] = states
            continue
        noted = frozenset(states.items())
        if noted not in differences:
            differences[noted] = cluster.guard.difference_from(states)
        if (difference := differences[noted]) is not None:
            notes.refused[broker] = difference
        else:
            (notes.accepted if states else notes.empty).append(broker)
    return notes


def _notes(cluster: Cluster, brokers: Mapping[int, BrokerRegistration]) -> dict[int, Mapping[str, TableState] | str]:
    """The notes of each broker, or why they cannot be read."""
    late = f"its root does not answer within {_PATIENCE_SECONDS:g} s"
    found: dict[int, Mapping[str, TableState] | str] = dict.fromkeys(brokers, late)

    def read(broker: int, uri: str) -> None:
        try:
            root = cluster.storage_of(broker, uri)
            check_identity(root, cluster.cluster_id, broker)
            found[broker] = cluster.seen_by(root)
        except LakelogException as error:
            found[broker] = f"{error.name}: {error}"

    # Daemons: the interpreter does not wait for one that hangs.
    threads = [threading.Thread(target=read, args=(b, r.root), daemon=True) for b, r in brokers.items()]
    until = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found)


def accept_cluster_root(
    cluster: Cluster, brokers: Mapping[int, BrokerRegistration], refused: Mapping[int, str], executes: bool
) -> list[Row]:
    """Deletes the notes of brokers that refuse the cluster root, if it `executes`; a row for each of these brokers."""
    for broker in refused if executes else ():
        cluster.forget_what_was_seen(cluster.storage_of(broker, brokers[broker].root))
    if refused:
        say(
            f"What was decided since this state of {cluster.root.uri} is lost: replicas of topics made since become "
            "stray, leaders and ISRs are those of then, and records may be lost with them. Stop all processes before, "
            "and start them again after."
        )
    return [
        {"broker": broker, "root": brokers[broker].root, "the_cluster_root": why, "accepted": executes}
        for broker, why in refused.items()
    ]
