"""Carries out each step. The arguments have the names in `arguments.steps_for`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakelog.jobs.cli.waiting import let_pass
from lakelog.replication.clients.admin import Outcomes
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import RecordMetadata
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import (
    InvalidRequestException,
    LakelogException,
    NotLeaderOrFollowerException,
    error_named,
)
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import read_commits_after
from lakelog.replication.storage.log.truncate import DELETION
from lakelog.verification.clusters.cluster_under_test import Server
from lakelog.verification.roots.one_of_several import add_roots, described, lose_root, put_new_root, root_numbered
from lakelog.verification.roots.roots import Roots
from lakelog.verification.roots.wrong_roots import copy_cluster_root as copy
from lakelog.verification.roots.wrong_roots import replace_cluster_root as put_in_its_place
from lakelog.verification.scenarios.observation import (
    behind,
    brokers_in_words,
    describe,
    leadership,
    observe,
    wait,
    wait_for_fetchers,
)
from lakelog.verification.scenarios.scene import Observed, Saw, Scene, attempt, hold
from lakelog.verification.scenarios.script import Step
from lakelog.verification.scenarios.script_cluster import CONTROLLER, ScriptCluster
from lakelog.verification.scenarios.step_arguments import OK

_WORK_SECONDS = 30
_UNDER_WAY = 3  # commits that processes may be publishing at any time
_HOLD_SECONDS = 5
_CONSUME_SECONDS = 30  # a consumer waits for a leader
_NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
_DELETE_SECONDS = 30


def copy_cluster_root(scene: Scene) -> Observed:
    """Copies the cluster root, as a backup does."""
    copy(scene.cluster.roots)
    return Observed({}, scene.cluster.uri)


def replace_cluster_root(scene: Scene, *, by: str) -> Observed:
    """Puts something else in the place of the cluster root."""
    scene.note_logs()
    put_in_its_place(scene.cluster.roots, by, scene.cluster.config)
    return Observed({"root_is_away": True}, f"{scene.cluster.uri} is {by}")


def take_cluster_root_away(scene: Scene, *, root: int, by: str) -> Observed:
    """Takes away one of several cluster roots."""
    return Observed({"root_is_away": True}, f"{lose_root(scene.cluster.roots, root, by)} is {by}")


def put_new_cluster_root(scene: Scene, *, root: int) -> Observed:
    """Lets a new cluster root vote in the place of one that is lost, and waits until it has all commits."""
    uri = put_new_root(scene.cluster.roots, root, scene.cluster.config)
    return hold(lambda: _is_up_to_date(scene, root, uri), _WORK_SECONDS)


def add_cluster_roots(scene: Scene, *, count: int) -> Observed:
    """Lets so many more cluster roots vote beside the only one."""
    return Observed({}, f"the roots are {add_roots(scene.cluster.roots, count, scene.cluster.config)}")


def _is_up_to_date(scene: Scene, root: int, uri: str) -> Observed:
    status = described(scene.cluster.roots, root, scene.cluster.config)
    is_there = status.has_vote and status.behind is not None and status.behind <= _UNDER_WAY
    fault = None if is_there else f"has a vote: {status.has_vote}, is {status.behind} commits behind {status.error}"
    return Observed({"root_is_away": scene.cluster.roots.is_away(uri)}, uri, fault)


def bring_cluster_root_back(scene: Scene, *, root: int | None) -> Observed:
    """Puts the cluster root back, and waits until all running brokers send heartbeats to it. Of several roots, puts
    back one, and waits until it has all commits."""
    roots, uri = scene.cluster.roots, scene.cluster.uri
    if root is not None:
        roots.bring_back(one := root_numbered(roots, root))
        return hold(lambda: _is_up_to_date(scene, root, one), _WORK_SECONDS)
    if not roots.is_away(uri):
        raise InvalidRequestException(f"{uri}: has not been replaced")
    roots.bring_back(uri)
    first: dict[int, tuple[int, int]] = {}

    def poll() -> Observed:
        now = _beats(scene)  # in an object store this process believes the root again a second later
        first.update(first or now)
        silent = [broker for broker in scene.cluster.running() if now[broker] == first[broker]]
        fault = f"no heartbeat of {brokers_in_words(silent)}" if silent else None
        return Observed({"root_is_away": roots.is_away(uri)}, uri, fault)

    return hold(poll, _WORK_SECONDS)


def no_replica_deleted(scene: Scene) -> Observed:
    """Checks that no broker has deleted a replica since the cluster root was replaced for the first time."""
    faults = [fault for broker, version in scene.log_versions.items() if (fault := _deletions(scene, broker, version))]
    return Observed(
        {}, "none" if scene.log_versions else "the cluster root was not replaced", "; ".join(faults) or None
    )


def _beats(scene: Scene) -> dict[int, tuple[int, int]]:
    return {b: (found.broker_epoch, found.heartbeat) for b, found in scene.view.cluster.refresh_brokers().items()}


def _deletions(scene: Scene, broker: int, version: int) -> str:
    """What a broker has deleted after this version of its log, as text; empty if nothing."""
    log = scene.view.log(broker).refresh()
    commits = read_commits_after(scene.view.log(broker).root, version)
    if len(commits) < log.version - version:
        return f"the commits of broker {broker} after version {version} are removed"
    found = [commit.version for commit in commits if commit.info.get("why") == DELETION]
    return f"broker {broker} has deleted a replica in version {found[0]} of its log" if found else ""


def produce(
    scene: Scene, *, topic: str, partition: int, count: int, acks: int | str, prefix: str, timeout_s: float,
    retries: int | None, expect: str,
) -> Observed:  # fmt: skip
    """Sends records as one batch, like records that gather while another send is running.

    Without a leader it ends with TimeoutException, as in Kafka, with or without retries; the text names the cause.
    """
    values = scene.next_values(topic, partition, prefix, count)
    started = time.monotonic()
    answer = _send(scene, acks, topic, partition, values, timeout_s, retries)
    first_ack_ms = None if answer.error else round((time.monotonic() - started) * 1000)
    found = answer.error.name if answer.error else OK
    saw = {**_state(scene, topic, partition), "values": values, "error": answer.error and found,
           "base_offset": answer.base_offset, "last_offset": answer.last_offset}  # fmt: skip
    fault = None if found == expect else f"{found}, expected {expect}{f': {answer.error}' if answer.error else ''}"
    words = found if answer.error else f"offsets {answer.base_offset} to {answer.last_offset} in {first_ack_ms} ms"
    return Observed(saw, words, fault, {"first_ack_ms": first_ack_ms})


def _send(
    scene: Scene, acks: int | str, topic: str, partition: int, values: Sequence[str], timeout_s: float,
    retries: int | None,
) -> RecordMetadata:  # fmt: skip
    binary = pa.array([value.encode() for value in values], pa.binary())
    records = pa.table({"value": binary, "partition": pa.array([partition] * len(values), pa.int32())})
    producer, timeout_ms = scene.producer(acks, retries), round(timeout_s * 1000)
    try:
        return producer.send(topic, records, timeout_ms)[partition]
    except LakelogException as error:
        return RecordMetadata(topic, partition, len(values), error=error)


def _state(scene: Scene, topic: str, partition: int) -> Saw:
    """The state of the partition after the send; empty if there is no such partition."""
    try:
        return observe(scene, leadership(scene, topic, partition))
    except LakelogException:
        return {}


def logs(
    scene: Scene, *, topic: str, partition: int, brokers: list[int] | None, same: bool | None,
    expect_values: list[str] | None,
) -> Observed:  # fmt: skip
    """Compares the rows of each broker's log: all columns with each other, values with the expected ones.

    Without `brokers` it compares all replicas, also those of stopped brokers, since a log is a table that stays
    readable.
    """

    def poll() -> Observed:
        registration = leadership(scene, topic, partition).registration
        rows = {broker: _log(scene, broker, topic, partition) for broker in brokers or registration.replicas}
        first, *others = rows.values()
        are_same = all(other.equals(first) for other in others)
        values = {broker: _values(table) for broker, table in rows.items()}
        faults = [] if same in (None, are_same) else [f"the logs are {'' if are_same else 'not '}the same"]
        if expect_values is not None:
            faults += [f"broker {b} has {_in_words(v)}" for b, v in values.items() if v != expect_values]
            faults += [f"expected {_in_words(expect_values)}"] if faults else []
        words = ", ".join(f"{broker}: {_in_words(v)}" for broker, v in values.items())
        saw = {"same": are_same, "values": {str(broker): v for broker, v in values.items()}}
        return Observed(saw, words, "; ".join(faults) or None)

    return hold(poll, _HOLD_SECONDS)


def _log(scene: Scene, broker: int, topic: str, partition: int) -> pa.Table:
    """A broker's rows of a partition from its log start on. Columns: `schemas.LOG`."""
    key = leadership(scene, topic, partition).registration.topic_id_partition
    log = scene.view.log(broker)
    return log.read(key, log.refresh().partition(key).log_start_offset).combine_chunks()


def _values(rows: pa.Table) -> list[str]:
    return ["" if value is None else value.decode() for value in rows["value"].to_pylist()]


def _in_words(values: Sequence[str]) -> str:
    """Shows up to three values; of more, the first, the last and the count."""
    if len(values) <= 3:
        return " ".join(values) or "nothing"
    return f"{values[0]} … {values[-1]} ({len(values)})"


def delete_records(scene: Scene, *, topic: str, partition: int, before_offset: int, expect: str) -> Observed:
    """Deletes records below an offset, and waits until no live replica has them. [DR-01, DR-02]"""
    found = scene.cluster.admin().delete_records({(topic, partition): before_offset})[topic, partition]
    outcome = found.name if isinstance(found, LakelogException) else OK
    fault = None if outcome == expect else f"{outcome}, expected {expect}{'' if outcome == OK else f': {found}'}"
    low_watermark = None if isinstance(found, LakelogException) else found
    return Observed({"low_watermark": low_watermark, "error": None if outcome == OK else outcome}, f"{found}", fault)


def consume(
    scene: Scene, *, topic: str, partition: int, expect_values: list[str] | None, anew: bool
) -> Observed:  # fmt: skip
    """Reads from the log start to the high watermark, as a consumer does that runs since the script began or, if
    `anew`, begins now."""

    def poll() -> Observed:
        consumer = Consumer(scene.cluster.uri) if anew else scene.consumer
        values = _committed(scene, consumer, topic, partition)
        is_right = expect_values in (None, values)
        fault = None if is_right else f"{_in_words(values)}, expected {_in_words(expect_values or [])}"
        return Observed({"values": values}, _in_words(values), fault)

    return hold(poll, _CONSUME_SECONDS)


def _committed(scene: Scene, consumer: Consumer, topic: str, partition: int) -> list[str]:
    values: list[str] = []
    view = TopicView(Cluster.open(scene.cluster.uri, reads_go_on=True))
    offset = TopicWatch(view, topic, [partition]).leadership(partition).available_row().log_start_offset
    while True:
        fetched = consumer.fetch(topic, {partition: offset}, max_wait_ms=0)[partition]
        if fetched.error:
            raise fetched.error
        values += _values(fetched.records)
        is_moved, offset = fetched.next_offset > offset, fetched.next_offset
        if offset >= fetched.high_watermark or not is_moved:
            return values


def epoch_end(scene: Scene, *, topic: str, partition: int, epochs: list[int]) -> Observed:
    """Asks the leader for the end offsets of epochs. Followers must refuse, because they may still truncate their
    logs."""

    def poll() -> Observed:
        registration = leadership(scene, topic, partition).registration
        ends = scene.consumer.epoch_end(topic, partition, epochs)
        answers = {broker: _answer(scene, topic, partition, epochs, broker) for broker in registration.followers}
        faults = [f"follower {broker} answers {answer}" for broker, answer in answers.items() if answer != _NOT_LEADER]
        words = ", ".join(f"epoch {epoch} ends at {end.end_offset}" for epoch, end in ends.items())
        saw = {
            "ends": {str(epoch): end._asdict() for epoch, end in ends.items()},
            "followers": {str(broker): answer for broker, answer in answers.items()},
        }
        return Observed(saw, words, "; ".join(faults) or None)

    return hold(poll, _HOLD_SECONDS)


def _answer(scene: Scene, topic: str, partition: int, epochs: list[int], broker: int) -> str:
    try:
        return str(scene.consumer.epoch_end(topic, partition, epochs, broker))
    except NotLeaderOrFollowerException:
        return _NOT_LEADER


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
    "take_cluster_root_away": take_cluster_root_away,
    "put_new_cluster_root": put_new_cluster_root,
    "add_cluster_roots": add_cluster_roots,
    "no_replica_deleted": no_replica_deleted,
    "kill": _on_server(ScriptCluster.kill),
    "pause": _on_server(ScriptCluster.pause),
    "resume": _on_server(ScriptCluster.resume),
    "stop": _on_server(ScriptCluster.stop),
    "start": start,
    "restart": _on_server(ScriptCluster.restart),
}
