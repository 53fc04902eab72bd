"""The answer of `status` as one page of HTML, for a ticket, a mail or a chat: it needs no server, no script and no
other file. It has the style of the console, and every name in it is escaped."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import (
    ROOT_COLUMNS,
    ClusterState,
    Problem,
    broker_figures,
    line_of,
    root_row,
    summary,
)
from lakelog.jobs.admin.heartbeats import ALIVE
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.numbers import is_number
from lakelog.jobs.web.console_style import CONSOLE_STYLE
from lakelog.replication.errors import one_line

# Even text that escaped the page could load and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Status of {uri} · Lakelog</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<header class="top"><p class="brand">Lakelog</p></header>
<main>
<div class="head">
<h1>Status</h1>
<p class="asof">As of <time datetime="{iso}">{time} UTC</time><br><code>{uri}</code></p>
</div>
{body}
</main>
</body>
</html>
"""


class StatusPage(NamedTuple):
    """The content of the page: the cluster's URI, the time of the reading in seconds since the epoch, the state, and
    the problems and notes that follow from it."""

    uri: str
    at: float
    state: ClusterState
    problems: Sequence[Problem]
    notes: Sequence[Problem]

    def html(self) -> str:
        """The page."""
        then = dt.datetime.fromtimestamp(self.at, dt.UTC)
        parts = (*self._problems(), *self._notes(), *self._summary(), *self._tables())
        return _PAGE.format(
            policy=_text(_POLICY), style=CONSOLE_STYLE, uri=_text(self.uri), body="\n".join(parts),
            time=f"{then:%Y-%m-%d %H:%M:%S}", iso=then.isoformat(timespec="milliseconds"),
        )  # fmt: skip

    def _problems(self) -> Iterable[str]:
        if not self.problems:
            yield '<p class="card good"><span aria-hidden="true">●</span> <strong>Nothing is wrong.</strong></p>'
            return
        items = (f"<li><strong>{_text(line_of(p))}</strong><br>To do: {_marked(p.do)}.</li>" for p in self.problems)
        yield f'<section class="card bad"><h2>Problems: {len(self.problems)}</h2><ol>{"".join(items)}</ol></section>'

    def _notes(self) -> Iterable[str]:
        if self.notes:
            items = (
                f"<li><strong>{_text(line_of(note))}</strong><br>{_marked(note.do, True)}.</li>" for note in self.notes
            )
            yield f'<section class="card"><h2>Notes: {len(self.notes)}</h2><ul>{"".join(items)}</ul></section>'

    def _summary(self) -> Iterable[str]:
        facts = (
            f"<div><dt>{name.capitalize()}</dt><dd>{_text(words)}</dd></div>"
            for name, words in summary(self.state).items()
        )
        yield f'<dl class="facts">{"".join(facts)}</dl>'

    def _tables(self) -> Iterable[str]:
        if self.state.roots:
            yield _table("Cluster roots", [root_row(root) for root in self.state.roots], ROOT_COLUMNS)
        if self.state.brokers:
            yield _table("Brokers", [figures._asdict() for figures in broker_figures(self.state)])


def _table(title: str, rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """Rows under a headline; `columns`: those that are shown, by default all."""
    names = columns or list(rows[0])
    numbers = {name for name in names if any(is_number(row[name]) for row in rows)}
    heads = "".join(f'<th scope="col"{_class(name in numbers, "n")}>{name.replace("_", " ")}</th>' for name in names)
    lines = "".join(f"<tr>{''.join(_cell(row, name, name in numbers) for name in names)}</tr>\n" for row in rows)
    return (
        f'<h2>{title}</h2>\n<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n'
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>\n</table>\n</div>"
    )


def _cell(row: Row, name: str, is_numeric: bool) -> str:
    value = row[name]
    words = ("yes" if value else "no") if isinstance(value, bool) else "" if value is None else str(value)
    is_bad = (name == "state" and value != ALIVE) or (name == "error" and value is not None)
    return f"<td{_class(is_numeric, 'n', is_bad, 'bad')}>{_text(words)}</td>"


def _class(*chosen: bool | str) -> str:
    """The attribute of an element: pairs of whether it has a class, and the class."""
    names = [str(name) for has, name in zip(chosen[::2], chosen[1::2], strict=True) if has]
    return f' class="{" ".join(names)}"' if names else ""


def _text(words: str) -> str:
    """Words as text, also in an attribute."""
    return escape(one_line(words))


def _marked(words: str, begins: bool = False) -> str:
    """Words with what stands in backquotes as code. `begins`: the first letter is that of a sentence."""
    parts = (words[:1].upper() + words[1:] if begins else words).split("`")
    return "".join(f"<code>{_text(part)}</code>" if n % 2 else _text(part) for n, part in enumerate(parts))
