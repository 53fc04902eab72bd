"""Requests as rows: their steps, undecodable rows, and how many are kept."""

import json

import pytest

from lakelog.replication.errors import ControllerMovedException, InvalidRequestException
from lakelog.replication.protocol.admin_request import APPLYING, DECIDED, DECIDING, PENDING, AdminRequest, Outcome
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables import admin_table
from lakelog.replication.storage.tables.admin_table import AdminTable

GONE = Outcome("TimeoutException", "gone")
DONE = {"t": Outcome(None, "done")}


@pytest.fixture
def table(root):
    return AdminTable.create(StorageRoot.of(root))


def add(table, request_id="r", **fields):
    table.add(AdminRequest(request_id, "delete_topic", {"topic": "t"}, **fields))


def rewrite(table, **fields):
    """Rewrites the newest row, as somebody may by hand."""
    table.update({"who": "test"}, lambda rows: [*rows[:-1], {**rows[-1], **fields}])


def test_li_06_a_request_goes_through_its_states(table):
    add(table)
    for state in (DECIDING, PENDING, DECIDING, APPLYING):
        assert table.move("r", state, 4)
        assert (table.request("r").state, table.request("r").controller_epoch) == (state, 4)
    assert table.move("r", DECIDING, 5), "part of it may be written"
    assert (table.request("r").state, table.request("r").controller_epoch) == (APPLYING, 4)
    table.decide({"r": DONE}, 5)
    assert (table.request("r").state, table.request("r").outcomes) == (DECIDED, DONE)
    assert not table.move("r", DECIDING, 5)
    assert not table.move("none", DECIDING, 5)


def test_li_06_the_same_step_twice_is_one_commit(table):
    add(table)
    table.move("r", DECIDING, 4)
    version = table.version
    table.move("r", DECIDING, 4)
    assert table.version == version


def test_ce_05_a_controller_that_is_deposed_takes_nothing_up(table):
    add(table)
    table.claim(5)
    with pytest.raises(ControllerMovedException):
        table.move("r", DECIDING, 4)


@pytest.mark.parametrize(("validate_only", "left"), [(False, {"delete_topic": GONE}), (True, None)])
@pytest.mark.parametrize("state", [PENDING, DECIDING])
def test_li_06_what_nobody_applies_is_withdrawn(table, validate_only, left, state):
    add(table, validate_only=validate_only)
    table.move("r", state, 4)
    found = table.withdraw("r", GONE, "me")
    assert (found and found.outcomes) == left
    assert not table.move("r", APPLYING, 4)


def test_li_06_what_is_applied_or_decided_is_not_withdrawn(table):
    add(table)
    table.move("r", APPLYING, 4)
    assert table.withdraw("r", GONE, "me").state == APPLYING
    table.decide({"r": DONE}, 4)
    assert table.withdraw("r", GONE, "me").outcomes == DONE
    assert table.withdraw("none", GONE, "me") is None


def test_a_decided_request_is_forgotten_and_one_that_waits_is_not(table):
    add(table, "a")
    add(table, "b")
    table.decide({"a": DONE}, 4)
    table.forget(["a", "b", "c"], "me")
    assert [request.request_id for request in table.requests] == ["b"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"arguments": "{not json"}, "JSONDecodeError"),
        ({"arguments": "[1]"}, "TypeError: the arguments are no JSON object"),
        ({"arguments": "[" * 100_000}, "RecursionError"),
        ({"arguments": '{"a": ' + "9" * 5000 + "}"}, "ValueError"),
        ({"outcomes": "{not json"}, "JSONDecodeError"),
        ({"outcomes": '{"t": {"colour": 1}}'}, "KeyError"),
        ({"outcomes": "[]"}, "AttributeError"),
    ],
)
def test_ev_05_a_row_that_cannot_be_decoded_is_a_request_with_a_problem(table, fields, problem):
    add(table, "good")
    add(table, "bad")
    rewrite(table, **fields)
    good, bad = table.requests
    assert (good.problem, bad.request_id, bad.kind, bad.problem.split(" (")[0][: len(problem)]) == (
        None, "bad", "delete_topic", problem,
    )  # fmt: skip
    table.decide({"good": DONE, "bad": {"delete_topic": GONE}}, 4)
    assert table.request("good").outcomes == DONE
    assert all(getattr(table.request("bad"), name) is not None for name in ("outcomes", "problem"))


def test_ev_05_what_a_newer_controller_tells_besides_of_an_outcome_is_ignored(table):
    add(table)
    add(table, "other")
    rewrite(table, outcomes='{"t": {"error": null, "message": "done", "warnings": ["w"]}}')
    (read,) = [request for request in table.requests if request.outcomes is not None]
    assert (read.problem, read.outcomes) == (None, {"t": Outcome(None, "done")})


def test_ev_05_arguments_that_are_too_long_are_refused_and_not_decoded(table, monkeypatch):
    monkeypatch.setattr(admin_table, "_MAX_ARGUMENTS", 50)
    with pytest.raises(InvalidRequestException, match="delete_topic: the arguments have 61 characters as JSON, 50 are"):
        table.add(AdminRequest("r", "delete_topic", {"topic": "t" * 48}))
    add(table)
    rewrite(table, arguments=json.dumps({"topic": "t" * 48}))
    assert (table.request("r").arguments, "61 characters" in table.request("r").problem) == ({}, True)


def test_the_last_decided_requests_are_kept_and_all_that_wait(table):
    for number in range(6):
        add(table, f"r{number}")
    table.decide({f"r{number}": DONE for number in (0, 2, 3, 4)}, 4, kept=3)
    assert [request.request_id for request in table.requests] == ["r1", "r2", "r3", "r4", "r5"]


def test_large_requests_are_kept_less_long_but_the_last_ones_are_read_by_who_has_asked(table, monkeypatch):
    monkeypatch.setattr(admin_table, "_MAX_KEPT_TEXT", 100)
    for number in range(10):
        add(table, f"r{number}")
    table.decide({f"r{number}": {"t": Outcome(None, "x" * 90)} for number in range(10)}, 4)
    assert [request.request_id for request in table.requests] == [f"r{number}" for number in range(2, 10)]
