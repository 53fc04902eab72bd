"""A failover as a picture: how many sends were acknowledged a second while a broker died, and below it who led each
partition. It is an SVG file, and all of it comes from one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from lakelog.jobs.web.console_style import drawing
from lakelog.jobs.web.leader_lanes import LANE, LEFT, RIGHT, TOP, Window, lanes
from lakelog.jobs.web.metadata_timeline import PartitionChange

_BAR = 0.5  # seconds
_HEAD, _ROW = 60.0, 16.0  # the title with its sentence, and a line for each mark
_HIGH, _GAP, _FOOT = 130.0, 24.0, 52.0
_TICK = 5  # seconds
_WIDTH, _LETTER = 1000, 7.0


class FailoverRun(NamedTuple):
    """A run of a cluster. Times are in seconds since the epoch: `acknowledged` has one for each send, and `marks` name
    what happened. `changes`: those of the partitions of one topic, also from before `begin`."""

    begin: float
    end: float
    acknowledged: Sequence[float]
    marks: Sequence[tuple[float, str]]
    changes: Sequence[PartitionChange]

    def svg(self, title: str, said: str) -> str:
        """The picture under a title and a sentence."""
        partitions = sorted({change.partition for change in self.changes})
        top = _HEAD + _ROW * len(self.marks) + 8
        below = top + _HIGH + _GAP
        bottom = below + TOP + LANE * len(partitions)
        window = Window(self.begin, self.end)
        body = [
            f'<text class="title" x="16" y="28">{escape(title)}</text>',
            f'<text class="said" x="16" y="48">{escape(said)}</text>',
            *self._axis(window, top, bottom),
            *self._bars(window, top),
            f'<g transform="translate(0 {below:g})">',
            *(lane.svg for lane in lanes(self.changes, partitions, window, self.end)),
            "</g>",
            *self._marks(window, bottom),
            *self._legend(bottom + 38),
        ]
        return drawing(_WIDTH, bottom + _FOOT, escape(f"{title} {said}"), "\n".join(body))

    def _axis(self, window: Window, top: float, bottom: float) -> Iterator[str]:
        for second in range(0, int(self.end - self.begin) + 1, _TICK):
            x = window.x(self.begin + second)
            yield f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom:g}"/>'
            yield f'<text x="{x:g}" y="{bottom + 14:g}" text-anchor="middle">{second} s</text>'

    def _bars(self, window: Window, top: float) -> Iterator[str]:
        """The sends that were acknowledged in each half second."""
        counts = Counter(int((at - self.begin) // _BAR) for at in self.acknowledged if self.begin <= at < self.end)
        most = max(counts.values(), default=1)
        for count in (0, most):
            y = top + _HIGH * (1 - count / most)
            yield f'<line class="grid" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{y:g}" y2="{y:g}"/>'
            yield f'<text x="{LEFT - 6:g}" y="{y + 4:g}" text-anchor="end">{count / _BAR:.0f}</text>'
        for row, word in enumerate(("sends", "acknowledged", "a second")):
            yield f'<text x="{LEFT - 6:g}" y="{top + _HIGH / 2 - 8 + 14 * row:g}" text-anchor="end">{word}</text>'
        for place, count in sorted(counts.items()):
            left, right = (window.x(self.begin + _BAR * n) for n in (place, place + 1))
            high = _HIGH * count / most
            rate = f"{count / _BAR:.0f} sends a second were acknowledged from {place * _BAR:g} s on"
            where = f'x="{left + 1:.2f}" width="{max(1.0, right - left - 2):.2f}" y="{top + _HIGH - high:.2f}"'
            yield f'<g><title>{rate}</title><rect class="full" {where} height="{high:.2f}"/></g>'

    def _marks(self, window: Window, bottom: float) -> Iterator[str]:
        """A line for each mark, and its words above the bars: to the left of the line where they would else not fit."""
        for row, (at, words) in enumerate(self.marks):
            x, y, text = window.x(at), _HEAD + _ROW * (row + 1), f"{at - self.begin:.1f} s: {words}"
            is_late = x + _LETTER * len(text) > RIGHT
            yield f'<line class="at" x1="{x:g}" x2="{x:g}" y1="{y - 10:g}" y2="{bottom:g}"/>'
            yield (
                f'<text class="said" x="{x + (-5 if is_late else 5):g}" y="{y:g}" '
                f'text-anchor="{"end" if is_late else "start"}">{escape(text)}</text>'
            )

    def _legend(self, y: float) -> Iterator[str]:
        leaders = sorted({change.leader for change in self.changes if change.leader is not None})
        yield f'<text x="{LEFT:g}" y="{y:g}">leader:</text>'
        x = LEFT + 46
        for leader in leaders:
            yield f'<rect class="b{leader % 8}" x="{x:g}" y="{y - 10:g}" width="12" height="12"/>'
            yield f'<text x="{x + 17:g}" y="{y:g}">broker {leader}</text>'
            x += 84
        yield f'<rect class="full" x="{x:g}" y="{y - 5:g}" width="24" height="3"/>'
        yield f'<text x="{x + 30:g}" y="{y:g}">all replicas in sync</text>'
        yield f'<rect class="short" x="{x + 158:g}" y="{y - 7:g}" width="24" height="6"/>'
        yield f'<text x="{x + 188:g}" y="{y:g}">a replica out of sync</text>'
