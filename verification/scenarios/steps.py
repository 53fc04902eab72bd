"""Carries out each step. The arguments have the names in `arguments.steps_for`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.clients.admin import Outcomes
from lakelog.replication.errors import LakelogException, error_named
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.verification.roots.roots import Roots
from lakelog.verification.scenarios.cluster_root_steps import (
    bring_cluster_root_back,
    copy_cluster_root,
    no_replica_deleted,
    replace_cluster_root,
)
from lakelog.verification.scenarios.observation import behind, brokers_in_words, describe, wait, wait_for_fetchers
from lakelog.verification.scenarios.record_steps import consume, delete_records, epoch_end, logs, produce
from lakelog.verification.scenarios.scene import Observed, Scene, attempt, hold
from lakelog.verification.scenarios.script import Step
from lakelog.verification.scenarios.script_cluster import CONTROLLER, ScriptCluster, Server

_DELETE_SECONDS = 30


def carry_out(scene: Scene, step: Step) -> Observed:
    """Carries out one step."""
    return attempt(lambda: HANDLERS[step.name](scene, **step.arguments))


def create_topic(
    scene: Scene, *, topic: str, assignment: Mapping[int, list[int]], configs: Mapping[str, object]
) -> Observed:
    """Creates a topic with the assignment, and waits until followers fetch it. First waits for a deletion of that
    name."""
    hold(lambda: _name_is_free(scene, topic), _DELETE_SECONDS)
    made = scene.cluster.admin().create_topic(topic, assignment=assignment, configs=configs)
    wait_for_fetchers(scene, topic)
    return Observed({"topic_id": made.topic.topic_id}, f"topic id {made.topic.topic_id}")


def _name_is_free(scene: Scene, topic: str) -> Observed:
    scene.view.cluster.topics.refresh()
    found = scene.view.cluster.topics.topics.get(topic)
    return Observed({}, "", f"topic {topic} is being deleted" if found is not None and found.deleting else None)


def delete_topic(scene: Scene, *, topic: str) -> Observed:
    """Deletes a topic, and waits until no client finds it. If dead brokers still have replicas of it, the name stays
    taken until they are back."""
    brokers = {broker for r in scene.view.partitions(topic).values() for broker in r.replicas}
    scene.cluster.admin().delete_topic(topic)
    return hold(lambda: _gone(scene, topic, brokers <= set(scene.cluster.running())), _DELETE_SECONDS)


def _gone(scene: Scene, topic: str, for_good: bool) -> Observed:
    """Checks that clients find no such topic, and with `for_good` that the tables have it no more."""
    view = scene.view.cluster
    view.topics.refresh()
    view.metadata.refresh()
    found = view.topics.topics.get(topic)
    leaders = {r.leader for r in view.metadata.partitions.values() if r.topic == topic}
    is_served = (found is not None and not found.deleting) or bool(leaders - {LEADER_DURING_DELETE})
    is_there = found is not None or bool(leaders)
    faults = [f"topic {topic} is still there"] if is_served or (for_good and is_there) else []
    faults += behind(scene, view.metadata.version)
    return Observed({"gone": not is_there}, "marked" if is_there else "gone", "; ".join(faults) or None)


def reassign(scene: Scene, *, topic: str, partition: int, replicas: list[int]) -> Observed:
    """Starts to move a partition to these brokers; it does not wait for the end of the move. [RA-01]"""
    outcomes = scene.cluster.admin().alter_partition_reassignments({(topic, partition): replicas})
    _raise_error(outcomes)
    return Observed({"replicas": replicas}, "; ".join(outcome.message for outcome in outcomes.values()))


def alter_configs(scene: Scene, *, topic: str | None, broker: int | None, configs: Mapping[str, object]) -> Observed:
    """Sets configs of a topic, or of a broker while it runs."""
    admin = scene.cluster.admin()
    if topic is not None:
        admin.alter_configs(topic, configs)
    if broker is not None:
        admin.alter_broker_configs(str(broker), configs)
    return Observed({}, ", ".join(f"{key}={value}" for key, value in configs.items()))


def elect(scene: Scene, *, topic: str, partition: int, type: str, expect_error: str | None) -> Observed:
    """Elects a leader on request. `expect_error` is the expected error, None for success. [PE-01]"""

    def elected() -> Observed:
        _raise_error(scene.cluster.admin().elect_leaders(type, [(topic, partition)]))
        return Observed({"error": None}, "elected")

    return _expecting(expect_error, elected)


def start(scene: Scene, *, broker: Server, expect_error: str | None) -> Observed:
    """Starts a server. `expect_error` is the expected error with which it refuses to, None for success."""

    def started() -> Observed:
        return _on_server(ScriptCluster.start)(scene, broker=broker)

    return _expecting(expect_error, started) if expect_error else started()


def _expecting(expect_error: str | None, work: Callable[[], Observed]) -> Observed:
    """Returns the outcome of work that must raise this error. None: it must raise none."""
    try:
        done = work()
    except LakelogException as error:
        fault = None if error.name == expect_error else f"{error.name}: {error}; expected {expect_error or 'no error'}"
        return Observed({"error": error.name}, error.name, fault)
    return replace(done, fault=f"no error, expected {expect_error}") if expect_error else done


def _raise_error(outcomes: Outcomes) -> None:
    for outcome in outcomes.values():
        if outcome.error is not None:
            raise error_named(outcome.error, outcome.message)


def sleep(_: Scene, *, seconds: float) -> Observed:
    """Waits a number of seconds."""
    let_pass(seconds)
    return Observed({}, "")


def _on_server(act: Callable[[ScriptCluster, Server], Server]) -> Callable[..., Observed]:
    def handler(scene: Scene, *, broker: Server) -> Observed:
        server = act(scene.cluster, broker)
        running = scene.cluster.running()
        words = f"running are {brokers_in_words(running)}"
        if broker != CONTROLLER:
            return Observed({"running": running}, words)
        return Observed({"running": running, "controller": server}, f"{server}; {words}")

    return handler


def _on_storage(act: Callable[[Roots, str], None]) -> Callable[..., Observed]:
    def handler(scene: Scene, *, broker: int) -> Observed:
        root = scene.view.cluster.refresh_brokers()[broker].root
        act(scene.cluster.roots, root)
        return Observed({"root_is_away": scene.cluster.roots.is_away(root)}, f"broker {broker}: {root}")

    return handler


HANDLERS: Mapping[str, Callable[..., Observed]] = {
    "create_topic": create_topic,
    "delete_topic": delete_topic,
    "produce": produce,
    "wait": wait,
    "describe": describe,
    "elect": elect,
    "reassign": reassign,
    "delete_records": delete_records,
    "alter_configs": alter_configs,
    "take_storage_away": _on_storage(lambda roots, root: roots.take_away(root)),
    "bring_storage_back": _on_storage(lambda roots, root: roots.bring_back(root)),
    "logs": logs,
    "epoch_end": epoch_end,
    "consume": consume,
    "sleep": sleep,
    "copy_cluster_root": copy_cluster_root,
    "replace_cluster_root": replace_cluster_root,
    "bring_cluster_root_back": bring_cluster_root_back,
    "no_replica_deleted": no_replica_deleted,
    "kill": _on_server(ScriptCluster.kill),
    "pause": _on_server(ScriptCluster.pause),
    "resume": _on_server(ScriptCluster.resume),
    "stop": _on_server(ScriptCluster.stop),
    "start": start,
    "restart": _on_server(ScriptCluster.restart),
}
