"""`docs/failures.md` quotes what a person sees: each sentence is in the code, with `…` in the place of each value."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.pages import PAGES
from tests.test_house import Source, sources

ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGES["failures.md"].read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| what has failed")
]
SENTENCES = [said for row in ROWS for said in re.findall(r"`([^`]*)`", row[1]) if " " in said]

_OF_LOGGING = re.compile(r"%(?:\.\d)?[sdrf]")


def templates(source: Source) -> Iterator[str]:
    """The texts of a module, with `…` in the place of each value."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            yield pattern("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield pattern(_OF_LOGGING.sub("…", node.value))


def pattern(text: str) -> str:
    return re.sub("…+", "…", " ".join(text.split()))


def is_said(sentence: str, known: str) -> bool:
    """Whether a template has the sentence. What it begins and ends with may be left out."""
    return pattern(sentence).strip("… ") in known


@pytest.fixture(scope="module")
def known() -> str:
    return "\n".join(text for source in sources("replication", "jobs") for text in templates(source) if " " in text)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_quoted_sentence_is_in_the_code(known: str, sentence: str) -> None:
    assert is_said(sentence, known)


def test_another_sentence_is_seen(known: str) -> None:
    assert not is_said("broker … is dead: its last heartbeat was long ago", known)
    assert not is_said("no controller is … active", known)


def test_each_row_has_a_failure_a_sentence_and_an_action() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(row) == 3, row
        assert all(row), row
