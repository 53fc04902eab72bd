"""`lakelog events` on the tables of a cluster whose brokers do not run."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakelog.jobs import cluster_events
from lakelog.replication.clients.admin import AdminClient


@pytest.fixture
def show(lakelog, controlled):
    return lambda *words: lakelog(cluster_events, "--cluster", controlled, *words)


@pytest.fixture
def admin(controlled):
    client = AdminClient(controlled, requested_by="ops")
    client.create_topic("t", assignment={n: [1, 2] if n < 5 else [2, 3] for n in range(6)})
    return client


def lines(text):
    """The lines without their times."""
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d  ", "", line) for line in text.splitlines()]


@pytest.mark.usefixtures("admin")
def test_equal_events_of_a_commit_share_a_line(show):
    status, out, err = show()
    assert (status, err) == (0, "")
    elected, *created = lines(out)
    assert elected.startswith("ControllerElected     under controller epoch 1  (")
    assert created == [
        "PartitionCreated      t-0, t-1, t-2 and 3 more: 2 replicas  (ops, TopicChange)",
    ]


def test_of_one_topic_each_partition_has_a_line(show, admin):
    admin.create_topic("other", assignment={0: [1]})
    _, out, _ = show("--topic", "t")
    assert lines(out) == [f"PartitionCreated      t-{n}: 2 replicas  (ops, TopicChange)" for n in range(6)]


@pytest.mark.usefixtures("admin")
def test_json_has_a_row_a_partition(show):
    _, out, _ = show("-o", "json")
    elected, first, *_ = json.loads(out)
    assert (elected["event"], elected["topic"], elected["partition"]) == ("ControllerElected", None, None)
    fields = "topic", "partition", "brokers", "leader", "isr", "who"
    assert [first[name] for name in fields] == ["t", 0, [1, 2], 1, [1, 2], "ops"]


@pytest.mark.usefixtures("admin")
def test_a_time_without_events_is_said(show):
    status, out, err = show("--since", "PT0S")
    assert (status, out) == (0, "")
    assert err.startswith("lakelog: no event since ")


@pytest.mark.usefixtures("admin")
def test_a_topic_that_never_was_is_refused(show):
    assert show("--topic", "none")[::2] == (
        1, "lakelog: UnknownTopicOrPartitionException: none: there is no such topic, and no event of one\n"
    )  # fmt: skip


def test_a_deleted_topic_has_its_events(show, admin):
    admin.delete_topic("t")
    found = [line.split("  (")[0] for line in lines(show("--topic", "t")[1]) if " t-0" in line]
    assert found == ["PartitionCreated      t-0: 2 replicas", "DeletionStarted       t-0: its topic is being deleted"]


@pytest.fixture
def meanwhile(monkeypatch):
    """What happens while the verb waits: one call a pause, and then a signal."""
    calls = []

    @contextmanager
    def until_signalled():
        yield lambda: not calls

    monkeypatch.setattr(cluster_events, "until_signalled", until_signalled)
    monkeypatch.setattr(cluster_events, "let_pass", lambda _: calls.pop(0)())
    return calls


@pytest.mark.parametrize("output", ["text", "json"])
def test_it_follows_until_it_is_told_to_stop(show, admin, meanwhile, output):
    meanwhile += [lambda: admin.create_topic("later", assignment={0: [3, 1]}), lambda: None]
    status, out, err = show("--follow", "-o", output, "--since", "PT0S")
    assert status == 0
    if output == "text":
        assert err.startswith("lakelog: no event since ")
        assert lines(out) == ["PartitionCreated      later-0: 2 replicas  (ops, TopicChange)"]
    else:
        (line,) = out.splitlines()
        assert json.loads(line)["topic"] == "later"


def test_it_goes_on_once_a_cluster_that_was_away_is_back(show, admin, controlled, meanwhile):
    metadata, away = Path(controlled, "metadata"), Path(controlled, "away")
    meanwhile += [
        lambda: metadata.rename(away), lambda: None, lambda: away.rename(metadata),
        lambda: admin.create_partitions("t", 7, assignment={6: [3, 1]}), lambda: None,
    ]  # fmt: skip
    status, out, err = show("--follow", "--topic", "t", "--since", "PT0S")
    assert (status, lines(out)) == (0, ["PartitionCreated      t-6: 2 replicas  (ops, PartitionModifications)"])
    none, away_once = err.splitlines()
    assert none.startswith("lakelog: no event since ")
    assert "metadata" in away_once
