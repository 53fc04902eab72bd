"""Keeps the table of `replication/README.md` true: everything that it names exists."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]{2}-\d\d[^|]*)\| ([^|]*)\| `([\w.]+)` \| `(\w+)` \|", re.M)
PAGE = (HOUSE / "replication" / "README.md").read_text()
TABLE, _, REST = PAGE.partition("## What has no counterpart here")
ROWS = ROW.findall(TABLE)
RULES = PAGE.partition("## Rule by rule\n")[2].partition("\n## ")[0]
INDEX = re.findall(r"^\| \[([^]]+)\]\(#([a-z-]+)\) \| ([A-Z0-9, -]+) \| ", RULES, re.M)
SUBJECTS = re.findall(r"^### (.+)\n\n(.+)\n\n((?:\|.*\n?)+)", RULES, re.M)
TESTS = set(re.findall(r"def (test_\w+)", "".join(p.read_text() for p in HOUSE.glob("tests/**/test_*.py"))))


FLOWS = re.findall(
    r"^\| ([^|]+) \| `([\w.]+)` \| (`[^|]+) \|$", PAGE.partition("## Where to begin\n")[2].partition("\n## ")[0], re.M
)
FAILURES = PAGE.partition("| failure | what happens | where |\n")[2].partition("\n## ")[0]


def _package(parts):
    return "lakelog" if parts[0] == "jobs" else "lakelog.replication"


def resolve(path):
    """The object that a dotted path below `replication`, or below `jobs`, names."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join((_package(parts), *parts[:length])))
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
    "BD": 3, "CS": 8, "PS": 4, "RS": 4, "LE": 6, "CH": 2, "RA": 3, "PE": 1, "AR": 2, "TD": 5, "LC": 1,
}  # fmt: skip
WITHOUT_COUNTERPART = {"AP-05", "NA-01", "NA-02", "NA-03", "NA-04"}
KNOWN = {f"{area}-{number:02}" for area, last in AREAS.items() for number in range(1, last + 1)}


def ids_in(text):
    return set(re.findall(r"[A-Z]{2}-\d\d", text))


def subjects_of(behaviour):
    """The subjects that the index gives to an id, by the whole id or by its area."""
    return [title for title, _, ids in INDEX if {behaviour, behaviour[:2]} & set(ids.split(", "))]


def test_every_behaviour_has_a_function_and_a_test():
    """And the names of tests say which: `test_ft_10_…`."""
    named = set().union(*(ids_in(ids) for ids, *_ in ROWS))
    assert KNOWN - WITHOUT_COUNTERPART - named == set()
    assert named - KNOWN - WITHOUT_COUNTERPART == set()
    tested = set().union(*(ids_in(name.upper().replace("_", "-")) for name in TESTS))
    assert KNOWN - WITHOUT_COUNTERPART - tested == set()


def test_what_has_no_counterpart_is_told_too():
    assert ids_in(REST) == WITHOUT_COUNTERPART


def test_every_row_of_the_page_is_read():
    assert len(ROWS) == sum(bool(re.match(r"\| [A-Z]{2}-\d\d", line)) for line in TABLE.splitlines()) > 0


def test_the_index_links_to_every_subject_in_its_order():
    titles = re.findall(r"^### (.+)$", RULES, re.M)
    assert [title for title, *_ in INDEX] == titles == [title for title, *_ in SUBJECTS]
    assert [link for _, link, _ in INDEX] == [title.lower().replace(" ", "-") for title in titles]
    assert all(re.fullmatch(r"[A-Z][^.]+\.", sentence) for _, sentence, _ in SUBJECTS)


@pytest.mark.parametrize("behaviour", sorted(KNOWN - WITHOUT_COUNTERPART | {"NA-04"}))
def test_every_behaviour_is_of_one_subject(behaviour):
    assert len(subjects_of(behaviour)) == 1


@pytest.mark.parametrize(("title", "_sentence", "table"), SUBJECTS, ids=[title for title, *_ in SUBJECTS])
def test_rules_stand_under_the_subject_of_their_first_id_and_in_order(title, _sentence, table):
    ids = [found[0].strip().split(", ") for found in ROW.findall(table)]
    assert [(first, subjects_of(first)) for first, *_ in ids] == [(first, [title]) for first, *_ in ids] != []
    assert ids == sorted(ids)


@pytest.mark.parametrize(("ids", "_rule", "function", "test"), ROWS)
def test_function_and_test_of_a_rule_exist(ids, _rule, function, test):
    assert callable(resolve(function)), f"{ids}: no function {function}"
    assert test in TESTS, f"{ids}: no test {test}"


@pytest.mark.parametrize("path", ["protocol.isr.nothing", "protocol.append.nothing"])
def test_what_does_not_exist_is_noticed(path):
    with pytest.raises(AttributeError):
        resolve(path)


@pytest.mark.parametrize("flow", ["send", "fetch", "high watermark", "failover", "verb"])
def test_each_station_of_a_flow_is_there_and_is_named_by_one_before_it(flow):
    """A station after a semicolon reads what the one before it has committed, so no code names it."""
    ((entrance, stations),) = [(entrance, rest) for name, entrance, rest in FLOWS if name.startswith(flow)]
    ways = [re.findall(r"`([\w.]+)`", way) for way in f"`{entrance}`, {stations}".split(";")]
    assert sum(map(len, ways)) >= 10
    for way in ways:
        passed = set()
        for station in way:
            found = resolve(station)
            name = found.__qualname__.rpartition(".")[2]
            assert not passed or name in passed, f"{station}: no station before it names {name}"
            passed |= set(re.findall(r"\w+", inspect.getsource(inspect.getmodule(found))))


def test_the_code_for_each_failure_of_a_send_is_there():
    named = re.findall(r"`([\w.]+)`", FAILURES)
    assert len(named) >= 4
    assert all(callable(resolve(name)) for name in named)
