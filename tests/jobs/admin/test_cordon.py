"""A cordoned broker as an operator sees it: set by `configs`, shown by `brokers` and `status`, obeyed by the others."""

import json
from typing import Any

import pytest

from lakelog.jobs import brokers, configs, reassign_partitions, status, topics
from lakelog.replication.clients.admin import AdminClient

Run = Any  # what a verb has answered: (status, stdout, stderr)

OF_3 = ("--entity-type", "brokers", "--entity-name", "3", "--alter")


@pytest.fixture
def on_cordoned(on_t: Run) -> Run:
    assert on_t(configs, *OF_3, "--add-config", "cordoned.log.dirs=*") == (0, "", "3: cordoned.log.dirs=*\n")
    return on_t


def test_tm_02_brokers_and_configs_show_a_cordon_until_it_is_lifted(on_cordoned: Run) -> None:
    assert [row["cordoned"] for row in json.loads(on_cordoned(brokers, "-o", "json")[1])] == [False, False, True]
    head, _, *rows = on_cordoned(brokers)[1].splitlines()
    assert (head.split()[-1], [row.split()[-1] for row in rows]) == ("cordoned", ["no", "no", "yes"])
    described = on_cordoned(configs, *OF_3[:4], "--describe", "--all")[1]
    assert "  cordoned.log.dirs=* source=DYNAMIC_BROKER_CONFIG\n" in described
    assert on_cordoned(configs, *OF_3, "--delete-config", "cordoned.log.dirs")[0] == 0
    assert "cordoned" not in on_cordoned(brokers)[1]


def test_tm_02_status_notes_who_is_cordoned_and_how_to_end_it(on_cordoned: Run, controlled: str) -> None:
    notes = {note["what"]: note["do"] for note in json.loads(on_cordoned(status, "-o", "json")[1])["notes"]}
    assert notes["broker 3 is cordoned: new replicas go to others"] == (
        f"`lakelog configs --cluster {controlled} --entity-type brokers --entity-name 3 --alter --delete-config "
        "cordoned.log.dirs` ends that"
    )
    of_all = ("--entity-type", "brokers", "--entity-default", "--alter", "--add-config", "cordoned.log.dirs=*")
    assert on_cordoned(configs, *of_all)[0] == 0
    notes = {note["what"]: note["do"] for note in json.loads(on_cordoned(status, "-o", "json")[1])["notes"]}
    assert "--entity-default" in notes["brokers 1 and 2 are cordoned: new replicas go to others"]


def test_tm_02_no_verb_brings_a_replica_to_a_cordoned_broker(on_cordoned: Run, admin: AdminClient, write: Any) -> None:
    new = ("--create", "--topic", "new", "--partitions", "1")
    _, _, err = on_cordoned(topics, *new, "--replication-factor", "3")
    assert "InvalidReplicationFactorException: replication factor 3 is larger than the 2 available brokers; " in err
    assert "cordoned, so without new replicas: 3 (cordoned.log.dirs)" in err
    _, _, err = on_cordoned(topics, *new[:3], "--replica-assignment", "1:3")
    assert "InvalidReplicaAssignmentException: partition 0 gets replicas on 1, 3: 3 cordoned" in err
    words = ("--generate", "--topics-to-move-json-file", write({"topics": [{"topic": "t"}]}), "--broker-list", "1,3")
    status_, out, err = on_cordoned(reassign_partitions, *words)
    assert (status_, out) == (1, "")
    assert "--broker-list: broker 3 is cordoned (cordoned.log.dirs), so it gets no new replica" in err
    moves = write({"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]}]})
    status_, _, err = on_cordoned(reassign_partitions, "--execute", "--reassignment-json-file", moves)
    assert (status_, "t-0: partition 0 gets replicas on 3: 3 cordoned" in err) == (1, True)
    assert admin.list_topics() == ["t"]
