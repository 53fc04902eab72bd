"""The steps of event scripts and their arguments: names, allowed values and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lakelog.jobs.cli.numbers import is_natural, is_number
from lakelog.jobs.cli.root_names import DISK, S3
from lakelog.replication.controller.requested_elections import PREFERRED, UNCLEAN
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.verification.roots.one_of_several import AWAY, LOSSES
from lakelog.verification.roots.wrong_roots import WRONG_ROOTS
from lakelog.verification.scenarios.script_cluster import CONTROLLER

OK = "ok"
REQUIRED = object()

# A step with one argument may omit its name: `kill: 1`.
_SERVERS = ("kill", "pause", "resume", "stop", "start", "restart")
SHORT = dict.fromkeys((*_SERVERS, "take_storage_away", "bring_storage_back"), "broker") | {
    "sleep": "seconds",
    "replace_cluster_root": "by",
    "take_cluster_root_away": "root",
    "put_new_cluster_root": "root",
    "add_cluster_roots": "count",
}


class ArgumentKind(NamedTuple):
    """A kind of value: the allowed values as text, and `parse`, which returns the value for steps or raises
    ValueError."""

    allowed: str
    parse: Callable[[Any], Any]


class Argument(NamedTuple):
    """An argument: its kind (or the arguments of a mapping) and its default. `REQUIRED`: there is no default."""

    kind: ArgumentKind | Mapping[str, Argument]
    default: Any = REQUIRED


def steps_for(brokers: Sequence[int]) -> dict[str, dict[str, Argument]]:
    """Every step that a script for these brokers may have, with its arguments."""
    broker = ArgumentKind(f"one of the brokers {', '.join(map(str, brokers))}", _one_of(brokers))
    server = ArgumentKind(f"{broker.allowed}, or {CONTROLLER}", _one_of((*brokers, CONTROLLER)))
    some = list_of(broker)
    partition = _PARTITION
    state = {
        "leader": Argument(_leader(broker), None),
        "leader_epoch": Argument(NATURAL, None),
        "isr": Argument(some, None),
        "replicas": Argument(some, None),
        "offline": Argument(some, None),
        "hw": Argument(NATURAL, None),
    }
    return {
        "create_topic": {
            "topic": Argument(TEXT),
            "assignment": Argument(_assignment(some)),
            "configs": Argument(CONFIGS, {}),
        },
        "delete_topic": {"topic": Argument(TEXT)},
        "wait": {**partition, **state, "timeout_s": Argument(SECONDS, 30)},
        "describe": {**partition, "expect": Argument(state, {})},
        "elect": {
            **partition,
            "type": Argument(_choice(PREFERRED, UNCLEAN), PREFERRED),
            "expect_error": Argument(TEXT, None),
        },
        "reassign": {**partition, "replicas": Argument(some)},
        "alter_configs": {
            "topic": Argument(TEXT, None),
            "broker": Argument(broker, None),
            "configs": Argument(CONFIGS),
        },
        "take_storage_away": {"broker": Argument(broker)},
        "bring_storage_back": {"broker": Argument(broker)},
        **_record_steps(some),
        "sleep": {"seconds": Argument(SECONDS)},
        "copy_cluster_root": {},
        "replace_cluster_root": {"by": Argument(_choice(*WRONG_ROOTS))},
        "bring_cluster_root_back": {"root": Argument(POSITIVE, None)},
        "take_cluster_root_away": {"root": Argument(POSITIVE), "by": Argument(_choice(*LOSSES), AWAY)},
        "put_new_cluster_root": {"root": Argument(POSITIVE)},
        "add_cluster_roots": {"count": Argument(POSITIVE)},
        "no_replica_deleted": {},
        **{name: {"broker": Argument(server)} for name in _SERVERS},
        "start": {"broker": Argument(server), "expect_error": Argument(TEXT, None)},
    }


def _record_steps(some: ArgumentKind) -> dict[str, dict[str, Argument]]:
    """The steps that write, delete and read records."""
    partition = _PARTITION
    return {
        "produce": {
            **partition,
            "count": Argument(POSITIVE, 1),
            "acks": Argument(_choice("all", -1, 0, 1), "all"),
            "prefix": Argument(TEXT, "m"),
            "timeout_s": Argument(SECONDS, 15),
            "retries": Argument(NATURAL, None),
            "expect": Argument(TEXT, OK),
        },
        "delete_records": {
            **partition,
            "before_offset": Argument(OFFSET),
            "expect": Argument(TEXT, OK),
        },
        "logs": {
            **partition,
            "brokers": Argument(some, None),
            "same": Argument(TRUTH, None),
            "expect_values": Argument(VALUES, None),
        },
        "epoch_end": {**partition, "epochs": Argument(list_of(NATURAL))},
        "consume": {**partition, "expect_values": Argument(VALUES, None), "anew": Argument(TRUTH, False)},
    }


def _check(holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if not holds(value):
            raise ValueError(value)
        return value

    return parse


def _one_of(values: Sequence[object]) -> Callable[[Any], Any]:
    """Compares types too, because `1 == True`."""
    return _check(lambda value: any(value == known and type(value) is type(known) for known in values))


def _choice(*values: object) -> ArgumentKind:
    return ArgumentKind(" or ".join(map(str, values)), _one_of(values))


def list_of(kind: ArgumentKind) -> ArgumentKind:
    """A list of values of this kind."""

    def parse(value: Any) -> list[Any]:
        return [kind.parse(item) for item in _check(lambda given: isinstance(given, list))(value)]

    return ArgumentKind(f"a list, each {kind.allowed}", parse)


def _leader(broker: ArgumentKind) -> ArgumentKind:
    no_leader = ("none", NO_LEADER)
    return ArgumentKind(
        f"{broker.allowed}, or none", lambda value: NO_LEADER if value in no_leader else broker.parse(value)
    )


def _assignment(brokers: ArgumentKind) -> ArgumentKind:
    def parse(value: Any) -> dict[int, list[int]]:
        given = _check(lambda found: isinstance(found, dict) and all(map(is_natural, found)))(value)
        return {partition: brokers.parse(replicas) for partition, replicas in given.items()}

    return ArgumentKind("a mapping of partitions to their brokers, {0: [1, 2, 3]}", parse)


def _parse_configs(value: Any) -> dict[str, object]:
    checked = _check(lambda given: isinstance(given, dict) and all(isinstance(key, str) for key in given))(value)
    return dict(checked)


TEXT = ArgumentKind("text", _check(lambda value: isinstance(value, str) and value != ""))
NATURAL = ArgumentKind("a whole number from 0", _check(is_natural))
OFFSET = ArgumentKind("an offset, or -1 for the high watermark", _check(lambda value: value == -1 or is_natural(value)))
POSITIVE = ArgumentKind("a whole number from 1", _check(lambda value: is_natural(value) and value > 0))
SECONDS = ArgumentKind("a number of seconds from 0", _check(lambda value: is_number(value) and value >= 0))
STORE = _choice(DISK, S3)
TRUTH = ArgumentKind("true or false", _check(lambda value: isinstance(value, bool)))
CONFIGS = ArgumentKind("a mapping of the topic's settings, {min.insync.replicas: 2}", _parse_configs)
_SCALAR = ArgumentKind("text or a number", _check(lambda value: isinstance(value, str) or is_number(value)))
VALUES = ArgumentKind("a list of values, [m0, m1]", lambda value: [str(item) for item in list_of(_SCALAR).parse(value)])
_PARTITION = {"topic": Argument(TEXT), "partition": Argument(NATURAL, 0)}
