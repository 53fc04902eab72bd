"""Observes a partition, and compares it with the expectations of a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakelog.jobs.cli.numbers import with_commas
from lakelog.replication.errors import UnknownTopicOrPartitionException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica_status import Leadership
from lakelog.verification.scenarios.scene import Observed, Saw, Scene, hold

_HOLD_SECONDS = 5
_FETCH_SECONDS = 30
_EXPECTATIONS = ("leader", "leader_epoch", "isr", "replicas", "offline", "hw")
_SETS = ("isr", "offline")  # without order; `replicas` has an order, with the preferred leader first


def wait(scene: Scene, *, topic: str, partition: int, timeout_s: float, **expected: Any) -> Observed:
    """Waits up to `timeout_s` seconds until every running broker sees the partition as expected."""
    return hold(lambda: poll(scene, topic, partition, expected), timeout_s)


def describe(scene: Scene, *, topic: str, partition: int, expect: Mapping[str, Any]) -> Observed:
    """Records the state of the partition. Expectations must hold within 5 s."""
    return hold(lambda: poll(scene, topic, partition, expect), _HOLD_SECONDS)


def poll(scene: Scene, topic: str, partition: int, expected: Mapping[str, Any]) -> Observed:
    """One observation. It is valid only if each running broker has applied the observed version of the metadata.

    It reads the rows of leader and brokers after the metadata, so they have applied that version or a later one.
    """
    seen = leadership(scene, topic, partition)
    version = scene.view.cluster.metadata.version
    saw = observe(scene, seen)
    faults = differences(expected, saw) or behind(scene, version)
    return Observed(saw, state_in_words(saw), "; ".join(faults) or None)


def wait_for_fetchers(scene: Scene, topic: str) -> None:
    """Waits until the running replicas of a new topic fetch. If one cannot, the next steps find out.

    A fetcher is a streaming query. It takes longer to start than a slow follower may take before it leaves the ISR.
    """
    hold(lambda: _fetching(scene, topic), _FETCH_SECONDS)


def _fetching(scene: Scene, topic: str) -> Observed:
    fetching = {
        f"{topic}-{r.partition} on broker {broker}": row is not None and row.state == FollowerState.FETCHING
        for r in scene.view.partitions(topic).values()
        for broker in set(r.replicas) & set(scene.cluster.running())
        for row in [scene.view.replicas(broker).get(r.topic_id_partition)]
    }
    missing = [name for name, is_fetching in fetching.items() if not is_fetching]
    return Observed({}, "", f"not fetching: {', '.join(missing)}" if missing else None)


def leadership(scene: Scene, topic: str, partition: int) -> Leadership:
    """A partition and its leader. Raises UnknownTopicOrPartitionException if it does not exist."""
    found = scene.view.leaderships(topic, [partition])
    if partition not in found:
        raise UnknownTopicOrPartitionException(f"{topic}-{partition}: topic {topic} has no such partition")
    return found[partition]


def observe(scene: Scene, seen: Leadership) -> Saw:
    """The state of a partition, from the metadata, its leader's row and its running replicas' rows."""
    registration, row = seen.registration, seen.leader_row
    offline = scene.cluster.offline()
    return {
        "leader": registration.leader,
        "leader_epoch": registration.leader_epoch,
        "isr": list(registration.isr),
        "replicas": list(registration.replicas),
        "offline": [broker for broker in registration.replicas if broker in offline],
        "hw": row.high_watermark if row else None,
        "brokers": _rows(scene, registration),
    }


def _rows(scene: Scene, registration: PartitionRegistration) -> dict[str, object]:
    """The row of each readable replica; None if it has no row yet."""
    rows = {
        broker: scene.view.replicas(broker).get(registration.topic_id_partition)
        for broker in registration.replicas
        if broker in serving(scene)
    }
    return {
        str(broker): row and {"leo": row.log_end_offset, "hw": row.high_watermark, "log_start": row.log_start_offset}
        for broker, row in rows.items()
    }


def serving(scene: Scene) -> list[int]:
    """The running brokers whose storage works. The others can neither be read nor act."""
    brokers = scene.view.cluster.refresh_brokers()
    return [broker for broker in scene.cluster.running() if brokers[broker].storage_error is None]


def behind(scene: Scene, version: int) -> list[str]:
    """The running brokers that have not applied this version of the metadata, as text."""
    brokers = scene.view.cluster.refresh_brokers()
    return [
        f"broker {broker} has applied metadata version {brokers[broker].metadata_version}, not yet {version}"
        for broker in serving(scene)
        if brokers[broker].metadata_version < version
    ]


def differences(expected: Mapping[str, Any], saw: Mapping[str, Any]) -> list[str]:
    """The differences from the expected state, as text. An expectation of None allows any value."""
    return [
        f"{name} is {saw[name]}, expected {expected[name]}"
        for name in _EXPECTATIONS
        if expected.get(name) is not None and _comparable(name, saw[name]) != _comparable(name, expected[name])
    ]


def _comparable(name: str, value: Any) -> Any:
    return set(value) if name in _SETS else value


def state_in_words(saw: Saw) -> str:
    """The state of a partition in a few words."""
    leader = "none" if saw["leader"] == NO_LEADER else saw["leader"]
    hw = "unknown" if saw["hw"] is None else saw["hw"]
    return f"leader {leader}, leader epoch {saw['leader_epoch']}, ISR {brokers_in_words(saw['isr'])}, HW {hw}"


def brokers_in_words(brokers: list[int]) -> str:
    """A list of brokers in the format of Kafka's tools."""
    return with_commas(brokers) or "none"
