"""A cluster with three cluster roots, as those see it who derive something from the URI of the cluster."""

import shutil
from pathlib import Path

import pytest

from lakelog.jobs.cli.verb_parser import add_cluster, parser_of
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InconsistentClusterIdException,
    InconsistentClusterRootException,
    InvalidConfigurationException,
    KafkaStorageException,
    LakelogException,
    error_or,
)
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.cluster import Cluster, check_may_format, format_cluster, storage_root
from lakelog.replication.storage.delta.checkpoint import newest_checkpoint
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.delta_log import CHECKPOINT_COMMITS
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.root_identity import brokers_beside, is_formatted, read_identity
from lakelog.replication.storage.tables.group_tables import MemberTable
from lakelog.schemas import CLUSTER, CONFIGS
from tests.processes import wait_until

CONFIG = Config()
PLACES = ("north/cluster", "west/cluster", "south/cluster")


def uri(root):
    return ",".join(f"{root}/{place}" for place in PLACES)


@pytest.fixture
def cluster(root):
    format_cluster(storage_root(uri(root), "cluster", CONFIG), CONFIG)
    return Cluster.open(uri(root))


def test_a_cluster_has_one_name_whichever_root_is_read(cluster, root):
    assert {Cluster.open(f"{root}/{place}").root.uri for place in PLACES} == {cluster.root.uri}


@pytest.mark.parametrize("place", PLACES)
def test_all_roots_must_be_empty_to_be_formatted(root, place):
    Path(root, place).mkdir(parents=True)
    Path(root, place, "notes.txt").touch()
    with pytest.raises(InconsistentClusterIdException, match=f"{place}: must be empty"):
        format_cluster(storage_root(uri(root), "cluster", CONFIG), CONFIG)
    assert [path.name for path in Path(root).rglob("*") if path.is_file()] == ["notes.txt"]


def test_no_root_may_lie_in_another(root):
    nested = storage_root(f"{root}/a,{root}/b,{root}/a/c", "cluster", CONFIG)
    with pytest.raises(InconsistentClusterIdException, match=r"lies in .*/a, the root of the cluster"):
        check_may_format(nested)


@pytest.mark.parametrize("place", PLACES)
def test_a_broker_has_no_root_within_any_of_the_roots(cluster, root, place):
    with pytest.raises(InconsistentClusterIdException, match="the root of "):
        cluster.format_broker(1, f"{root}/{place}/broker-1")


@pytest.mark.parametrize("place", PLACES)
def test_no_cluster_is_made_beside_brokers_of_another(cluster, root, place):
    beside = str(Path(root, place).parent / "broker-1")
    cluster.format_broker(1, beside)
    shutil.rmtree(Path(root, place))
    assert brokers_beside(cluster.root) == {beside: cluster.cluster_id}
    others = ",".join(f"{Path(root, each).parent}/cluster-2" for each in PLACES)
    with pytest.raises(InconsistentClusterIdException, match="has its brokers' roots at"):
        check_may_format(storage_root(others, "cluster", CONFIG))


@pytest.mark.parametrize("place", PLACES)
def test_a_cluster_is_formatted_although_one_root_was_emptied(cluster, root, place):
    shutil.rmtree(Path(root, place))
    Path(root, place).mkdir()
    found = storage_root(uri(root), "cluster", CONFIG)
    assert is_formatted(found)
    assert read_identity(found)["cluster_id"] == cluster.cluster_id
    assert Cluster.open(uri(root)).cluster_id == cluster.cluster_id


def test_nobody_knows_whether_a_cluster_is_formatted_as_long_as_a_root_cannot_be_read(root, monkeypatch):
    lists = LocalRoot.list

    def list_files(self):
        if PLACES[1] in self.uri:
            raise KafkaStorageException(f"{self.uri}: cannot be read")
        return lists(self)

    monkeypatch.setattr(LocalRoot, "list", list_files)
    with pytest.raises(KafkaStorageException, match=PLACES[1]):
        is_formatted(storage_root(uri(root), "cluster", CONFIG))


def test_the_stores_of_all_roots_are_asked_whether_they_refuse_a_second_put(cluster, monkeypatch):
    refuses = LocalRoot.put_if_absent

    def put_if_absent(self, name, content):
        return (1, 1) if self.uri.endswith(PLACES[2]) else refuses(self, name, content)

    monkeypatch.setattr(LocalRoot, "put_if_absent", put_if_absent)
    with pytest.raises(InvalidConfigurationException, match=f"{PLACES[2]}: the store takes a second put"):
        check_conditional_put(cluster.root)


def test_a_process_starts_without_one_root_and_not_without_two(cluster, root):
    shutil.rmtree(Path(root, PLACES[0]))
    check_conditional_put(cluster.root)
    shutil.rmtree(Path(root, PLACES[1]))
    with pytest.raises(KafkaStorageException, match=PLACES[0]):
        check_conditional_put(cluster.root)


def test_a_broker_has_one_root(root):
    with pytest.raises(InvalidConfigurationException, match="names 3 roots, and broker 1 has one"):
        storage_root(uri(root), 1, CONFIG)


@pytest.mark.parametrize("given", ["/a,/b", "/a,/b,/a", "/a,s3://b,relative://"])
def test_a_list_that_makes_no_sense_is_wrong_usage(given, capsys):
    parser = parser_of("status", None)
    add_cluster(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--cluster", given])
    assert "--cluster" in capsys.readouterr().err


def move(root, places, end):
    for place in places:
        Path(root, place + end[0]).rename(f"{root}/{place}{end[1]}")


AWAY, BACK = ("", ".away"), (".away", "")


def change(cluster, value):
    cluster.configs.change({Entity("brokers", "1"): {"background.threads": value}}, {"who": "test"})


def test_a_root_that_is_behind_is_no_older_copy(cluster, root):
    """The process has seen what was decided without it. It catches up, or says that it cannot."""
    north, west, south = ([place] for place in PLACES)
    change(cluster, "1")
    move(root, west, AWAY)
    change(cluster, "2")
    move(root, west, BACK)
    move(root, [*north, *south], AWAY)
    with pytest.raises(KafkaStorageException) as lacking:
        cluster.guard.reopen(cluster.root.child(CONFIGS.name))
    assert not isinstance(lacking.value, InconsistentClusterRootException)
    move(root, south, BACK)
    found = wait_until(lambda: ok(cluster.guard.reopen, cluster.root.child(CONFIGS.name)), "a majority")
    assert found.version == 2
    assert not cluster.guard.is_wrong


def ok(call, *arguments):
    found = error_or(call, *arguments)
    return None if isinstance(found, LakelogException) else found


def test_a_table_is_read_although_a_part_of_the_home_was_deleted(cluster, root):
    change(cluster, "1")
    for file in Path(root, PLACES[0], CONFIGS.name).glob("*.parquet"):
        file.unlink()
    assert [*Cluster.open(uri(root)).configs.configs.values()] == [{"background.threads": "1"}]


def test_a_cluster_is_found_by_a_root_that_is_behind_since_it_was_formatted(cluster, root):
    for file in Path(root, PLACES[2], "cluster", "_delta_log").glob("*.json"):
        if file.name != commit_name(0).rpartition("/")[2]:
            file.unlink()
    assert Cluster.open(f"{root}/{PLACES[2]}").cluster_id == cluster.cluster_id


def test_each_root_may_have_credentials_of_its_own():
    """In any order of the list, as they go by the buckets."""
    config = Config.from_properties({"storage.cluster.aws_region": "eu", "storage.cluster@two.aws_region": "us"})
    for uris in (["s3://one/c", "s3://two/c", "gs://three/c"], ["gs://three/c", "s3://two/c", "s3://one/c"]):
        parts = storage_root(",".join(uris), "cluster", config).parts
        assert {part.uri: part.options["AWS_REGION"] for part in parts} == {
            "s3://one/c": "eu", "s3://two/c": "us", "gs://three/c": "eu",
        }  # fmt: skip


def test_a_process_goes_on_that_slept_while_all_roots_were_replaced(cluster, root):
    sleeper = cluster
    change(sleeper, "1")
    for number, place in enumerate(PLACES):
        shutil.rmtree(Path(root, place))
        Path(root, place).mkdir()
        opened = Cluster.open(uri(root))
        assert RootChanges(opened).replace(f"{root}/{place}", f"{root}/{place}")
        change(opened, f"of {number}")
    sleeper.configs.refresh()
    assert [*sleeper.configs.configs.values()] == [{"background.threads": "of 2"}]
    change(sleeper, "2")
    assert [*Cluster.open(uri(root)).configs.configs.values()] == [{"background.threads": "2"}]


def test_the_table_cluster_gets_checkpoints_as_its_commits_make_tables(cluster):
    cluster.maintain()
    for number in range(CHECKPOINT_COMMITS):
        MemberTable.open_or_create(cluster.root, f"group-{number}")
    cluster.maintain()
    for part in cluster.root.parts:
        assert newest_checkpoint(part.child(CLUSTER.name)) >= CHECKPOINT_COMMITS
