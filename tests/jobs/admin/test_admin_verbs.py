"""The admin verbs with a controller: output, refusals, error texts and exit status."""

import json
from dataclasses import replace
from typing import Any

import pytest

from lakelog.jobs import brokers, configs, controller, leader_election, reassign_partitions, topics
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.storage.cluster import Cluster

Run = Any  # what a verb has answered: (status, stdout, stderr)

UNDER, UNAVAILABLE, AT_MIN = "--under-replicated-partitions", "--unavailable-partitions", "--at-min-isr-partitions"


def change(cluster: str, partition: int, **fields: Any) -> None:
    """Changes a partition of t, as a leader or an accident may."""
    found = Cluster.open(cluster)
    (before,) = [r for r in found.metadata.partitions.values() if r.partition == partition]
    epoch = before.partition_epoch + 1
    found.metadata.put([replace(before, partition_epoch=epoch, **fields)], {"who": "test"})


def versions(cluster: str) -> tuple[int, object]:
    found = Cluster.open(cluster)
    return found.metadata.version, found.topics.topics


# --- topics ---


def test_li_07_partitions_are_added_over_the_assignment_of_all(on_t: Run, admin: AdminClient) -> None:
    words = ("--alter", "--topic", "t", "--partitions", 4, "--replica-assignment", "1:2,2:3,3:1,1:3")
    status, out, err = on_t(topics, *words)
    assert (status, len(out.splitlines())) == (0, 5)
    assert err == "Topic t: 2 -> 4 partitions. Keys may go to other partitions from now on.\n"
    assert [r.replicas for r in admin.describe_topic("t").partitions] == [(1, 2), (2, 3), (3, 1), (1, 3)]


def test_li_07_an_assignment_with_a_gap_or_fewer_partitions_is_refused(on_t: Run, admin: AdminClient) -> None:
    words = ("--alter", "--topic", "t", "--partitions")
    status, out, err = on_t(topics, *words, 4, "--replica-assignment", "1:2,2:3,3:1")
    assert (status, out) == (1, "")
    assert err.startswith("lakelog: InvalidPartitionsException: topic t: the assignment is of partitions [2]")
    status, _, err = on_t(topics, *words, 1)
    assert (status, err) == (
        1,
        "lakelog: InvalidPartitionsException: topic t has 2 partitions, it can only get more, not 1\n",
    )
    assert len(admin.describe_topic("t").partitions) == 2


def test_td_01_a_deletion_is_queued_and_its_topic_marked(on_t: Run) -> None:
    status, out, err = on_t(topics, "--delete", "--topic", "t")
    assert (status, out) == (0, "")
    assert err == "t: is being deleted; it is listed until all its brokers have deleted their replicas\n"
    lines = on_t(topics, "--describe")[1].splitlines()
    assert all(line.endswith("\tMarkedForDeletion: true") for line in lines)
    assert "\tLeader: none\t" in lines[1]
    (described,) = json.loads(on_t(topics, "--describe", "-o", "json")[1])
    assert (described["marked_for_deletion"], described["partitions"][0]["leader"]) == (True, None)


@pytest.mark.parametrize("words", [["--delete"], ["--alter", "--partitions", "3"], ["--describe"]])
def test_an_unknown_topic_is_refused_without_if_exists(on_t: Run, words: list[str]) -> None:
    refused = (1, "", "lakelog: UnknownTopicOrPartitionException: no topic u; there are: t\n")
    assert on_t(topics, *words, "--topic", "u") == refused
    assert on_t(topics, *words, "--topic", "u", "--if-exists") == (0, "", "Topic u does not exist.\n")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"isr": (1, 2)}, {UNDER: [], UNAVAILABLE: [], AT_MIN: []}),
        ({"isr": (1,)}, {UNDER: [0], UNAVAILABLE: [], AT_MIN: [0]}),
        ({"isr": (), "leader": -1, "leader_epoch": 1}, {UNDER: [0], UNAVAILABLE: [0], AT_MIN: []}),
        # A replica that is being added does not count until it is in sync.
        ({"replicas": (1, 2, 3), "adding_replicas": (3,)}, {UNDER: [], UNAVAILABLE: [], AT_MIN: []}),
    ],
    ids=["all in sync", "one in sync", "no leader", "one is added"],
)
def test_describe_with_a_filter_shows_only_the_partitions_of_that_state(
    on_t: Run, cluster: str, fields: dict[str, Any], shown: dict[str, list[int]]
) -> None:
    change(cluster, 0, **fields)
    for flag, partitions in shown.items():
        status, out, err = on_t(topics, "--describe", flag)
        assert (status, err) == (0, "")
        assert [line.split("\t")[2] for line in out.splitlines()] == [f"Partition: {p}" for p in partitions], flag
        found = [p["partition"] for t in json.loads(on_t(topics, "--describe", flag, "-o", "json")[1])
                 for p in t["partitions"]]  # fmt: skip
        assert found == partitions, flag


def test_a_table_of_partitions_fits_on_80_characters(on_t: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, *rows = on_t(topics, "--describe", "-o", "table")[1].splitlines()
    assert head.split() == ["topic", "partition", "leader", "leader", "epoch", "replicas", "isr"]
    assert [row.split()[:2] for row in rows[1:]] == [["t", "0"], ["t", "1"]]
    assert max(map(len, rows)) <= 80
    assert "removing" in on_t(topics, "--describe", "-o", "table", "--all")[1]


# --- leader-election ---


def test_pe_01_a_preferred_election_succeeds_also_if_the_preferred_replica_leads(
    on_t: Run, admin: AdminClient, cluster: str
) -> None:
    change(cluster, 0, leader=2, leader_epoch=1)
    words = ("--election-type", "preferred", "--all-topic-partitions")
    status, out, err = on_t(leader_election, *words, "--dry-run")
    assert (status, out) == (0, "")
    assert err == "Nothing was written. Would complete leader election (PREFERRED) for partitions t-0\n"
    done = "Successfully completed leader election (PREFERRED) for partitions t-0\n"
    assert on_t(leader_election, *words) == (0, "", done)
    assert on_t(leader_election, *words) == (0, "", "No partition needs an election\n")
    one = ("--election-type", "preferred", "--topic", "t", "--partition", 1)
    assert on_t(leader_election, *one) == (0, "", "Valid replica already elected for partitions t-1\n")
    assert admin.describe_topic("t").partitions[0].leader == 1


def test_le_02_an_unclean_election_covers_only_the_partitions_of_the_file(
    on_t: Run, admin: AdminClient, cluster: str, write: Any
) -> None:
    change(cluster, 0, leader=-1, leader_epoch=1, isr=(9,))
    file = write({"partitions": [{"topic": "t", "partition": 0}]})
    status, _, err = on_t(leader_election, "--election-type", "UNCLEAN", "--path-to-json-file", file)
    assert (status, err.splitlines()) == (
        0,
        [
            "t-0: broker 1 leads; what is lost is not known, as the last leader's rows are away",
            "Successfully completed leader election (UNCLEAN) for partitions t-0",
        ],
    )
    assert admin.describe_topic("t").partitions[0].isr == (1,)


def test_pe_01_an_election_for_an_empty_list_elects_no_leader(admin: AdminClient, cluster: str) -> None:
    change(cluster, 0, leader=2, leader_epoch=1)
    assert admin.elect_leaders("preferred", []) == {}
    assert admin.describe_topic("t").partitions[0].leader == 2


def test_pe_01_an_election_of_an_out_of_sync_leader_or_an_unknown_partition_is_refused(on_t: Run, cluster: str) -> None:
    change(cluster, 0, leader=2, leader_epoch=1, isr=(2,))
    words = ("--election-type", "preferred", "--topic", "t", "--partition")
    status, out, err = on_t(leader_election, *words, 0, "-o", "json")
    assert (status, json.loads(out)[0]["error"]) == (1, "PreferredLeaderNotAvailableException")
    assert err.startswith("lakelog: PreferredLeaderNotAvailableException: t-0: broker 1 is not alive and in the ISR")
    assert on_t(leader_election, *words, 7)[2] == "lakelog: UnknownTopicOrPartitionException: no partition t-7\n"


# --- configs, brokers, controller ---


def test_settings_are_altered_and_described(on_t: Run) -> None:
    of_t = ("--entity-type", "topics", "--entity-name", "t")
    put = ("--alter", "--add-config", "min.insync.replicas=2,unclean.leader.election.enable=true")
    assert on_t(configs, *of_t, *put)[0] == 0
    assert on_t(configs, *of_t, "--alter", "--delete-config", "unclean.leader.election.enable") == (
        0,
        "",
        "t: min.insync.replicas=2\n",
    )
    answer = (0, "  min.insync.replicas=2\n", "Dynamic configs for topic t are:\n")
    assert on_t(configs, *of_t, "--describe") == answer
    assert on_t(configs, "--entity-type", "topics", "--describe") == answer
    rows = json.loads(on_t(configs, *of_t, "--describe", "-o", "json")[1])
    assert rows == [{"topic": "t", "key": "min.insync.replicas", "value": "2"}]
    status, _, err = on_t(configs, *of_t, "--alter", "--add-config", "min.insync.replicas=0")
    assert (status, "min.insync.replicas is '0'" in err) == (1, True)


def test_ev_05_a_topic_that_is_too_large_is_refused_before_it_is_asked_for(lakelog: Run, cluster: str) -> None:
    """No controller runs, so the client itself refuses."""
    words = ("--create", "--topic", "t", "--partitions", 10_000_000, "--dry-run")
    status, out, err = lakelog(topics, "--cluster", cluster, *words)
    assert (status, out) == (1, "")
    assert err == (
        "lakelog: PolicyViolationException: topic t: 10000000 partitions exceed "
        "lakelog.max.partitions.per.topic (10000)\n"
    )
    assert Cluster.open(cluster).admin.requests == []


def test_a_dry_run_of_a_large_topic_prints_a_short_answer_and_leaves_no_row(on_t: Run, controlled: str) -> None:
    status, out, err = on_t(topics, "--create", "--topic", "u", "--partitions", 10_000, "--dry-run")
    assert (status, out) == (0, "")
    assert max(map(len, err.splitlines())) < 1000
    assert "; and 9980 more" in err
    assert [request.kind for request in Cluster.open(controlled).admin.requests] == ["create_topic"], "that of t"


# --- all of them ---

FILE = {"partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}
CHANGES = {
    "alter": (topics, ["--alter", "--topic", "t", "--partitions", "5"]),
    "delete": (topics, ["--delete", "--topic", "t"]),
    "configs": (configs, ["--entity-type", "topics", "--entity-name", "t", "--alter", "--add-config",
                          "min.insync.replicas=2"]),
    "execute": (reassign_partitions, ["--execute", "--reassignment-json-file", FILE]),
    "election": (leader_election, ["--election-type", "preferred", "--path-to-json-file", FILE]),
}  # fmt: skip


@pytest.mark.parametrize(("verb", "words"), CHANGES.values(), ids=CHANGES)
def test_a_dry_run_prints_the_outcome_and_changes_nothing(
    on_t: Run, cluster: str, write: Any, verb: Any, words: list[Any]
) -> None:
    change(cluster, 0, leader=2, leader_epoch=1)
    before = versions(cluster)
    given = [write(word) if isinstance(word, dict) else word for word in words]
    status, out, err = on_t(verb, *given, "--dry-run", "-o", "json")
    outcomes = json.loads(out)
    (row,) = outcomes["outcomes"] if isinstance(outcomes, dict) else outcomes
    assert (status, row["error"], row["dry_run"], versions(cluster)) == (0, None, True, before)
    assert "Nothing was written." in err
    assert on_t(verb, *given)[0] == 0
    assert versions(cluster) != before


@pytest.mark.parametrize("form", [[], ["-o", "json"]], ids=["text", "json"])
def test_a_dry_run_without_a_controller_is_refused_at_once_and_writes_nothing(
    lakelog: Run, cluster: str, form: list[str]
) -> None:
    admin = Cluster.open(cluster).admin
    before = admin.version
    words = ("--create", "--topic", "u", "--dry-run", *form)
    status, out, err = lakelog(topics, "--cluster", cluster, *words)
    assert (status, err.count("\n"), bool(out)) == (1, 1, bool(form))
    assert err.startswith("lakelog: ControllerNotAvailableException: no controller is active, and none ever was")
    admin.refresh()
    assert admin.version == before


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (reassign_partitions, []),
        (reassign_partitions, ["--execute"]),
        (reassign_partitions, ["--generate", "--broker-list", "1,2"]),
        (reassign_partitions, ["--list", "--broker-list", "1"]),
        (reassign_partitions, ["--list", "--dry-run"]),
        (reassign_partitions, ["--list", "--broker-list", "1,1"]),
        (reassign_partitions, ["--verify", "--reassignment-json-file", "/none/such.json"]),
        (leader_election, ["--election-type", "preferred"]),
        (leader_election, ["--election-type", "any", "--all-topic-partitions"]),
        (leader_election, ["--election-type", "preferred", "--topic", "t"]),
        (leader_election, ["--election-type", "preferred", "--all-topic-partitions", "--partition", "0"]),
        (configs, ["--describe"]),
        (configs, ["--entity-type", "groups", "--describe"]),
        (configs, ["--entity-type", "brokers", "--alter", "--add-config", "a=1"]),
        (configs, ["--entity-type", "topics", "--entity-default", "--describe"]),
        (configs, ["--entity-type", "brokers", "--entity-default", "--entity-name", "1", "--describe"]),
        (configs, ["--entity-type", "topics", "--alter", "--entity-name", "t"]),
        (configs, ["--entity-type", "topics", "--alter", "--add-config", "a=1"]),
        (configs, ["--entity-type", "topics", "--describe", "--delete-config", "a"]),
        (configs, ["--entity-type", "topics", "--entity-name", "t", "--alter", "--add-config", "a"]),
        (brokers, ["-o", "text"]),
        (controller, ["-o", "json"]),
        (controller, ["--describe", "--requests"]),
    ],
)
def test_wrong_usage_is_status_2(lakelog: Run, cluster: str, verb: Any, words: list[str]) -> None:
    status, out, err = lakelog(verb, "--cluster", cluster, *words)
    assert (status, out) == (2, "")
    assert "--help` lists the options\n" in err
