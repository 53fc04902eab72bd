"""The documents that tell of options have those of the code."""

from pathlib import Path

import pytest

from lakelog.replication.clients.sink import sink_options
from lakelog.replication.clients.source import source_options

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"


def table(options: dict[str, tuple[str, str]]) -> str:
    rows = "".join(f"| `{name}` | {default} | {meaning} |\n" for name, (default, meaning) in options.items())
    return f"| option | default | meaning |\n|---|---|---|\n{rows}"


@pytest.mark.parametrize(
    ("name", "options"), [("source options", source_options.OPTIONS), ("sink options", sink_options.OPTIONS)]
)
def test_the_page_has_all_options_with_their_defaults(name: str, options: dict[str, tuple[str, str]]) -> None:
    found = PAGE.read_text().partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    assert found == table(options)
