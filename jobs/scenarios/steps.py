"""What each step does. Its arguments are those of `arguments.steps_for`, by the same names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from jobs.scenarios.embedded import EmbeddedCluster
from jobs.scenarios.observation import brokers_in_words, describe, wait, wait_for_fetchers
from jobs.scenarios.record_steps import consume, epoch_end, logs, produce
from jobs.scenarios.scene import Outcome, Scene, attempt
from jobs.scenarios.script import Step
from replication.errors import LakelogException


def carry_out(scene: Scene, step: Step) -> Outcome:
    """Carries out one step."""
    return attempt(lambda: HANDLERS[step.name](scene, **step.arguments))


def create_topic(
    scene: Scene, *, topic: str, assignment: Mapping[int, list[int]], configs: Mapping[str, object]
) -> Outcome:
    """Makes a topic over the assignment; it is fetched when this is over."""
    made = scene.cluster.admin().create_topic(topic, assignment=assignment, configs=configs)
    wait_for_fetchers(scene, topic)
    return Outcome({"topic_id": made.topic.topic_id}, f"topic id {made.topic.topic_id}")


def elect(scene: Scene, *, topic: str, partition: int, type: str, expect_error: str | None) -> Outcome:
    """Elects a leader by hand; what is expected is an error, or that there is none."""
    try:
        scene.cluster.elect(topic, partition, type)
    except LakelogException as error:
        fault = None if error.name == expect_error else f"{error.name}: {error}; expected {expect_error or 'no error'}"
        return Outcome({"error": error.name}, error.name, fault)
    return Outcome({"error": None}, "elected", f"no error, expected {expect_error}" if expect_error else None)


def sleep(_: Scene, *, seconds: float) -> Outcome:
    """Lets time pass."""
    threading.Event().wait(seconds)
    return Outcome({}, "")


def _on_broker(act: Callable[[EmbeddedCluster, int], None]) -> Callable[..., Outcome]:
    def handler(scene: Scene, *, broker: int) -> Outcome:
        act(scene.cluster, broker)
        running = scene.cluster.running()
        return Outcome({"running": running}, f"running are {brokers_in_words(running)}")

    return handler


HANDLERS: Mapping[str, Callable[..., Outcome]] = {
    "create_topic": create_topic,
    "produce": produce,
    "wait": wait,
    "describe": describe,
    "elect": elect,
    "logs": logs,
    "epoch_end": epoch_end,
    "consume": consume,
    "sleep": sleep,
    "kill": _on_broker(EmbeddedCluster.kill),
    "pause": _on_broker(EmbeddedCluster.pause),
    "resume": _on_broker(EmbeddedCluster.resume),
    "stop": _on_broker(EmbeddedCluster.stop),
    "start": _on_broker(EmbeddedCluster.start),
    "restart": _on_broker(EmbeddedCluster.restart),
}
