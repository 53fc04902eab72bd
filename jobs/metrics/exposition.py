"""Prometheus's text formats: labels, families of samples, and the page that a scrape gets.

The page of a large cluster has hundreds of thousands of samples, and making their text takes most of the time of a
scrape. So callers give each sample its labels as text, and each family is one piece of the page.

Text format 0.0.4 and OpenMetrics 1.0.0 of Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

Sample: TypeAlias = tuple[str, float]  # its labels as text, and its value

GAUGE, COUNTER, SUMMARY = "gauge", "counter", "summary"
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OF_BROKER = "{broker}"  # in the value of a label: stands for the id of the sample's broker

_TOTAL = "_total"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Family(NamedTuple):
    """The samples of one metric. `name`: ends with `_total` if it is a counter. A summary has its counts in `samples`,
    and its sums in `sums`."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]
    sums: Iterable[Sample] = ()


class Labels:
    """The labels that an operator adds to all samples. A label whose value contains `{broker}` is added only to samples
    of a broker, with the broker's id in its place."""

    def __init__(self, added: Mapping[str, str]) -> None:
        self._fixed = {name: value for name, value in added.items() if OF_BROKER not in value}
        self._of_broker = {name: value for name, value in added.items() if OF_BROKER in value}

    def text(self, **own: object) -> str:
        """The labels of a sample as text: its own, then those that are added to all."""
        return ",".join(f'{name}="{escaped(value)}"' for name, value in {**own, **self._fixed}.items())

    def of_broker(self, broker: int, **own: object) -> str:
        """The labels of a broker's sample as text."""
        named = {name: value.replace(OF_BROKER, str(broker)) for name, value in self._of_broker.items()}
        return self.text(**own, broker=broker, **named)


def escaped(value: object) -> str:
    """The value of a label between its quotes."""
    return str(value).translate(_ESCAPES)


def is_label_name(name: str) -> bool:
    """Whether a label may have this name: those that begin with two underscores are Prometheus's own."""
    return _NAME.fullmatch(name) is not None and not name.startswith("__")


def content_type(accept: str) -> str:
    """The format for a client, by its header Accept."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return OPEN_METRICS if "application/openmetrics-text" in kinds else TEXT_FORMAT


def page(families: Iterable[Family], form: str) -> Iterator[bytes]:
    """The page in one of the two formats, piece by piece. A family without samples is left out."""
    for family in families:
        name = family.name
        if family.kind == SUMMARY:
            pairs = zip(family.samples, family.sums, strict=True)
            samples = "".join([_lines(f"{name}_count", [n]) + _lines(f"{name}_sum", [s]) for n, s in pairs])
        else:
            samples = _lines(name, family.samples)
        if samples:
            titled = name.removesuffix(_TOTAL) if form == OPEN_METRICS and family.kind == COUNTER else name
            yield f"# HELP {titled} {family.help}\n# TYPE {titled} {family.kind}\n{samples}".encode()
    if form == OPEN_METRICS:
        yield b"# EOF\n"


def _lines(name: str, samples: Iterable[Sample]) -> str:
    return "".join([f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n" for labels, value in samples])
