"""The options that Spark's users give `format("lakelog")`, for reading and for writing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from lakelog.replication.errors import InvalidConfigurationException

_STORAGE = "storage."  # credentials and endpoints of a root, as in the properties file
_TIMEOUT = "kafka.request.timeout.ms"
_OF_SPARK = ("checkpointlocation", "queryname")  # Spark passes on what is meant for itself
_OF_A_CATALOG = ("provider", "owner")  # Spark gives them for CREATE TABLE, and each option twice
_log = logging.getLogger(__name__)


def known_options(
    given: Mapping[str, str], known: Collection[str], aliases: Mapping[str, str], unused: Collection[str], warn: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The options under their own names, and those of storage. `given` has names in any case. Options of Kafka that are
    not `known` have no effect; with `warn`, one warning names them.

    Raises InvalidConfigurationException for an unknown option, for two names of one option with two values, for a table
    of Spark's catalog, and if there is no `cluster`.
    """
    if any(name.lower() in _OF_A_CATALOG or name.lower().startswith("option.") for name in given):
        raise InvalidConfigurationException(
            "a topic cannot be a table of Spark's catalog: instead of CREATE TABLE use CREATE TEMPORARY VIEW … USING "
            "lakelog OPTIONS (…)"
        )
    names = {name.lower(): name for name in known} | {name.lower(): target for name, target in aliases.items()}
    without_effect = {name.lower() for name in unused}
    options: dict[str, str] = {}
    sources: dict[str, str] = {}
    storage: dict[str, str] = {}
    ignored = []
    for written, value in given.items():
        name = written.lower()
        if name in names:
            target = names[name]
            first = sources.setdefault(target, written)
            if options.setdefault(target, value) != value:
                raise InvalidConfigurationException(
                    f"options {first} and {written} are the same and differ: {options[target]!r} and {value!r}"
                )
        elif name.startswith(_STORAGE) or name == _TIMEOUT:
            storage[name.removeprefix("kafka.")] = value
        elif name.startswith("kafka.") or name in without_effect:
            ignored.append(written)
        elif name not in _OF_SPARK:
            raise InvalidConfigurationException(f"option {written} is unknown{_nearest(name, known)}")
    if warn and ignored:
        _log.warning("options without effect here: %s", ", ".join(sorted(ignored)))
    if not options.get("cluster"):
        raise InvalidConfigurationException("option cluster is missing; allowed: the URI of a cluster root")
    return options, storage


def _nearest(name: str, known: Collection[str]) -> str:
    names = {each.lower(): each for each in known}
    near = get_close_matches(name, names, 1)
    return f"; did you mean {names[near[0]]}?" if near else f"; allowed: {', '.join(known)}"


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false. Raises InvalidConfigurationException."""
    given = options.get(name, str(default)).lower()
    if given not in ("true", "false"):
        raise InvalidConfigurationException(f"option {name} is {options[name]!r}; allowed: true, false")
    return given == "true"


def positive(options: Mapping[str, str], name: str) -> int | None:
    """An option that is a whole number from 1 on, None if it is not given. Raises InvalidConfigurationException."""
    given = options.get(name)
    if given is not None and (not (given.isascii() and given.isdigit()) or int(given) < 1):
        raise InvalidConfigurationException(f"option {name} is {given!r}; allowed: whole numbers from 1 on")
    return None if given is None else int(given)
