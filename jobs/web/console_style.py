"""The style of the console, for what is shown without its server: a page of its own, and drawings."""

import re
from pathlib import Path

CONSOLE_STYLE = (Path(__file__).parent / "static" / "console.css").read_text("utf-8").strip()

# The colours, light and dark, and what the rules of drawings begin with.
_COLOURS = CONSOLE_STYLE[CONSOLE_STYLE.index(":root") : CONSOLE_STYLE.index("*, *::before")].strip()
_OF_DRAWINGS = re.compile(r"^(?:\.chart (?:text|\.).*|\.b0 .*|\.b4 .*)$", re.M)


def drawing(width: float, height: float, title: str, body: str) -> str:
    """An SVG file of its own, in the colours of the console. It has a background: whoever shows it may be light where
    the reader's browser is dark. `title`: for who cannot see it; it and the texts of `body` are escaped already."""
    rules = "\n".join(_OF_DRAWINGS.findall(CONSOLE_STYLE))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:g} {height:g}" role="img" \
font-family="system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif">
<title>{title}</title>
<style>
{_COLOURS}
{rules}
.chart .page {{ fill: var(--card); stroke: var(--line); }}
.chart .title {{ fill: var(--text); font-size: 17px; font-weight: 650; }}
.chart .said {{ fill: var(--text); font-size: 13px; }}
</style>
<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>
{body}
</svg>
"""
