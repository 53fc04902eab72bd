"""The producer of a verb: its settings come from flags, and from properties with Kafka's keys."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lakelog.jobs.cli.settings import settings
from lakelog.jobs.console.key_values import Text, add_properties, checked
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.producer import Producer
from lakelog.replication.properties import Integer, ValueType

_ARGUMENTS = {"transactional.id": "name"}  # that have another name here
KEYS: dict[str, ValueType] = {
    **{member.name.replace("_", "."): member.metadata["type"] for member in fields(ProducerConfig)},
    "acks": Text(),
    "retries": Integer(0),
    "transactional.id": Text(),
}


def add_producer_properties(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds the option for the settings of the producer."""
    add_properties(parser, [name], f"setting of the producer: {', '.join(KEYS)}")


def producer_of(
    args: argparse.Namespace, pairs: list[tuple[str, str]], flag: str, given: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Producer:  # fmt: skip
    """A producer with the settings `given` by flags; if a flag is None its property counts, and then the default.

    Raises InvalidConfigurationException, InvalidRequiredAcksException, and what `Producer` raises.
    """
    told = {key: value for key, value in given.items() if value is not None}
    chosen = {**defaults, **checked(pairs, KEYS, flag), **told}
    arguments: dict[str, Any] = {_ARGUMENTS.get(key, key.replace(".", "_")): value for key, value in chosen.items()}
    return Producer(args.cluster, config=settings(args.command_config), **arguments)
