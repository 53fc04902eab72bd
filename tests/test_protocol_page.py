"""The table of `replication/README.md` is kept true: what it names exists."""

import importlib
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]{2}-\d\d[^|]*)\| ([^|]*)\| `([\w.]+)` \| `(\w+)` \|", re.M)
PAGE = (HOUSE / "replication" / "README.md").read_text()
ROWS = ROW.findall(PAGE)
TESTS = set(re.findall(r"def (test_\w+)", "".join(p.read_text() for p in HOUSE.glob("tests/**/test_*.py"))))


def resolve(path):
    """The object that a dotted path below `replication` names."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module("replication." + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AttributeError(path)


def test_every_row_of_the_page_is_read():
    assert len(ROWS) == sum(bool(re.match(r"\| [A-Z]{2}-\d\d", line)) for line in PAGE.splitlines()) > 0


@pytest.mark.parametrize(("ids", "_rule", "function", "test"), ROWS)
def test_function_and_test_of_a_rule_exist(ids, _rule, function, test):
    assert callable(resolve(function)), f"{ids}: no function {function}"
    assert test in TESTS, f"{ids}: no test {test}"


@pytest.mark.parametrize("path", ["protocol.isr.nothing", "protocol.append.nothing"])
def test_what_does_not_exist_is_noticed(path):
    with pytest.raises(AttributeError):
        resolve(path)
