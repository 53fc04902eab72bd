"""`lakelog format` and `lakelog topics`: results, refusals, error texts and exit status."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import format as format_verb
from lakelog.jobs import topics as topics_verb
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.jobs.admin.seen import beat

Run = Any  # what a verb has answered: (status, stdout, stderr)


def shut_down(cluster: str, broker_id: int) -> None:
    BrokerTable.open_or_create(StorageRoot.of(cluster), broker_id).heartbeat(1, "stop", shutting_down=True)


@pytest.fixture
def create(lakelog: Run, controlled: str) -> Run:
    """Runs `topics --create --topic t` with more words, on the cluster and its controller."""

    def run(*words: object) -> tuple[int, str, str]:
        topic = () if "--topic" in words else ("--topic", "t")
        return lakelog(topics_verb, "--cluster", controlled, "--create", *topic, *words)

    return run


def versions(cluster: str) -> tuple[int, int]:
    found = Cluster.open(cluster)
    return found.metadata.version, len(found.topics.topics)


# --- format ---


def test_format_prints_the_id_of_the_cluster_and_nothing_else(lakelog: Run, tmp_path: Path) -> None:
    status, out, _ = lakelog(format_verb, "--cluster", tmp_path / "c")
    assert (status, out) == (0, Cluster.open(str(tmp_path / "c")).cluster_id + "\n")


def test_the_settings_of_the_cluster_come_from_the_file(lakelog: Run, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("num.replica.fetchers=3\n")
    assert lakelog(format_verb, "--cluster", tmp_path / "c", "--command-config", tmp_path / "server.properties")[0] == 0
    assert Cluster.open(str(tmp_path / "c")).config.num_replica_fetchers == 3


def test_a_broker_root_may_be_formatted_again_for_the_same_broker(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    words = ("--cluster", cluster, "--broker-id", 4, "--root", tmp_path / "b")
    first, again = lakelog(format_verb, *words), lakelog(format_verb, *words)
    assert first == again
    assert first[:2] == (0, Cluster.open(cluster).cluster_id + "\n")


def test_a_root_of_another_broker_or_cluster_is_refused(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    root = tmp_path / "b"
    lakelog(format_verb, "--cluster", cluster, "--broker-id", 4, "--root", root)
    status, out, err = lakelog(format_verb, "--cluster", cluster, "--broker-id", 5, "--root", root)
    assert (status, out) == (1, "")
    assert err.startswith(f"lakelog: InconsistentClusterIdException: {root}: belongs to broker 4 of cluster ")
    assert err.count("\n") == 1
    lakelog(format_verb, "--cluster", tmp_path / "other")
    status, _, err = lakelog(format_verb, "--cluster", tmp_path / "other", "--broker-id", 4, "--root", root)
    assert status == 1
    assert "belongs to broker 4 of cluster" in err


def test_a_root_that_holds_something_else_is_refused_and_left_alone(lakelog: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not lose")
    status, _, err = lakelog(format_verb, "--cluster", tmp_path)
    assert status == 1
    assert "must be empty to be formatted, it holds thesis.tex" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_dry_run_of_format_writes_nothing(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    new, broker = tmp_path / "new", tmp_path / "b"
    assert lakelog(format_verb, "--cluster", new, "--dry-run") == (
        0, "", f"{new} would become the root of a new cluster; nothing is written\n",
    )  # fmt: skip
    words = ("--cluster", cluster, "--broker-id", 4, "--root", broker)
    status, _, err = lakelog(format_verb, *words, "--dry-run")
    assert (status, err) == (0, f"{broker} would become the root of broker 4\n")
    assert not new.exists()
    assert not broker.exists()
    lakelog(format_verb, *words)
    assert lakelog(format_verb, *words, "--dry-run")[2] == f"{broker} is the root of broker 4\n"
    already = f"is the root of cluster {Cluster.open(cluster).cluster_id} already"
    for again in ((), ("--dry-run",), ("--new-cluster",)):
        status, _, err = lakelog(format_verb, "--cluster", cluster, *again)
        assert (status, already in err) == (1, True)


def test_a_cluster_whose_root_is_unmounted_gets_no_new_one(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    lakelog(format_verb, "--cluster", cluster, "--broker-id", 4, "--root", tmp_path / "broker-4")
    Path(cluster).rename(tmp_path / "away")
    Path(cluster).mkdir()
    cluster_id = Cluster.open(str(tmp_path / "away")).cluster_id
    for words in ((), ("--dry-run",)):
        status, out, err = lakelog(format_verb, "--cluster", cluster, *words)
        assert (status, out) == (1, "")
        assert f"no new cluster is made here, as cluster {cluster_id} has its" in err
    assert not list(Path(cluster).iterdir())
    assert lakelog(format_verb, "--cluster", cluster, "--new-cluster")[0] == 0


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_format_asks_on_a_terminal_before_it_makes_a_cluster(
    lakelog: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    found, _, err = lakelog(format_verb, "--cluster", tmp_path / "c")
    assert found == status
    assert f"Make a new, empty cluster at {tmp_path}/c?" in err
    assert (tmp_path / "c").exists() == (status == 0)


def test_a_root_that_is_a_file_is_refused(lakelog: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = lakelog(format_verb, "--cluster", tmp_path / "file")
    assert status == 1
    assert err.startswith("lakelog: KafkaStorageException: ")
    assert str(tmp_path / "file") in err


def test_a_broker_needs_a_cluster_and_the_root_of_a_broker_is_none(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    words = ("--broker-id", 4, "--root", tmp_path / "b")
    status, _, err = lakelog(format_verb, "--cluster", tmp_path / "none", *words)
    assert status == 1
    assert f"there is no cluster at {tmp_path}/none: nothing is there. Check that it is mounted there" in err
    assert not (tmp_path / "b").exists()
    lakelog(format_verb, "--cluster", cluster, *words)
    status, _, err = lakelog(topics_verb, "--cluster", tmp_path / "b", "--list")
    assert status == 1
    assert "is the root of broker 4, no cluster" in err


@pytest.mark.parametrize("words", [["--broker-id", "4"], ["--root", "b"], ["--broker-id", "-1", "--root", "b"]])
def test_half_a_broker_is_wrong_usage(lakelog: Run, cluster: str, words: list[str]) -> None:
    status, out, err = lakelog(format_verb, "--cluster", cluster, *words)
    assert (status, out) == (2, "")
    assert "lakelog format --help` lists the options" in err


@pytest.mark.usefixtures("waits")
def test_bc_01_a_broker_that_is_at_work_gets_no_second_root(lakelog: Run, cluster: str, tmp_path: Path) -> None:
    beat(cluster, 2, 1.0)
    status, out, err = lakelog(format_verb, "--cluster", cluster, "--broker-id", 2, "--root", tmp_path / "b")
    assert (status, out) == (1, "")
    assert err == (
        f"lakelog: DuplicateBrokerRegistrationException: {tmp_path}/b: broker 2 is at work at /nowhere/2; stop it "
        "before you make another root for it, or use another id\n"
    )
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("waits")
def test_bc_01_the_root_of_a_broker_that_is_at_work_may_be_named_by_a_link(
    lakelog: Run, cluster: str, tmp_path: Path
) -> None:
    words = ("--cluster", cluster, "--broker-id", 2, "--root")
    assert lakelog(format_verb, *words, tmp_path / "b")[0] == 0
    (tmp_path / "link").symlink_to(tmp_path / "b")
    beat(cluster, 2, 1.0)
    status, _, err = lakelog(format_verb, *words, tmp_path / "link")
    assert (status, err) == (0, f"{tmp_path}/link is the root of broker 2\n")


@pytest.mark.parametrize(
    ("ago", "fields"),
    [(60.0, {}), (1.0, {"shutting_down": True}), (1.0, {"storage_error": "KafkaStorageException: disk full"})],
    ids=["dead", "stopping", "its root fails"],
)
@pytest.mark.usefixtures("waits")
def test_bc_01_a_broker_that_is_down_or_has_lost_its_root_gets_a_new_one(
    lakelog: Run, cluster: str, tmp_path: Path, ago: float, fields: dict[str, Any]
) -> None:
    beat(cluster, 2, ago, **fields)
    root = tmp_path / "b"
    status, _, err = lakelog(format_verb, "--cluster", cluster, "--broker-id", 2, "--root", root)
    assert (status, err.splitlines()[-1]) == (0, f"{root} is the root of broker 2")


# --- topics ---


def test_a_created_topic_is_listed_and_described_as_kafka_does(lakelog: Run, create: Run, cluster: str) -> None:
    status, out, err = create("--replica-assignment", "1:2:3,2:3:1", "--config", "min.insync.replicas=2")
    topic_id = AdminClient(cluster).describe_topic("t").topic.topic_id
    text = (
        f"Topic: t\tTopicId: {topic_id}\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: min.insync.replicas=2\n"
        "\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3\n"
        "\tTopic: t\tPartition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3,1\n"
    )
    assert (status, out, err) == (0, text, "Created topic t.\n")
    assert lakelog(topics_verb, "--cluster", cluster, "--describe") == (0, text, "")
    assert lakelog(topics_verb, "--cluster", cluster, "--list") == (0, "t\n", "")


def test_a_cluster_without_topics_lists_nothing(lakelog: Run, cluster: str) -> None:
    assert lakelog(topics_verb, "--cluster", cluster, "--list") == (0, "", "")
    assert lakelog(topics_verb, "--cluster", cluster, "--list", "-o", "json") == (0, "[]\n", "")
    assert lakelog(topics_verb, "--cluster", cluster, "--describe", "-o", "table") == (0, "", "")


def test_create_prints_the_topic_as_json(create: Run) -> None:
    status, out, _ = create("--replica-assignment", "3:1", "-o", "json")
    (topic,) = json.loads(out)
    assert (status, topic["topic"], topic["configs"]) == (0, "t", {})
    assert topic["partitions"] == [
        {
            "topic": "t", "partition": 0, "leader": 3, "leader_epoch": 0, "replicas": [3, 1], "isr": [3, 1],
            "adding_replicas": [], "removing_replicas": [],
        }
    ]  # fmt: skip


def test_a_table_has_a_row_for_each_partition(create: Run) -> None:
    _, out, _ = create("--partitions", 2, "--replication-factor", 3, "-o", "table")
    head, _, *rows = out.splitlines()
    assert " ".join(head.split()) == "topic partition leader leader epoch replicas isr"
    assert [row.split()[:2] for row in rows] == [["t", "0"], ["t", "1"]]


def test_a_dry_run_shows_an_assignment_that_can_be_made_and_writes_nothing(create: Run, cluster: str) -> None:
    before = versions(cluster)
    status, shown, err = create("--partitions", 4, "--replication-factor", 2, "--dry-run")
    assert (status, shown, versions(cluster)) == (0, "", before)
    said, planned = err.splitlines()
    assert said == "Nothing was written. This is what would be done."
    lists = [words.split()[-1].replace(",", ":") for words in planned.split("; ")]
    made = create("--replica-assignment", ",".join(lists), "--dry-run", "-o", "json")[1]
    assert json.loads(made) == [{"topic": "t", "error": None, "message": planned[len("t: ") :], "dry_run": True}]


def test_a_broker_that_has_shut_down_gets_no_replicas_and_a_partition_of_none_has_no_leader(
    create: Run, cluster: str
) -> None:
    shut_down(cluster, 3)
    status, _, err = create("--replication-factor", 3)
    assert status == 1
    assert "replication factor 3 is larger than the 2 available brokers" in err


def test_a_partition_without_leader_says_none(lakelog: Run, controlled: str) -> None:
    cluster = controlled
    admin, found = AdminClient(cluster), Cluster.open(cluster)
    (partition,) = admin.create_topic("t", 1, 1).partitions
    found.metadata.put([replace(partition, leader=-1, isr=())], {"who": "test"})
    assert "\tLeader: none\t" in lakelog(topics_verb, "--cluster", cluster, "--describe")[1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--replication-factor", "4"],
            "InvalidReplicationFactorException: replication factor 4 is larger than the 3 available brokers",
        ),
        (
            ["--replica-assignment", "1:7"],
            "InvalidReplicaAssignmentException: partition 0 has replicas [1, 7]: 7 unknown",
        ),
        (["--config", "min.insync.replica=2"], "unknown key min.insync.replica, did you mean min.insync.replicas?"),
        (["--config", "min.insync.replicas=0"], "min.insync.replicas is '0', it must be an integer from 1"),
        (["--topic", "a/b"], "InvalidTopicException: "),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_nothing_is_written(
    create: Run, cluster: str, words: list[str], error: str
) -> None:
    before = versions(cluster)
    status, out, err = create(*words)
    assert (status, out, versions(cluster)) == (1, "", before)
    assert err.startswith("lakelog: Invalid")
    assert error in err
    assert "Traceback" not in err


def test_a_topic_that_exists_is_refused_unless_it_may(create: Run, cluster: str) -> None:
    create()
    before = versions(cluster)
    assert create() == (1, "", "lakelog: TopicExistsException: topic t exists already\n")
    assert create("--if-not-exists") == (0, "", "Topic t exists already.\n")
    assert versions(cluster) == before


def test_an_unknown_topic_is_named_with_those_there_are(lakelog: Run, create: Run, cluster: str) -> None:
    create()
    answer = lakelog(topics_verb, "--cluster", cluster, "--describe", "--topic", "u")
    assert answer == (1, "", "lakelog: UnknownTopicOrPartitionException: no topic u; there are: t\n")


def test_an_unformatted_root_is_refused(lakelog: Run, tmp_path: Path) -> None:
    status, out, err = lakelog(topics_verb, "--cluster", tmp_path, "--list")
    assert (status, out) == (1, "")
    assert err.startswith("lakelog: InconsistentClusterIdException: ")
    assert err.endswith(f". For a new cluster only: `lakelog format --cluster {tmp_path}`\n")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--create"],
        ["--create", "--list", "--topic", "t"],
        ["--list", "--topic", "t"],
        ["--list", "--partitions", "0"],
        ["--describe", "--dry-run"],
        ["--describe", "--under-replicated-partitions", "--unavailable-partitions"],
        ["--list", "--unavailable-partitions"],
        ["--alter", "--topic", "t"],
        ["--alter", "--partitions", "2"],
        ["--delete"],
        ["--delete", "--topic", "t", "--partitions", "2"],
        ["--create", "--topic", "t", "--partitions", "many"],
        ["--create", "--topic", "t", "--replica-assignment", "1;2"],
        ["--create", "--topic", "t", "--config", "min.insync.replicas"],
        ["--crea", "--topic", "t"],
    ],
)
def test_wrong_usage_is_status_2_and_touches_nothing(lakelog: Run, cluster: str, words: list[str]) -> None:
    before = versions(cluster)
    status, out, err = lakelog(topics_verb, "--cluster", cluster, *words)
    assert (status, out, versions(cluster)) == (2, "", before)
    assert "lakelog topics --help` lists the options" in err
