"""`lakelog reassign-partitions` with a controller: files, texts, refusals and exit status."""

import json
from typing import Any

import pytest

from lakelog.jobs import reassign_partitions, topics
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import TimeoutException

Run = Any  # what a verb has answered: (status, stdout, stderr)


def moves(**wanted: list[int]) -> dict[str, Any]:
    """Kafka's JSON: `t_0=[1, 2]`."""
    named = [(name.split("_"), replicas) for name, replicas in wanted.items()]
    partitions = [{"topic": t, "partition": int(p), "replicas": replicas} for (t, p), replicas in named]
    return {"version": 1, "partitions": partitions}


def replicas_of(admin: AdminClient) -> list[tuple[int, ...]]:
    return [r.replicas for r in admin.describe_topic("t").partitions]


def test_ra_01_a_partition_is_moved_shown_and_brought_back(on_t: Run, admin: AdminClient, write: Any) -> None:
    file = write(moves(t_0=[1, 3]))
    status, out, err = on_t(reassign_partitions, "--execute", "--reassignment-json-file", file)
    assert (status, json.loads(out)) == (0, moves(t_0=[1, 2]))
    assert err.splitlines() == [
        "Current partition replica assignment",
        "Save this to use as the --reassignment-json-file option during rollback",
        "t-0: [1, 2] -> [1, 3]",
    ]
    assert on_t(reassign_partitions, "--list")[1] == "t-0: replicas: 1,3,2. adding: 3. removing: 2.\n"
    described = on_t(topics, "--describe", "--topic", "t")[1].splitlines()
    assert "\tReplicationFactor: 2\t" in described[0]
    assert described[1].endswith("\tReplicas: 1,3,2\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: 2")
    assert on_t(reassign_partitions, "--verify", "--reassignment-json-file", file)[:2] == (
        0,
        "Reassignment of partition t-0 is still in progress.\n",
    )
    assert on_t(reassign_partitions, "--cancel", "--reassignment-json-file", file) == (
        0,
        "",
        "t-0: stays on brokers [1, 2]\n",
    )
    assert replicas_of(admin)[0] == (1, 2)
    assert on_t(reassign_partitions, "--list") == (0, "", "No partition reassignments found.\n")
    assert on_t(reassign_partitions, "--list", "-o", "json")[1] == "[]\n"


def test_ra_01_each_refused_partition_is_reported_and_the_others_move(
    on_t: Run, admin: AdminClient, write: Any
) -> None:
    file = write(moves(t_0=[9], t_1=[3, 2], u_0=[1]))
    status, out, err = on_t(reassign_partitions, "--execute", "--reassignment-json-file", file, "-o", "json")
    answer = json.loads(out)
    assert (status, answer["current"]) == (1, moves(t_0=[1, 2], t_1=[2, 3]))
    assert [(o["partition"], o["error"]) for o in answer["outcomes"]] == [
        ("t-0", "InvalidReplicaAssignmentException"),
        ("t-1", None),
        ("u-0", "UnknownTopicOrPartitionException"),
    ]
    assert "lakelog: InvalidReplicaAssignmentException: t-0: partition 0 has replicas [9]: 9 unknown" in err
    assert "lakelog: UnknownTopicOrPartitionException: no partition u-0\n" in err
    assert replicas_of(admin) == [(1, 2), (3, 2)]


def test_ra_01_a_cancellation_without_a_reassignment_is_refused(on_t: Run, write: Any) -> None:
    file = write(moves(t_0=[1, 2]))
    status, out, err = on_t(reassign_partitions, "--cancel", "--reassignment-json-file", file)
    assert (status, out) == (1, "")
    assert err == "lakelog: NoReassignmentInProgressException: t-0: no reassignment is under way\n"


def test_ra_03_verify_shows_the_status_of_each_reassignment(on_t: Run, write: Any) -> None:
    file = write(moves(t_0=[1, 2], t_1=[1, 2], u_0=[1]))
    status, out, err = on_t(reassign_partitions, "--verify", "--reassignment-json-file", file)
    assert (status, out.splitlines()) == (
        1,
        [
            "Reassignment of partition t-0 is completed.",
            "There is no active reassignment of partition t-1, but replica set is 2,3 rather than 1,2.",
        ],
    )
    assert err.endswith("lakelog: UnknownTopicOrPartitionException: no partition u-0\n")
    rows = json.loads(on_t(reassign_partitions, "--verify", "--reassignment-json-file", file, "-o", "json")[1])
    assert [row["status"] for row in rows] == ["complete", "other replicas", "unknown partition"]


def test_where_verify_fails_its_error_is_the_only_json(on_t: Run, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TimeoutException("no controller")

    monkeypatch.setattr(reassign_partitions, "clear_throttles", refuse)
    file = write(moves(t_0=[1, 2]))
    status, out, _ = on_t(reassign_partitions, "--verify", "--reassignment-json-file", file, "-o", "json")
    assert (status, json.loads(out)) == (1, {"error": {"code": "TimeoutException", "message": "no controller"}})


def test_tm_02_what_is_generated_can_be_executed(on_t: Run, admin: AdminClient, write: Any) -> None:
    words = ("--generate", "--topics-to-move-json-file", write({"version": 1, "topics": [{"topic": "t"}]}))
    status, out, err = on_t(reassign_partitions, *words, "--broker-list", "1,3")
    current, proposed = out.splitlines()
    assert (status, json.loads(current)) == (0, moves(t_0=[1, 2], t_1=[2, 3]))
    assert err.splitlines() == ["Current partition replica assignment", "Proposed partition reassignment configuration"]
    assert [sorted(p["replicas"]) for p in json.loads(proposed)["partitions"]] == [[1, 3], [1, 3]]
    assert on_t(reassign_partitions, "--execute", "--reassignment-json-file", write(proposed))[0] == 0
    assert {r.partition for r in admin.list_partition_reassignments()} == {0, 1}


@pytest.mark.parametrize(
    ("brokers_given", "error"),
    [
        ("1,9", "BrokerNotAvailableException: --broker-list: broker 9 has not registered; there are: 1, 2, 3\n"),
        ("1", "InvalidReplicationFactorException: replication factor 2 is larger than the 1 available broker\n"),
    ],
)
def test_tm_02_brokers_that_are_unknown_or_too_few_are_refused(
    on_t: Run, write: Any, brokers_given: str, error: str
) -> None:
    words = ("--generate", "--topics-to-move-json-file", write({"topics": [{"topic": "t"}]}))
    status, out, err = on_t(reassign_partitions, *words, "--broker-list", brokers_given)
    assert (status, out) == (1, "")
    assert err.startswith(f"lakelog: {error}")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "cannot be read: "),
        ([], 'it must be an object, and "partitions" in it a list of objects, one at least'),
        ({"partitions": []}, "one at least"),
        ({"partitions": [1]}, "one at least"),
        ({**moves(t_0=[1]), "version": 2}, '"version" is 2, it must be 1'),
        ({"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}, '"topic" of'),
        ({"partitions": [{"topic": "t", "partition": True, "replicas": [1]}]}, '"partition" of'),
        ({"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}, '"partition" of'),
        ({"partitions": [{"topic": "t", "partition": 0}]}, '"replicas" of'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}, '"replicas" of'),
        ({"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}, '"log_dirs" of'),
        ({"partitions": moves(t_0=[1])["partitions"] * 2}, "t-0 stands there twice"),
    ],
)
def test_a_malformed_reassignment_file_is_wrong_usage(
    lakelog: Run, cluster: str, write: Any, content: object, fault: str
) -> None:
    words = ("--cluster", cluster, "--execute", "--reassignment-json-file", write(content))
    status, out, err = lakelog(reassign_partitions, *words)
    assert (status, out) == (2, "")
    assert fault in err
    assert "lakelog reassign-partitions --help` lists the options" in err


@pytest.mark.parametrize("content", [moves(t_0=[9]), moves(u_0=[1]), moves(t_7=[1, 2])])
def test_ra_01_there_is_no_way_back_from_a_file_of_which_nothing_can_be_done(
    on_t: Run, write: Any, content: object
) -> None:
    status, out, err = on_t(reassign_partitions, "--execute", "--reassignment-json-file", write(content))
    assert (status, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("lakelog: ")
