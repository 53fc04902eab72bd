"""Pages of the documentation site whose text is elsewhere: the overview, the protocol, the tables, and the reference,
which is made from the code; and what the button of a block of commands copies. MkDocs calls the functions that begin
with `on_` (`hooks` in `mkdocs.yml`)."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import lakelog
from lakelog.replication.clients.client_config import ClientConfig, ConsumerConfig, ProducerConfig
from lakelog.replication.clients.sink import sink_options
from lakelog.replication.clients.source import source_options
from lakelog.replication.config import KEYS
from lakelog.replication.properties import text_of
from lakelog.schemas import LOG, STATE_TABLES, Column
from lakelog.schemas.views import VIEWS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

HOME = Path(__file__).resolve().parent.parent
_COPIES = {"README.md": "overview.md", "replication/README.md": "protocol.md", "schemas/README.md": "schemas.md"}
_PAGES = {**_COPIES, "conf/server.properties": "settings.md", "docs/": ""}  # of the site, by paths of the checkout
_FIRST_SCREEN = "<!-- the first screen of the README -->"
_OF_MIKE = "MIKE_DOCS_VERSION"  # set by `mike`, which keeps a site for each version
_CONSOLE = re.compile(r'<div class="language-console highlight">(.*?)</div>', re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Shows the version, and lets readers choose another one if `mike` builds the site."""
    config.copyright = f"Lakelog {lakelog.__version__}, Apache License 2.0"
    if os.environ.get(_OF_MIKE):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of `pages` to those of the folder `docs`."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The text of a page, with its links to files of the checkout made links to pages of the site. The landing page
    has the first screen of the README."""
    markdown = markdown.replace(_FIRST_SCREEN, first_screen())
    paths = "|".join(map(re.escape, _PAGES))
    return re.sub(rf"\]\((?:\.\./)?({paths})", lambda found: f"]({_PAGES[found[1]]}", markdown)


def on_page_content(content: str, **_: object) -> str:
    """A page in HTML, where the button of a block of commands copies the commands alone: no prompt, no output."""
    return _CONSOLE.sub(_with_commands, content)


def _with_commands(block: re.Match[str]) -> str:
    shown = html.unescape(re.sub(r"<[^>]+>", "", block[1]))
    copied = html.escape("\n".join(commands(shown))).replace("\n", "&#10;")
    return f'<div class="language-console highlight" data-copy="{copied}">{block[1]}</div>'


def commands(shown: str) -> list[str]:
    """The commands of what a terminal shows. A command goes on after a line that ends with a backslash or a pipe."""
    return re.findall(r"^\$ (.*?[^\\|])$", shown, re.M | re.S)


def first_screen() -> str:
    """The README up to its second headline."""
    return (HOME / "README.md").read_text("utf-8").partition("\n## ")[0]


def pages() -> dict[str, str]:
    """The text of each page by its path in the site, as it is in the checkout or made from the code."""
    copies = {page: (HOME / source).read_text("utf-8") for source, page in _COPIES.items()}
    return {**copies, "settings.md": _settings(), "options.md": _options(), "columns.md": _columns()}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [[*heads]]
    lines += [["---"] * len(lines[0]), *([*row] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _settings() -> str:
    explained = _explanations()
    rows = [
        (f"`{k.name}`", _default(k.default), str(k.type), ", ".join(k.scopes), explained[k.name]) for k in KEYS.values()
    ]
    return (
        "# Settings\n\nThe settings of brokers, controllers and commands, under Kafka's keys; `conf/server.properties` "
        "has the same text. A topic's setting of the same name goes before that of the broker; `configs` changes those "
        "of the scopes topic and dynamic.\n\n" + table(("key", "default", "allowed", "scopes", "meaning"), rows)
    )


def _explanations() -> dict[str, str]:
    """The comment above each key in `conf/server.properties`."""
    found, comment = dict[str, str](), list[str]()
    for line in (HOME / "conf" / "server.properties").read_text("utf-8").splitlines():
        key, is_key, _ = line.removeprefix("#").partition("=")
        if is_key and key in KEYS:
            found[key] = " ".join(comment)
        comment = [*comment, line.removeprefix("# ")] if line.startswith("# ") else []
    return found


def _default(value: object) -> str:
    text = text_of(value)
    return f"`{text}`" if text else ""


def _options() -> str:
    return "\n".join(
        (
            '# Options\n\n## Source: `format("lakelog")` that reads\n',
            _spark_options(source_options.OPTIONS),
            '## Sink: `format("lakelog")` that writes\n',
            _spark_options(sink_options.OPTIONS),
            "## Producer\n",
            _client_settings(ProducerConfig),
            "## Consumer\n",
            _client_settings(ConsumerConfig),
        )
    )


def _spark_options(options: Mapping[str, tuple[str, str]]) -> str:
    return table(
        ("option", "default", "meaning"), ((f"`{o}`", default, text) for o, (default, text) in options.items())
    )


def _client_settings(kind: type[ClientConfig]) -> str:
    """The settings of a client; its docstring explains each."""
    rows = ((f"`{f.name}`", _default(f.default), str(f.metadata["type"])) for f in fields(kind))
    explained = " ".join((kind.__doc__ or "").split())
    return f"{explained}\n\n{table(('setting', 'default', 'allowed'), rows)}"


def _columns() -> str:
    return "\n".join(("# Columns\n\n## Tables\n", *_tables(), "## Views\n", *_views()))


def _tables() -> Iterator[str]:
    for each in sorted((*STATE_TABLES, LOG), key=lambda found: found.name):
        text = f"{each.description.rstrip('.')}. Key: {', '.join(each.key)}."
        yield f"### Table `{each.name}`\n\n{text}\n\n{_described(each.columns)}"


def _views() -> Iterator[str]:
    for view in VIEWS.values():
        yield f"### View `{view.name}`\n\n{view.description}\n\n{_described(view.columns)}"


def _described(columns: Iterable[Column]) -> str:
    rows = ((f"`{c.name}`", f"`{c.type}`", "yes" if c.nullable else "", c.comment) for c in columns)
    return table(("column", "type", "may be null", "meaning"), rows)
