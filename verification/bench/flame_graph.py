"""A flame graph as an SVG file that needs nothing else: each box is a function, as wide as the time within it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Stack = tuple[str, ...]  # from the outermost function to the innermost

_WIDTH, _ROW, _LETTER, _LEAST = 1600.0, 17, 6.6, 0.8  # pixels
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="monospace"
 font-size="11">
<rect width="100%" height="100%" fill="#fffdf8"/>
<text x="4" y="14" font-size="13">{title}</text>
"""
_BOX = (
    '<g><title>{words}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}" '
    'stroke="#fffdf8" stroke-width="0.5"/><text x="{text_x:.1f}" y="{text_y}">{label}</text></g>\n'
)


@dataclass
class _Box:
    value: float = 0.0
    inner: dict[str, _Box] = field(default_factory=dict)

    def add(self, stack: Stack, value: float) -> None:
        self.value += value
        if stack:
            self.inner.setdefault(stack[0], _Box()).add(stack[1:], value)

    @property
    def depth(self) -> int:
        return 1 + max((box.depth for box in self.inner.values()), default=0)


def flame_graph(stacks: Mapping[Stack, float], title: str, scale: float = 1.0) -> str:
    """The graph of stacks and their values. `scale` times a value is the number that the title names."""
    root = _Box()
    for stack, value in stacks.items():
        root.add(stack, value * scale)
    height = (root.depth + 1) * _ROW + 6
    boxes = _boxes("all", root, 0.0, 1, _WIDTH / root.value if root.value else 0.0, root.value)
    return _HEAD.format(width=int(_WIDTH), height=height, title=escape(title)) + "".join(boxes) + "</svg>\n"


def _boxes(name: str, box: _Box, x: float, row: int, pixels: float, whole: float) -> Iterator[str]:
    width = box.value * pixels
    if width < _LEAST:
        return
    letters, y = int((width - 4) / _LETTER), row * _ROW + 3
    yield _BOX.format(
        words=escape(f"{name}: {box.value:,.1f}, {box.value / whole:.1%}"), x=x, y=y, width=width, height=_ROW - 1,
        colour=_colour(name), text_x=x + 2, text_y=y + 12, label=escape(name[:letters] if letters > 2 else ""),
    )  # fmt: skip
    for inner, part in sorted(box.inner.items()):
        yield from _boxes(inner, part, x, row + 1, pixels, whole)
        x += part.value * pixels


def _colour(name: str) -> str:
    """The same for one name in all graphs, so that two graphs can be compared."""
    shade = zlib.crc32(name.encode())
    return f"hsl({10 + shade % 45},{60 + shade // 64 % 30}%,{62 + shade // 4096 % 14}%)"
