"""The chart of `docs/benchmarks.md` has the figures of that page."""

import re
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.pages import PAGES, docs_module


@pytest.fixture(scope="module")
def drawn() -> ModuleType:
    return docs_module("benchmark_chart")


@pytest.fixture(scope="module")
def page() -> str:
    return PAGES["benchmarks.md"].read_text("utf-8")


def test_the_chart_is_that_of_the_page(drawn: ModuleType, page: str) -> None:
    assert drawn.CHART.read_text("utf-8") == drawn.chart(page), "run .venv/bin/python docs/benchmark_chart.py"


def test_each_bar_is_as_long_as_its_figure(drawn: ModuleType, page: str) -> None:
    root = ElementTree.fromstring(drawn.chart(page))
    bars = [float(each.attrib["width"]) for each in root.iter() if re.fullmatch(r"b\d", each.attrib.get("class", ""))]
    texts = [each.text or "" for each in root.iter() if (each.text or "").endswith(" ms")]
    times = [float(text.removesuffix(" ms").replace(",", "")) for text in texts]
    assert len(bars) == len(times) == 7
    for first, second in ((0, 1), (1, 2), (3, 4), (5, 6)):
        assert bars[first] / bars[second] == pytest.approx(times[first] / times[second], rel=0.01)
    assert root[0].text
    assert "acknowledges nothing" in {each.text for each in root.iter()}


def test_another_figure_in_the_page_is_another_chart(drawn: ModuleType, page: str) -> None:
    changed = page.replace("| 137 ms | 13 ms |", "| 191 ms | 13 ms |")
    assert changed != page
    assert ">191 ms<" in drawn.chart(changed)


def test_a_row_that_is_gone_is_an_error(drawn: ModuleType, page: str) -> None:
    with pytest.raises(ValueError, match=r"0 rows begin with '\| 1,000 records, 12 commits'"):
        drawn.chart(page.replace("| 1,000 records, 12 commits |", "| 1,000 records |"))
