"""The table of `replication/README.md` is kept true: what it names exists."""

import importlib
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]{2}-\d\d[^|]*)\| ([^|]*)\| `([\w.]+)` \| `(\w+)` \|", re.M)
PAGE = (HOUSE / "replication" / "README.md").read_text()
TABLE, _, REST = PAGE.partition("## What has no counterpart here")
ROWS = ROW.findall(TABLE)
TESTS = set(re.findall(r"def (test_\w+)", "".join(p.read_text() for p in HOUSE.glob("tests/**/test_*.py"))))


def resolve(path):
    """The object that a dotted path below `replication` names."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module("lakelog.replication." + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AttributeError(path)


# Every behaviour of Kafka's subsystem that there is, by area and number; those that have no counterpart have rows too.
# TR-08 is not Kafka's but Raft's: logs are matched by their chains.
AREAS = {
    "TM": 2, "BR": 4, "FM": 10, "FT": 15, "FS": 2, "TR": 8, "EP": 6, "BL": 12, "SR": 3, "OL": 2, "AP": 7, "FE": 3,
    "DO": 2, "DR": 2, "HW": 3, "IS": 6, "MC": 4, "TH": 2, "CE": 6, "EV": 5, "FO": 5, "LI": 7, "BC": 3, "BU": 2,
    "BD": 3, "CS": 8, "PS": 4, "RS": 4, "LE": 6, "CH": 2, "RA": 3, "PE": 1, "AR": 2, "TD": 5,
}  # fmt: skip
WITHOUT_COUNTERPART = {"AP-05", "NA-01", "NA-02", "NA-03", "NA-04"}


def ids_in(text):
    return set(re.findall(r"[A-Z]{2}-\d\d", text))


def test_every_behaviour_has_a_function_and_a_test():
    """And the names of tests say which: `test_ft_10_…`."""
    known = {f"{area}-{number:02}" for area, last in AREAS.items() for number in range(1, last + 1)}
    named = set().union(*(ids_in(ids) for ids, *_ in ROWS))
    assert known - WITHOUT_COUNTERPART - named == set()
    assert named - known - WITHOUT_COUNTERPART == set()
    tested = set().union(*(ids_in(name.upper().replace("_", "-")) for name in TESTS))
    assert known - WITHOUT_COUNTERPART - tested == set()


def test_what_has_no_counterpart_is_told_too():
    assert ids_in(REST) == WITHOUT_COUNTERPART


def test_every_row_of_the_page_is_read():
    assert len(ROWS) == sum(bool(re.match(r"\| [A-Z]{2}-\d\d", line)) for line in TABLE.splitlines()) > 0


@pytest.mark.parametrize(("ids", "_rule", "function", "test"), ROWS)
def test_function_and_test_of_a_rule_exist(ids, _rule, function, test):
    assert callable(resolve(function)), f"{ids}: no function {function}"
    assert test in TESTS, f"{ids}: no test {test}"


@pytest.mark.parametrize("path", ["protocol.isr.nothing", "protocol.append.nothing"])
def test_what_does_not_exist_is_noticed(path):
    with pytest.raises(AttributeError):
        resolve(path)
