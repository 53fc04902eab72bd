"""Properties on the command line, `key=value`, each flag once for each."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from lakelog.jobs.topics import config_pair
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import Setting, ValueType


class Text:
    """Any text, an empty one too."""

    def parse(self, text: str) -> str:
        """The text as it is."""
        return text

    def __str__(self) -> str:
        return "text"


class Properties(list[tuple[str, str]]):
    """Pairs of the command line. `flag` is the name of the option, as it was given."""

    flag = ""


class _AppendProperty(argparse.Action):
    def __call__(self, _parser: object, namespace: argparse.Namespace, pair: Any, option: str | None = None) -> None:
        found = Properties([*getattr(namespace, self.dest), pair])
        found.flag = option or ""
        setattr(namespace, self.dest, found)


def add_properties(parser: argparse.ArgumentParser, names: Sequence[str], what: str) -> None:
    """Adds an option that may be given several times. The names are those that Kafka has, the newest one first."""
    parser.add_argument(
        *names, dest=names[0].strip("-").replace("-", "_"), type=config_pair, action=_AppendProperty, default=[],
        metavar="KEY=VALUE", help=f"{what}; give the flag once for each",
    )  # fmt: skip


def checked(pairs: Collection[tuple[str, str]], types: Mapping[str, ValueType], flag: str) -> dict[str, Setting]:
    """The values by key. Raises InvalidConfigurationException, which lists all that is wrong, and names the option, as
    it was given, else `flag`."""
    problems, found = list[str](), dict[str, Setting]()
    for key, text in pairs:
        if key in found:
            problems.append(f"{key} is given twice")
        if key not in types:
            close = get_close_matches(key, types, n=1)
            problems.append(
                f"there is no {key}; " + (f"did you mean {close[0]}?" if close else f"known: {_all(types)}")
            )
            continue
        try:
            found[key] = types[key].parse(text)
        except (ValueError, KeyError):
            problems.append(f"{key} is {text!r}, it must be {types[key]}")
    if problems:
        raise InvalidConfigurationException(f"{flag_of(pairs, flag)}: {'; '.join(problems)}")
    return found


def flag_of(pairs: Collection[tuple[str, str]], default: str) -> str:
    """The option of the pairs, as it was given."""
    return (pairs.flag if isinstance(pairs, Properties) else "") or default


def _all(types: Mapping[str, ValueType]) -> str:
    return ", ".join(types)
