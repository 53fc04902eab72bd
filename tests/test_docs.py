"""The documents that tell of options, columns and tests have those of the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from lakelog.replication.clients.sink import sink_options
from lakelog.replication.clients.source import source_options
from lakelog.replication.config import KEYS
from lakelog.schemas import LOG, STATE_TABLES
from lakelog.schemas.views import VIEWS

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
    own = {"client.rack", "acks", "endingTimestamp", "endingOffsetsByTimestamp"}  # not Kafka's, or the same at the end
    assert sorted(o for o in options - own if f"`{o}`" not in COMPARED) == []


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generated", HOUSE / "docs" / "generated.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_the_reference_has_every_setting_option_and_column() -> None:
    pages = generated()
    for key in KEYS.values():
        (line,) = re.findall(rf"^\| `{re.escape(key.name)}` \|.*$", pages["settings.md"], re.M)
        assert line.split(" | ")[-1].strip(" |"), f"{key.name} has no explanation"
    for option in (*source_options.OPTIONS, *sink_options.OPTIONS, "linger_ms", "client_rack"):
        assert f"| `{option}` |" in pages["options.md"]
    for columns in (*(t.columns for t in (*STATE_TABLES, LOG)), *(v.columns for v in VIEWS.values())):
        for column in columns:
            assert f"| `{column.name}` | `{column.type}` |" in pages["columns.md"]


def test_copied_pages_link_to_pages_of_the_site() -> None:
    known = {*generated(), *(path.name for path in (HOUSE / "docs").iterdir())}
    links = [link for text in generated().values() for link in re.findall(r"\]\(([^)#]+)", text)]
    assert [link for link in links if link not in known and not link.startswith("http")] == []
