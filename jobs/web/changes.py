"""The changes that the console offers: of each, the fields of its form, and the command that it is.

A form becomes the words of a command, and the verb checks them. So nothing is checked here that a verb checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.web.page_kit import group_url, option, url
from lakelog.jobs.web.verb_answers import VerbCall

Given = Mapping[str, str]  # what was filled in, by the names of the fields

LINE, LINES = "line", "lines"
_CORDON, _UNCORDON = "cordon", "uncordon"
_CORDONED = "cordoned.log.dirs"
_ONE, _ALL = "one", "all"


class Field(NamedTuple):
    """A field of a form: of one line, of several lines, or with `choices`, each a value and its words."""

    name: str
    label: str
    hint: str = ""
    kind: str = LINE
    choices: Sequence[tuple[str, str]] = ()


class ChangeKind(NamedTuple):
    """A change. `name`: the end of its path; `typed`: the field whose value has to be typed again; `shown`: the page
    that shows what it has changed. `call` raises ValueError where no command could say what was filled in."""

    name: str
    title: str
    what: str
    button: str
    fields: Sequence[Field]
    call: Callable[[Given], VerbCall]
    shown: Callable[[Given], str]
    typed: str = ""

    @property
    def path(self) -> str:
        """Its page."""
        return url("change", self.name)


def _filled(name: str, value: str) -> Sequence[object]:
    """An option that may be left out."""
    return option(name, value) if value else ()


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def _create_topic(given: Given) -> VerbCall:
    settings = [word for pair in _lines(given["settings"]) for word in option("--config", pair)]
    return VerbCall(
        "topics",
        (
            "--create", *option("--topic", given["topic"]), *_filled("--partitions", given["partitions"]),
            *_filled("--replication-factor", given["replication_factor"]), *settings,
        ),
    )  # fmt: skip


def _delete_topic(given: Given) -> VerbCall:
    return VerbCall("topics", ("--delete", *option("--topic", given["topic"])))


def _topic_settings(given: Given) -> VerbCall:
    pairs, keys = map(_bracketed, _lines(given["set"])), _lines(given["remove"])
    return VerbCall(
        "configs",
        (
            "--alter", "--entity-type", "topics", *option("--entity-name", given["topic"]),
            *_filled("--add-config", ",".join(pairs)), *_filled("--delete-config", ",".join(keys)),
        ),
    )  # fmt: skip


def _bracketed(pair: str) -> str:
    """A value with commas stands in brackets on the command line."""
    key, equals, value = pair.partition("=")
    return f"{key}=[{value}]" if equals and "," in value else pair


def _elect_leaders(given: Given) -> VerbCall:
    chosen: Sequence[object] = (*option("--topic", given["topic"]), *option("--partition", given["partition"]))
    if given["which"] == _ALL:
        if given["topic"] or given["partition"]:
            raise ValueError("all partitions are chosen: leave the topic and the partition empty")
        chosen = ("--all-topic-partitions",)
    return VerbCall("leader-election", ("--election-type", "preferred", *chosen))


def _cordon(given: Given) -> VerbCall:
    change = ("--delete-config", _CORDONED) if given["do"] == _UNCORDON else ("--add-config", f"{_CORDONED}=*")
    of = ("--entity-type", "brokers", *option("--entity-name", given["broker"]))
    return VerbCall("configs", ("--alter", *of, *change))


_RULES = {
    "to-earliest": "to the log start", "to-latest": "to the high watermark",
    "to-current": "to the committed offset", "to-offset": "to the offset", "shift-by": "by so many records",
    "to-datetime": "to the first record since the time", "by-duration": "to the first record of the last",
}  # fmt: skip
_RULES_WITHOUT_VALUE = ("to-earliest", "to-latest", "to-current")


def _reset_offsets(given: Given) -> VerbCall:
    rule, value = given["rule"], given["value"]
    if rule in _RULES_WITHOUT_VALUE and value:
        raise ValueError(f"--{rule} takes no value, but the value is {value[:60]!r}: leave it empty")
    how: Sequence[object] = (f"--{rule}",) if rule in _RULES_WITHOUT_VALUE else option(f"--{rule}", value)
    topics = _topics(given) or ("--all-topics",)
    words = ("--reset-offsets", *option("--group", given["group"]), *topics, *how)
    return VerbCall("consumer-groups", words, done=("--execute",))


def _delete_offsets(given: Given) -> VerbCall:
    words = ("--delete-offsets", *option("--group", given["group"]), *_topics(given))
    return VerbCall("consumer-groups", words)


def _topics(given: Given) -> Sequence[object]:
    return [word for topic in _lines(given["topics"]) for word in option("--topic", topic)]


def topics_of(given: Given) -> list[str]:
    """The topics that a change names."""
    found = (given.get("topic", ""), *(line.partition(":")[0] for line in _lines(given.get("topics", ""))))
    return [topic for topic in found if topic]


def _delete_group(given: Given) -> VerbCall:
    return VerbCall("consumer-groups", ("--delete", *option("--group", given["group"])))


def _topic_page(given: Given) -> str:
    return url("topics", given["topic"]) if given["topic"] else url("topics")


_TOPIC, _GROUP = Field("topic", "Topic"), Field("group", "Group")
_PAIRS = "one in a line, such as retention.ms=86400000"
_PARTS = "one in a line: orders, or orders:0,1 for some of its partitions"

CHANGES: dict[str, ChangeKind] = {
    change.name: change
    for change in (
        ChangeKind(
            "create-topic", "Create a topic", "Creates a topic. The controller chooses the brokers of its partitions.",
            "Create the topic",
            (
                _TOPIC, Field("partitions", "Partitions", "empty: num.partitions of the controller"),
                Field("replication_factor", "Replicas", "empty: default.replication.factor of the controller"),
                Field("settings", "Settings", _PAIRS, LINES),
            ),
            _create_topic, _topic_page,
        ),
        ChangeKind(
            "delete-topic", "Delete a topic", "Deletes a topic with all its records. Nothing brings them back.",
            "Delete the topic", (_TOPIC,), _delete_topic, lambda _: url("topics"), typed="topic",
        ),
        ChangeKind(
            "topic-settings", "Change settings of a topic", "Sets and removes settings of a topic.",
            "Change the settings",
            (
                _TOPIC, Field("set", "Set", _PAIRS, LINES),
                Field("remove", "Remove", "keys, one in a line; their defaults hold then", LINES),
            ),
            _topic_settings,
            lambda given: url("topics", given["topic"], "settings") if given["topic"] else url("topics"),
        ),
        ChangeKind(
            "elect-leaders", "Elect preferred leaders",
            "Gives partitions back to the first broker of their assignment, if that is in sync.", "Elect the leaders",
            (
                Field("which", "Partitions", choices=((_ONE, "one partition"), (_ALL, "all partitions of all topics"))),
                _TOPIC, Field("partition", "Partition", "its number"),
            ),
            _elect_leaders, _topic_page,
        ),
        ChangeKind(
            "cordon", "Cordon a broker", "A cordoned broker gets no new replica; those that it has stay.",
            "Change the broker",
            (
                Field("broker", "Broker", "its id"),
                Field("do", "What", choices=((_CORDON, "cordon it"), (_UNCORDON, "end its cordon"))),
            ),
            _cordon, lambda _: url("brokers"),
        ),
        ChangeKind(
            "reset-offsets", "Reset offsets of a group", "Sets the offsets that a group without members goes on from.",
            "Reset the offsets",
            (
                _GROUP, Field("topics", "Topics", f"{_PARTS}; empty: all that the group has committed", LINES),
                Field("rule", "Set them", choices=tuple(_RULES.items())),
                Field("value", "Value", "an offset, a number of records, a time such as 2025-01-31T12:00:00, or a "
                      "duration such as PT1H30M; empty for the first three"),
            ),
            _reset_offsets, lambda given: group_url(given["group"]),
        ),
        ChangeKind(
            "delete-offsets", "Delete offsets of a group",
            "Deletes the offsets that a group without members has committed for some topics.", "Delete the offsets",
            (_GROUP, Field("topics", "Topics", _PARTS, LINES)), _delete_offsets,
            lambda given: group_url(given["group"]),
        ),
        ChangeKind(
            "delete-group", "Delete a group", "Deletes a group without members, with all its offsets.",
            "Delete the group", (_GROUP,), _delete_group, lambda _: url("groups"), typed="group",
        ),
    )
}  # fmt: skip
