"""Tables in a pipe, on 80 columns and on few, and with chosen columns; and an error of the system."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs.cli.console import Lines, Report, run

ROWS: list[dict[str, Any]] = [
    {"broker": 1, "root": "/lake/" + "a" * 100, "is_alive": True, "isr": [1, 2], "error": None},
    {"broker": 12, "root": "/b", "is_alive": False, "isr": [], "error": "gone"},
]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The lines that a report prints in a form, with these columns, if COLUMNS is `width`."""

    def call(width: str | None, output: str = "table", columns: Sequence[str] = ()) -> list[str]:
        monkeypatch.delenv("COLUMNS", raising=False)
        if width is not None:
            monkeypatch.setenv("COLUMNS", width)
        Report(ROWS, columns).show(output)
        return capsys.readouterr().out.splitlines()

    return call


@pytest.mark.parametrize("width", [None, "", "wide", "0", "-80"])
def test_a_pipe_gets_a_row_a_line(shown: Any, width: str | None) -> None:
    head, _, first, second = shown(width)
    assert head.split() == ["broker", "root", "is", "alive", "isr", "error"]
    assert first.split() == ["1", ROWS[0]["root"], "yes", "1,", "2"]
    assert second.split() == ["12", "/b", "no", "gone"]


def test_a_table_in_a_pipe_keeps_to_columns_and_folds_long_values(shown: Any) -> None:
    lines = shown("60")
    assert max(map(len, lines)) <= 60
    assert "".join("".join(lines).split()).count("a" * 5) > 0
    assert sum(line.count("a") for line in lines[2:]) == 100 + len("lake") - 3, "folded, not shortened"


def test_a_screen_too_narrow_for_a_table_gets_lines_of_name_and_value(shown: Any) -> None:
    first, second = "\n".join(shown("20")).split("\n\n")
    assert first.splitlines()[0] == "broker 1"
    assert first.splitlines()[1] == "root " + ROWS[0]["root"], "a value is one word to copy"
    assert second.splitlines() == ["broker 12", "root /b", "is alive no", "isr", "error gone"]


def test_a_table_has_the_given_columns_in_their_order(shown: Any) -> None:
    assert [line.split() for line in shown(None, "table", ("error", "broker"))[::2]] == [["error", "broker"], ["1"]]


@pytest.mark.parametrize("value", ["/lake/[bold]b[/bold]", "[c]*", "[/]", "a:smile:b", "\\[c]", "http://[::1]:9000/b"])
def test_a_value_is_shown_as_it_is(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where rich would read it as a style or as the name of an emoji."""
    Report([{"root": value, value: 1}]).show()
    head, _, row = capsys.readouterr().out.splitlines()
    assert (head.split(), row.split()) == (["root", value], [value, "1"])


def test_json_has_all_columns(shown: Any) -> None:
    assert json.loads("\n".join(shown("20", "json", ("broker",)))) == ROWS


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("text", "a\nb\nc\n"),
        ("table", "broker\n──────\n     1\n"),
        ("json", '{\n  "brokers": 1\n}\n'),
    ],
)
def test_a_report_prints_the_form_that_is_asked_for(
    output: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [Lines(["a", "b"], "A title"), Lines([]), Lines(["c"])]
    Report([{"broker": 1}], text=text, value={"brokers": 1}).show(output)
    assert capsys.readouterr() == (printed, "A title\n" if output == "text" else "")


def test_a_report_without_lines_prints_its_table_as_text(shown: Any) -> None:
    assert shown(None, "text") == shown(None, "table")


@pytest.mark.parametrize(("output", "printed"), [("text", ""), ("table", ""), ("json", "[]\n")])
def test_a_report_without_rows_prints_nothing_or_an_empty_list(
    output: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Report().show(output)
    assert capsys.readouterr().out == printed


def test_an_error_of_the_system_names_the_file_and_has_no_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    assert run(argparse.ArgumentParser(), lambda _: len(missing.read_text()), []) == 1
    assert capsys.readouterr().err == f"lakelog: {missing}: No such file or directory\n"
