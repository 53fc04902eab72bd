"""The JSON files of Kafka's tools, as types of arguments: what is wrong with one is wrong usage."""

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lakelog.jobs.cli.numbers import MAX_OFFSET, is_natural, is_number
from lakelog.replication.protocol.log_retention import HIGH_WATERMARK

TopicPartition = tuple[str, int]

_VERSION = 1
_ANY = "any"


def read_reassignments(path: str) -> dict[TopicPartition, list[int]]:
    """`{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}`."""
    found: dict[TopicPartition, list[int]] = {}
    for item in _items(path, "partitions"):
        partition, replicas, places = _partition(path, item), item.get("replicas"), item.get("log_dirs", [])
        if not isinstance(replicas, list) or not all(map(is_natural, replicas)):
            raise ArgumentTypeError(f'{path}: "replicas" of {item} must be a list of broker ids')
        if not isinstance(places, list) or any(place != _ANY for place in places):
            raise ArgumentTypeError(f'{path}: "log_dirs" of {item} must be "{_ANY}": a broker has one root')
        if not replicas or len(set(replicas)) < len(replicas):
            raise ArgumentTypeError(f'{path}: "replicas" of {item} must name one broker at least, and none twice')
        if partition in found:
            raise ArgumentTypeError(f"{path}: {item['topic']}-{item['partition']} stands there twice")
        found[partition] = replicas
    return found


def read_partitions(path: str) -> list[TopicPartition]:
    """`{"partitions": [{"topic": "t", "partition": 0}]}`."""
    return _different(path, [_partition(path, item) for item in _items(path, "partitions")])


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """`{"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 10}]}`; offset -1 is the HW."""
    items = _items(path, "partitions")
    partitions = _different(path, [_partition(path, item) for item in items])
    for item in items:
        if not _is_offset(item.get("offset")):
            raise ArgumentTypeError(
                f'{path}: "offset" of {item} must be a number from {HIGH_WATERMARK} to {MAX_OFFSET}'
            )
    return {partition: item["offset"] for partition, item in zip(partitions, items, strict=True)}


def read_topics(path: str) -> list[str]:
    """`{"version": 1, "topics": [{"topic": "t"}]}`."""
    return _different(path, [_topic(path, item) for item in _items(path, "topics")])


def reassignments(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """The object that `read_reassignments` reads, for JSON."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in sorted(assignment.items())
    ]
    return {"version": _VERSION, "partitions": partitions}


def _items(path: str, key: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(Path(path).read_text("utf-8-sig"))  # with or without a byte order mark
    except OSError as error:
        raise ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentTypeError(f"{path} cannot be read: it is not UTF-8") from None
    except RecursionError:
        raise ArgumentTypeError(f"{path} cannot be read: its lists and objects are nested too deeply") from None
    except ValueError as error:
        raise ArgumentTypeError(f"{path} cannot be read: {error}") from None
    items = found.get(key) if isinstance(found, dict) else None
    if not items or not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ArgumentTypeError(f'{path}: it must be an object, and "{key}" in it a list of objects, one at least')
    if found.get("version", _VERSION) != _VERSION:
        raise ArgumentTypeError(f'{path}: "version" is {found["version"]!r}, it must be {_VERSION}')
    return items


def _topic(path: str, item: dict[str, Any]) -> str:
    topic = item.get("topic")
    if not isinstance(topic, str):
        raise ArgumentTypeError(f'{path}: "topic" of {item} must be a text')
    return topic


def _partition(path: str, item: dict[str, Any]) -> TopicPartition:
    topic, partition = _topic(path, item), item.get("partition")
    if not isinstance(partition, int) or not is_natural(partition):
        raise ArgumentTypeError(f'{path}: "partition" of {item} must be a number from 0 on')
    return topic, partition


def _different(path: str, found: list[Any]) -> list[Any]:
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise ArgumentTypeError(f"{path}: {twice} stands there twice")
    return found


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and is_number(value) and HIGH_WATERMARK <= value <= MAX_OFFSET
