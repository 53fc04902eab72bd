"""Draws the leaders of the partitions of a topic: one lane for each partition, whose colour is the leader, and below it
whether the ISR was whole. The console shows it, and the quickstart keeps it as a file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from lakelog.jobs.web.metadata_timeline import PartitionChange
from lakelog.replication.storage.delta.table_history import utc

LEFT, RIGHT, TOP, LANE = 90.0, 990.0, 8.0, 30.0  # in units of the drawing, which is 1000 wide
_MOST_SEGMENTS = 400  # of a lane, the newest ones
_TICKS = 6
_COLOURS, _LETTER = 8, 7.0


class Tick(NamedTuple):
    """A time below a chart."""

    x: float
    text: str


class LaneSegment(NamedTuple):
    """A time with one leader and one ISR. `shape`: whether the ISR is whole then. `label`: the leader, where it is
    another than before and there is room."""

    x: float
    width: float
    leader: int | None
    colour: int
    shape: str
    title: str
    label: str

    def svg(self, y: float) -> str:
        """The segment as elements of SVG, in the lane at `y`."""
        led, place = "noleader" if self.leader is None else f"b{self.colour}", f'x="{self.x}" width="{self.width}"'
        inside = "" if self.leader is None else ' class="inside"'
        label = f'<text{inside} x="{self.x + 4:g}" y="{y + 13:g}">{escape(self.label)}</text>' if self.label else ""
        return (
            f'<g><title>{escape(self.title)}</title><rect class="{led}" {place} y="{y:g}" height="17"/><rect '
            f'class="{self.shape}" {place} y="{y + 18:g}" height="{3 if self.shape == "full" else 6}"/>{label}</g>'
        )


class Lane(NamedTuple):
    """A partition of a chart."""

    partition: int
    y: float
    segments: Sequence[LaneSegment]

    @property
    def svg(self) -> str:
        """The lane as elements of SVG."""
        name = f'<text x="{LEFT - 6:g}" y="{self.y + 13:g}" text-anchor="end">partition {self.partition}</text>'
        return "\n".join((name, *(segment.svg(self.y) for segment in self.segments)))


class Window(NamedTuple):
    """The times that a chart shows, in seconds since the epoch."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        """The place of a time in a chart."""
        share = (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(LEFT + share * (RIGHT - LEFT), 2)

    @property
    def ticks(self) -> list[Tick]:
        """Times at equal distances."""
        step = (self.end - self.begin) / _TICKS
        form = slice(5, 16) if self.end - self.begin > 86_400 else slice(11, 19)
        return [Tick(self.x(t), utc(t)[form].replace("T", " ")) for t in (self.begin + n * step for n in range(_TICKS))]


def lanes(changes: Sequence[PartitionChange], numbers: Sequence[int], window: Window, now: float) -> list[Lane]:
    """The lanes of some partitions of a topic, one below the other. `now`: when the last changes end."""
    of_partition: dict[int, list[PartitionChange]] = {number: [] for number in numbers}
    for change in changes:
        if change.partition in of_partition:
            of_partition[change.partition].append(change)
    return [
        Lane(number, TOP + LANE * place, _segments(of_partition[number], window, now))
        for place, number in enumerate(numbers)
    ]


def _segments(changes: Sequence[PartitionChange], window: Window, now: float) -> list[LaneSegment]:
    """The segments of a lane. A change that is over before the window, or is of a deleted topic, has none."""
    found, said = list[LaneSegment](), ""
    ends = [*(change.at for change in changes[1:]), now]
    for change, end in zip(changes, ends, strict=True):
        if change.is_removed or end < window.begin or change.at > window.end:
            continue
        x = window.x(change.at)
        led = "no leader" if change.leader is None else f"broker {change.leader} leads"
        shape = "empty" if change.leader is None else "full" if len(change.isr) >= len(change.replicas) else "short"
        title = (
            f"Partition {change.partition} from {utc(change.at)} to {utc(end)}: {led} under epoch "
            f"{change.leader_epoch}, ISR {', '.join(map(str, change.isr)) or 'empty'} of "
            f"{', '.join(map(str, change.replicas))}"
        )
        colour = (change.leader or 0) % _COLOURS
        width = max(0.8, round(window.x(end) - x, 2))
        name = "none" if change.leader is None else str(change.leader)
        label = name if name != said and width > _LETTER * len(name) + 8 else ""
        said = label or (said if name == said else "")
        found.append(LaneSegment(x, width, change.leader, colour, shape, title, label))
    return found[-_MOST_SEGMENTS:]
