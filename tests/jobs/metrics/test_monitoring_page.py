"""The page about the exporter has the metrics that it serves."""

import re
from pathlib import Path

from lakelog.jobs.cli.json_log import EXTRA
from lakelog.jobs.metrics.exposition import GAUGE
from lakelog.jobs.metrics.metric_families import METRICS_SERVED, OF_THE_SCRAPE
from lakelog.jobs.metrics.process_metrics import JVM_UP, JVM_UP_WORDS, PROCESS_METRICS

HOUSE = Path(__file__).resolve().parents[3]
PAGE = (HOUSE / "docs" / "monitoring.md").read_text("utf-8")


def section(name: str) -> str:
    """The part of the page between this comment and the next one."""
    return PAGE.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]


def test_the_page_has_each_metric_with_its_labels_and_words() -> None:
    rows = [(m.name, m.kind, m.labels, m.help) for m in METRICS_SERVED]
    rows += [(name, GAUGE, (), words) for name, words in OF_THE_SCRAPE.items()]
    assert section("metrics") == table(rows)


def test_the_page_has_each_metric_of_a_process() -> None:
    rows = [(m.name, m.kind, m.labels, m.help) for m in PROCESS_METRICS]
    assert section("process metrics") == table([*rows, (JVM_UP, GAUGE, (), JVM_UP_WORDS)])


def test_the_page_has_each_field_of_a_log_line() -> None:
    always = {"ts", "level", "logger", "message", "process"}
    template = re.findall(r'^"(\w+)": ', (HOUSE / "conf" / "log4j2-json.properties").read_text("utf-8"), re.M)
    fields = re.findall(r"^\| `(\w+)` \|", section("log fields"), re.M)
    assert always < set(template)
    assert set(fields) == {*always, *template, *EXTRA, "broker", "controller"}
    assert len(fields) == len(set(fields))


def table(rows: list[tuple[str, str, tuple[str, ...], str]]) -> str:
    lines = [f"| `{n}` | {k} | {', '.join(f'`{label}`' for label in labels)} | {w} |\n" for n, k, labels, w in rows]
    return "| metric | kind | labels | is |\n|---|---|---|---|\n" + "".join(lines)
