"""The pictures of `bench all`: SVG files of lines over two logarithmic scales."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

Series = Mapping[str, Mapping[float, float]]  # the points of each line

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 860, 420, 70, 40, 290, 50  # pixels; the legend is on the right
_COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#edae49", "#6b4e9b", "#7a7a7a", "#00798c", "#b5651d")
_GROWING = (
    "producer: commits a record", "follower: fetches a record", "leader: looks, a row is new", "leader: publishes a HW",
    "broker: opens its log and reads its roles", "controller: decides on a lost broker",
)  # fmt: skip
_UNITS = {"B": 1, "KB": 1000}


def pictures_of(suites: Mapping[str, Any]) -> dict[str, str]:
    """The pictures that the figures of the suites allow, by the name of their file."""
    found = {}
    latency = _latency(suites.get("produce", {}).get("sends", ()))
    if latency:
        found["latency.svg"] = chart("An acknowledged send, acks=all, three brokers", "bytes of a send", latency)
        title = "Sends one after the other, acks=all, three brokers"
        found["throughput.svg"] = chart(title, "bytes of a send", _throughput(latency), "MB/s")
    growth = _growth(suites.get("scale", {}).get("growth", ()))
    if growth:
        found["growth.svg"] = chart("One change in a cluster of many partitions", "partitions", growth)
    return found


def _latency(sends: Sequence[Mapping[str, Any]]) -> Series:
    """The median ms of a send by its bytes, beside that of a plain append; without the first send of a topic."""
    lines: dict[str, dict[float, float]] = {"Lakelog": {}, "append to one plain Delta table": {}}
    for send in sends:
        size = re.fullmatch(r"([\d,]+) records of (\d+) (K?B)", send["data_set"])
        if size and send["name"] != "first send":
            bytes_ = int(size[1].replace(",", "")) * int(size[2]) * _UNITS[size[3]]
            for line, key in zip(lines.values(), ("seconds", "plain_append_seconds"), strict=True):
                line.setdefault(bytes_, send[key]["median"] * 1000)  # the first kind of a size: one after the other
    return {name: points for name, points in lines.items() if points}


def _throughput(latency: Series) -> Series:
    return {name: {size: size / ms / 1000 for size, ms in points.items()} for name, points in latency.items()}


def _growth(growth: Sequence[Mapping[str, Any]]) -> Series:
    found = {each["action"]: each["ms"] for each in growth if each["by"] == "partitions"}
    return {name: {float(n): ms for n, ms in found[name].items()} for name in _GROWING if name in found}


def chart(title: str, across: str, series: Series, unit: str = "ms") -> str:
    """A picture of lines: `across` names the scale of x, `unit` that of y."""
    points = [point for line in series.values() for point in line.items()]
    xs, ys = ([max(1e-3, point[i]) for point in points] for i in (0, 1))
    x_of = _scale(xs, _LEFT, _WIDTH - _RIGHT)
    y_of = _scale(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{escape(across)}</text><text x="6" y="{_TOP - 4}">{unit}</text>',
    ]
    for power in _powers(xs):
        x = x_of(10.0**power)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{10.0**power:,g}</text>')
    for power in _powers(ys):
        y = y_of(10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for number, (name, line) in enumerate(series.items()):
        placed = [(x_of(x), y_of(max(1e-3, y))) for x, y in sorted(line.items())]
        parts += _line(name, placed, _COLOURS[number % len(_COLOURS)], _TOP + 20 * number + 8)
    return "\n".join([*parts, "</svg>\n"])


def _line(name: str, placed: Sequence[tuple[float, float]], colour: str, legend: int) -> Iterator[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed)
    x = _WIDTH - _RIGHT + 14
    yield f'<rect x="{x}" y="{legend - 8}" width="10" height="10" fill="{colour}"/>'
    yield f'<text x="{x + 16}" y="{legend + 1}">{escape(name)}</text>'


def _powers(values: Sequence[float]) -> range:
    """The powers of ten from below the least value to above the largest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return range(low, max(high, low + 1) + 1)


def _scale(values: Sequence[float], start: float, end: float) -> Any:
    powers = _powers(values)
    return lambda value: start + (math.log10(value) - powers[0]) / (powers[-1] - powers[0]) * (end - start)
