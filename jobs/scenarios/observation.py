"""What is seen of a partition, and whether that is what a script expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakelog.jobs.scenarios.scene import Observed, Saw, Scene, hold
from lakelog.replication.errors import UnknownTopicOrPartitionException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration

_HOLD_SECONDS = 5
_FETCH_SECONDS = 30
_EXPECTATIONS = ("leader", "leader_epoch", "isr", "replicas", "offline", "hw")
_SETS = ("isr", "offline")  # in no order; `replicas` has one, the preferred leader first


def wait(scene: Scene, *, topic: str, partition: int, timeout_s: float, **expected: Any) -> Observed:
    """Until the partition is as expected, for every running broker."""
    return hold(lambda: look(scene, topic, partition, expected), timeout_s)


def describe(scene: Scene, *, topic: str, partition: int, expect: Mapping[str, Any]) -> Observed:
    """Records what is seen; what is expected has to hold soon."""
    return hold(lambda: look(scene, topic, partition, expect), _HOLD_SECONDS)


def look(scene: Scene, topic: str, partition: int, expected: Mapping[str, Any]) -> Observed:
    """One look. It counts only once each running broker has applied the version of the metadata that it is a look at.

    The rows of leader and brokers are read after the metadata, so what they have applied is that version or a later
    one.
    """
    seen = leadership(scene, topic, partition)
    version = scene.view.cluster.metadata.version
    saw = observe(scene, seen)
    faults = differences(expected, saw) or behind(scene, version)
    return Observed(saw, state_in_words(saw), "; ".join(faults) or None)


def wait_for_fetchers(scene: Scene, topic: str) -> None:
    """Until the running replicas of a new topic fetch. Where one cannot, it is for the next steps to find that out.

    A fetcher is a streaming query, which takes longer to begin than a slow follower has until it leaves the ISR.
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
    """A partition and its leader. Raises UnknownTopicOrPartitionException."""
    found = scene.view.leaderships(topic, [partition])
    if partition not in found:
        raise UnknownTopicOrPartitionException(f"{topic}-{partition}: topic {topic} has no such partition")
    return found[partition]


def observe(scene: Scene, seen: Leadership) -> Saw:
    """A partition as the metadata, its leader and its running replicas show it."""
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
    """What each replica that can says of itself, None where it has not said anything yet."""
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
    """The brokers that run and whose storage works: the others can neither be read nor carry anything out."""
    brokers = scene.view.cluster.refresh_brokers()
    return [broker for broker in scene.cluster.running() if brokers[broker].storage_error is None]


def behind(scene: Scene, version: int) -> list[str]:
    """The running brokers that have not applied this version of the metadata, in words."""
    brokers = scene.view.cluster.refresh_brokers()
    return [
        f"broker {broker} has applied metadata version {brokers[broker].metadata_version}, not yet {version}"
        for broker in serving(scene)
        if brokers[broker].metadata_version < version
    ]


def differences(expected: Mapping[str, Any], saw: Mapping[str, Any]) -> list[str]:
    """What is otherwise than expected; what is expected to be None may be anything."""
    return [
        f"{name} is {saw[name]}, expected {expected[name]}"
        for name in _EXPECTATIONS
        if expected.get(name) is not None and _comparable(name, saw[name]) != _comparable(name, expected[name])
    ]


def _comparable(name: str, value: Any) -> Any:
    return set(value) if name in _SETS else value


def state_in_words(saw: Saw) -> str:
    """A partition in a few words."""
    leader = "none" if saw["leader"] == NO_LEADER else saw["leader"]
    hw = "unknown" if saw["hw"] is None else saw["hw"]
    return f"leader {leader}, leader epoch {saw['leader_epoch']}, ISR {brokers_in_words(saw['isr'])}, HW {hw}"


def brokers_in_words(brokers: list[int]) -> str:
    """A list of brokers as Kafka's tools print it."""
    return ",".join(map(str, brokers)) or "none"
