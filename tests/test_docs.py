"""The documents that tell of options, columns and tests have those of the code, and their links lead somewhere."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lakelog.replication.clients.sink import sink_options
from lakelog.replication.clients.source import source_options
from lakelog.replication.config import KEYS
from lakelog.schemas import LOG, STATE_TABLES
from lakelog.schemas.views import VIEWS
from tests.pages import docs_module

HOUSE = Path(__file__).resolve().parent.parent
PAGE = HOUSE / "docs" / "spark.md"
COMPARED = (HOUSE / "docs" / "kafka-options.md").read_text("utf-8")


def table(options: dict[str, tuple[str, str]]) -> str:
    rows = "".join(f"| `{name}` | {default} | {meaning} |\n" for name, (default, meaning) in options.items())
    return f"| option | default | meaning |\n|---|---|---|\n{rows}"


@pytest.mark.parametrize(
    ("name", "options"), [("source options", source_options.OPTIONS), ("sink options", sink_options.OPTIONS)]
)
def test_the_page_has_all_options_with_their_defaults(name: str, options: dict[str, tuple[str, str]]) -> None:
    found = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    assert found == table(options)


def test_every_case_of_the_comparison_names_a_test_that_exists() -> None:
    tests = "".join(path.read_text("utf-8") for path in (HOUSE / "tests" / "clients").rglob("test_*.py"))
    rows = re.findall(r"^\| (?!documented|---)(.+) \| (.+) \| `(.+)` \|$", COMPARED, re.M)
    assert len(rows) == COMPARED.count("\n| ") - 5, "each row has three cells, the last one a test"
    missing = [name for *_, name in rows if f"def {name}(" not in tests and not (HOUSE / name).is_file()]
    assert not missing


def test_every_option_of_the_source_and_the_sink_is_compared() -> None:
    options = {*source_options.OPTIONS, *sink_options.OPTIONS}
    own = {"client.rack", "acks", "typedValues", "mode"}  # not Kafka's
    own |= {"endingTimestamp", "endingOffsetsByTimestamp"}  # the same at the end
    assert sorted(o for o in options - own if f"`{o}`" not in COMPARED) == []


def generated() -> ModuleType:
    return docs_module("generated")


def test_the_reference_has_every_setting_option_and_column() -> None:
    pages = generated().pages()
    for key in KEYS.values():
        (line,) = re.findall(rf"^\| `{re.escape(key.name)}` \|.*$", pages["settings.md"], re.M)
        assert line.split(" | ")[-1].strip(" |"), f"{key.name} has no explanation"
    for option in (*source_options.OPTIONS, *sink_options.OPTIONS, "linger_ms", "client_rack"):
        assert f"| `{option}` |" in pages["options.md"]
    for columns in (*(t.columns for t in (*STATE_TABLES, LOG)), *(v.columns for v in VIEWS.values())):
        for column in columns:
            assert f"| `{column.name}` | `{column.type}` |" in pages["columns.md"]


def test_each_page_of_the_site_links_to_pages_of_the_site() -> None:
    site = generated()
    pages = {**{path.name: path.read_text("utf-8") for path in (HOUSE / "docs").glob("*.md")}, **site.pages()}
    known = {"", *pages, *(path.name for kind in ("svg", "png") for path in (HOUSE / "docs").glob(f"*.{kind}"))}
    dead = [
        (page, link)
        for page, text in pages.items()
        for link in links(site.on_page_markdown(text))
        if link.partition("#")[0] not in known
    ]
    assert dead == []


def test_a_block_of_commands_is_copied_without_prompts_and_output() -> None:
    lines = (
        '<span class="gp">$ </span>lakelog topics <span class="se">\\</span>', "    --list &gt; &quot;a b&quot;",
        '<span class="go">orders &amp; copies</span>', '<span class="gp">$ </span>printf x |', "    wc -c", "1", "",
    )  # fmt: skip
    inside = f"<pre><code>{chr(10).join(lines)}</code></pre>"
    site = generated()
    made = site.on_page_content(f'<div class="language-console highlight">{inside}</div>')
    (copied,) = re.findall(r'data-copy="([^"]*)"', made)
    assert html.unescape(copied) == 'lakelog topics \\\n    --list > "a b"\nprintf x |\n    wc -c'
    assert inside in made
    python = f'<div class="language-python highlight">{inside}</div>'
    assert site.on_page_content(python) == python


def test_the_landing_page_begins_with_the_first_screen_of_the_readme() -> None:
    site = generated()
    shown = site.on_page_markdown((HOUSE / "docs" / "index.md").read_text("utf-8"))
    parts = (
        "# Lakelog\n",
        "](failover.svg)",
        "`pip install ",
        "$ ./spark-submit.sh quickstart",
        "](overview.md#limits)",
    )
    for part in parts:
        assert part in shown
    assert "## Who needs it" not in shown
    assert "<!--" not in shown


def test_each_link_leads_to_a_file_and_a_heading_of_the_checkout() -> None:
    pages = [HOUSE / "README.md", HOUSE / "replication" / "README.md", HOUSE / "schemas" / "README.md"]
    pages += sorted((HOUSE / "docs").glob("*.md"))
    dead = [(str(p), link) for p in pages for link in links(p.read_text("utf-8")) if is_dead(p, link)]
    assert dead == []


def links(text: str) -> Iterator[str]:
    """The relative links of a page."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    return (link for link in found if not re.match(r"https?:", link))


def is_dead(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target.read_text("utf-8")))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
