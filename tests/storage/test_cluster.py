"""Formats roots, and refuses wrong ones."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InconsistentClusterIdException,
    InvalidConfigurationException,
    KafkaStorageException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage import cluster as cluster_module
from lakelog.replication.storage.cluster import (
    Cluster,
    check_may_format,
    format_broker,
    format_cluster,
)
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_opening import WRITER_FEATURE
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_identity import check_apart, check_identity, read_identity
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.group_tables import MemberTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import CLUSTER, FORMAT_VERSION, OLDEST_FORMAT, QUORUM_FORMAT
from lakelog.verification.memory_root import MemoryStore


@pytest.fixture
def cluster(root):
    return StorageRoot.of(f"{root}/cluster")


@pytest.fixture
def broker(root):
    return StorageRoot.of(f"{root}/broker-1")


def identity(cluster_id="c", broker_id=1, version=FORMAT_VERSION):
    return {"cluster_id": cluster_id, "broker_id": broker_id, "format_version": version, "configs": []}


def register(cluster, broker_id, uri, shutting_down=False):
    row = BrokerRegistration(broker_id, uri, None, 1, -1, shutting_down, None, "log-id", 0)
    BrokerTable.open_or_create(cluster, broker_id).register(lambda _: row)


def test_a_cluster_root_has_its_tables_and_settings(cluster):
    cluster_id = format_cluster(cluster, Config.from_properties({"min.insync.replicas": 2, "num.replica.fetchers": 3}))
    opened = Cluster.open(cluster.uri)
    assert opened.cluster_id == cluster_id == read_identity(cluster)["cluster_id"]
    assert opened.config.num_replica_fetchers == 3
    assert (opened.metadata.partitions, opened.topics.topics, opened.refresh_brokers()) == ({}, {}, {})
    assert opened.producers.init_producer("a", "me").producer_epoch == 0
    assert cluster.list() == ["admin", "cluster", "configs", "controller", "groups", "metadata", "producers", "topics"]


def test_sessions_that_are_not_set_are_longer_in_an_object_store(cluster):
    with MemoryStore("bucket").opened() as store:
        bucket = StorageRoot.of(f"{store.uri}/cluster")
        for root, expected in ((cluster, (6000, 2000, 6000)), (bucket, (18000, 6000, 18000))):
            format_cluster(root, Config())
            found = Cluster.open(root.uri).config
            sessions = found.broker_session_timeout_ms, found.broker_heartbeat_interval_ms
            assert (*sessions, found.controller_session_timeout_ms) == expected
        late = Config.from_properties({"broker.heartbeat.interval.ms": 6000})
        assert Cluster.open(bucket.uri, late).config.broker_heartbeat_interval_ms == 6000
        with pytest.raises(InvalidConfigurationException, match=f"{cluster.uri}: .* is 6000, it must be below .*"):
            Cluster.open(cluster.uri, late)


def test_a_broker_root_has_its_tables(cluster, broker):
    cluster_id = format_cluster(cluster, Config())
    format_broker(broker, cluster_id, 1)
    check_identity(broker, cluster_id, 1)
    assert ReplicaLog.open(broker.child("log")).current().version == 0
    assert ReplicaTable.open(broker).replicas == {}
    assert broker.list() == ["cluster", "log", "replicas"]


def test_a_root_that_is_formatted_again_for_its_broker_stays_as_it_is(broker):
    format_broker(broker, "c", 1)
    table = ReplicaLog.open(broker.child("log")).table_id
    format_broker(broker, "c", 1)
    assert ReplicaLog.open(broker.child("log")).table_id == table


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("another", 1), ("c", 2)])
def test_a_root_of_another_broker_or_cluster_is_refused(broker, cluster_id, broker_id):
    format_broker(broker, "c", 1)
    message = f"belongs to broker 1 of cluster c, not to broker {broker_id} of cluster {cluster_id}"
    for refused in (format_broker, check_identity):
        with pytest.raises(InconsistentClusterIdException, match=message):
            refused(broker, cluster_id, broker_id)


def test_a_place_where_a_kill_has_left_a_probe_is_taken(cluster):
    cluster.write("_probe-1", b"first")
    format_cluster(cluster, Config())
    assert Cluster.open(cluster.uri).topics.topics == {}


def test_a_root_that_holds_something_else_is_refused_and_left_alone(cluster):
    cluster.write("thesis.doc", b"x")
    for refused in (lambda: format_cluster(cluster, Config()), lambda: format_broker(cluster, "c", 1)):
        with pytest.raises(
            InconsistentClusterIdException, match=r"must be empty to be formatted, it holds thesis\.doc"
        ):
            refused()
    assert cluster.list() == ["thesis.doc"]


@pytest.mark.parametrize("owner", ["cluster c", "broker 1 of cluster c"])
def test_a_root_is_not_made_a_cluster_again_and_says_whose_it_is(cluster, broker, owner):
    if owner == "cluster c":
        owner, root = f"cluster {format_cluster(cluster, Config())}", cluster
    else:
        format_broker(root := broker, "c", 1)
    for refused in (lambda: format_cluster(root, Config()), lambda: check_may_format(root)):
        with pytest.raises(InconsistentClusterIdException, match=f"{root.uri}: is the root of {owner} already, and"):
            refused()


@pytest.mark.parametrize("version", [OLDEST_FORMAT - 1, QUORUM_FORMAT + 1])
def test_another_format_is_refused(broker, version):
    StateTable.create_at(broker.child("cluster"), CLUSTER, [identity(version=version)])
    known = f"knows {OLDEST_FORMAT} to {QUORUM_FORMAT}$"
    with pytest.raises(InconsistentClusterIdException, match=f"has format {version}.* {known}"):
        check_identity(broker, "c", 1)


def protocols(*roots):
    """The versions of Delta's protocol and the features of every table below some roots, by its folder's name."""
    found = {path.parent for root in roots for path in Path(root.uri).rglob("_delta_log")}
    tables = {path: DeltaTable(path).protocol() for path in found}
    return {
        str(path.relative_to(Path(roots[0].uri).parent)): (
            p.min_reader_version,
            p.min_writer_version,
            p.writer_features,
        )
        for path, p in tables.items()
    }


def every_table(cluster, broker):
    opened = Cluster.open(cluster.uri)
    opened.format_broker(1, broker.uri)
    BrokerTable.open_or_create(opened.root, 1)
    MemberTable.open_or_create(opened.root, "g")
    return protocols(cluster, broker)


def test_no_other_tool_writes_a_table_but_the_one_that_older_versions_read_first(cluster, broker):
    format_cluster(cluster, Config())
    found = every_table(cluster, broker)
    plain = {name for name, protocol in found.items() if protocol == (1, 2, None)}
    assert plain == {"cluster/cluster", "broker-1/cluster"}
    assert {found[name] == (1, 7, ["invariants", WRITER_FEATURE]) for name in found.keys() - plain} == {True}
    assert {"cluster/metadata", "cluster/brokers/1", "broker-1/log", "broker-1/replicas"} <= found.keys() - plain


def test_a_cluster_of_the_older_format_stays_one_that_older_versions_read(cluster, broker):
    format_cluster(replace(cluster, admits_writers=True), Config())
    found = every_table(cluster, broker)
    assert len(found) == 13
    assert set(found.values()) == {(1, 2, None)}
    assert {read_identity(root, None)["format_version"] for root in (cluster, broker)} == {OLDEST_FORMAT}


@pytest.mark.parametrize("is_there", [False, True])
def test_only_a_folder_that_is_empty_is_to_be_formatted(root, is_there):
    folder = StorageRoot.of(root).child("none")
    if is_there:
        folder.create_folder()
    why = "the folder is empty" if is_there else "nothing is there"
    match = (
        f"^there is no cluster at {root}/none: {why}. Check that it is mounted there, that the URI is right, "
        f"and whether somebody has moved it. For a new cluster only: `lakelog format --cluster {root}/none`$"
    )
    with pytest.raises(InconsistentClusterIdException, match=match):
        Cluster.open(folder.uri)


@pytest.mark.parametrize("is_there", [False, True])
def test_no_new_cluster_is_offered_where_brokers_roots_tell_of_an_old_one(root, is_there):
    cluster, others = StorageRoot.of(f"{root}/cluster"), [StorageRoot.of(f"{root}/elsewhere/4")]
    if is_there:
        cluster.create_folder()
    check_may_format(cluster, others)
    for number, uri in enumerate([*(f"{root}/broker-{n}" for n in range(7)), others[0].uri]):
        format_broker(StorageRoot.of(uri), "old", number)
    told = f"cluster old has its brokers' roots at {root}/broker-0, .*, {root}/broker-4 and "
    with pytest.raises(InconsistentClusterIdException, match=f"there is no cluster at .*: {told}2 more$") as error:
        Cluster.open(cluster.uri)
    assert "lakelog format" not in str(error.value)
    with pytest.raises(InconsistentClusterIdException, match=f"no new cluster is made here, as {told}3 more. Check"):
        check_may_format(cluster, others)


def test_a_folder_that_holds_something_else_is_not_to_be_formatted(root):
    folder = StorageRoot.of(root).child("photos")
    folder.write("summer.jpg", b"")
    with pytest.raises(
        InconsistentClusterIdException, match=r"there is no cluster at .*: the folder holds summer\.jpg$"
    ):
        Cluster.open(folder.uri)


def test_a_file_is_no_root(root):
    StorageRoot.of(root).write("plain", b"")
    told = f"^{root}/plain: is a file, and a root is a folder$"
    for refused in (Cluster.open, lambda uri: format_cluster(StorageRoot.of(uri), Config())):
        with pytest.raises(KafkaStorageException, match=told):
            refused(f"{root}/plain")


def test_a_broker_without_its_root_is_told_how_to_make_it(root):
    makes = "For a new root only: `lakelog format --cluster URI --broker-id 2 --root .*/b`"
    told = f"^there is no root of broker 2 at .*: nothing is there. Check that it is mounted there, .*. {makes}$"
    with pytest.raises(InconsistentClusterIdException, match=told):
        check_identity(StorageRoot.of(f"{root}/b"), "c", 2)


@pytest.mark.parametrize("place", ["inside", "deep/er/inside"])
def test_a_root_inside_another_root_is_refused(cluster, broker, place):
    cluster_id = format_cluster(cluster, Config())
    format_broker(broker, cluster_id, 1)
    for outer, owner in ((cluster, f"cluster {cluster_id}"), (broker, f"broker 1 of cluster {cluster_id}")):
        inner = outer.child(place)
        told = f"^{inner.uri}: lies in {outer.uri}, the root of {owner}; give each root a folder of its own$"
        with pytest.raises(InconsistentClusterIdException, match=told):
            format_cluster(inner, Config())
        with pytest.raises(InconsistentClusterIdException, match=told):
            format_broker(inner, cluster_id, 2)
        assert inner.list() == []


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (
            "/lake/one",
            "/lake/one: is the root of broker 1; give each root a folder of its own, or first shut broker 1 down and "
            "delete its root, or start it at another root$",
        ),
        ("/lake/one/more", "/lake/one/more: lies in /lake/one, the root of broker 1; "),
        ("/lake", "/lake: contains /lake/one, the root of broker 1; "),
        ("/inside", "/inside: lies in .*/cluster, the root of the cluster; "),
    ],
)
def test_a_root_that_is_not_apart_from_those_that_are_registered_is_refused(cluster, root, place, told):
    """Also where the other root is not there at the moment."""
    format_cluster(cluster, Config())
    at = f"{root}{place}" if place.startswith("/lake") else f"{cluster.uri}{place}"
    register(cluster, 1, f"{root}/lake/one")
    with pytest.raises(InconsistentClusterIdException, match=told.replace("/lake", f"{root}/lake")) as raised:
        Cluster.open(cluster.uri).format_broker(2, at)
    assert str(raised.value).startswith(f"{at}: ")
    assert not Path(f"{root}/lake").exists()
    assert Cluster.open(cluster.uri).format_broker(2, f"{root}/lake/one-more").uri == f"{root}/lake/one-more"


def test_a_broker_that_has_shut_down_leaves_its_place_when_its_root_is_gone(cluster, broker):
    format_cluster(cluster, Config())
    opened = Cluster.open(cluster.uri)
    opened.format_broker(1, broker.uri)
    register(cluster, 1, broker.uri, shutting_down=True)
    with pytest.raises(InconsistentClusterIdException, match=r"belongs to broker 1 of"):
        opened.format_broker(2, broker.uri)
    with pytest.raises(InconsistentClusterIdException, match=r"the root of broker 1; .* first shut broker 1 down"):
        opened.format_broker(2, broker.child("inside").uri)
    broker.delete_folder()
    assert opened.format_broker(2, broker.uri) == broker
    check_identity(broker, opened.cluster_id, 2)


def test_a_root_that_cannot_be_read_keeps_its_place(cluster, broker, monkeypatch):
    format_cluster(cluster, Config())
    register(cluster, 1, broker.uri, shutting_down=True)
    real = cluster_module.is_formatted

    def fails(root):
        if root == broker:
            raise KafkaStorageException("no route to the store")
        return real(root)

    monkeypatch.setattr(cluster_module, "is_formatted", fails)
    with pytest.raises(InconsistentClusterIdException, match=r"lies in .*, the root of broker 1"):
        Cluster.open(cluster.uri).format_broker(2, broker.child("inside").uri)


def test_a_broker_stays_where_it_is_registered_also_inside_another_root(cluster):
    """Older versions let roots lie in one another, and its disk may have been replaced."""
    format_cluster(cluster, Config())
    place = cluster.child("broker-1")
    register(cluster, 1, place.uri)
    opened = Cluster.open(cluster.uri)
    with pytest.raises(InconsistentClusterIdException, match=r"lies in .*, the root of the cluster"):
        opened.format_broker(2, cluster.child("broker-2").uri)
    assert opened.format_broker(1, place.uri) == place
    check_identity(place, opened.cluster_id, 1)


def test_a_root_inside_another_root_is_refused_through_a_link(cluster, root):
    format_cluster(cluster, Config())
    register(cluster, 1, f"{root}/one")
    cluster.child("deep").create_folder()
    links = {f"{root}/a": cluster.uri, f"{root}/b": cluster.child("deep").uri, f"{root}/c": f"{root}/one"}
    for link, target in links.items():
        os.symlink(target, link)
    for link, owner in zip(links, ("the cluster", "the cluster", "broker 1"), strict=True):
        with pytest.raises(InconsistentClusterIdException, match=f"^{link}/in: lies in .*, the root of {owner}; "):
            Cluster.open(cluster.uri).format_broker(2, f"{link}/in")
    with pytest.raises(InconsistentClusterIdException, match=f"^{root}/b/in: lies in {cluster.uri}, the root of clus"):
        format_broker(StorageRoot.of(f"{root}/b/in"), "c", 2)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([identity(version=QUORUM_FORMAT + 1)], rf"has format {QUORUM_FORMAT + 1}, this version .*"),
        ([], "is not finished: run `lakelog recover` again if it was begun here, else empty .* and format again"),
    ],
)
def test_a_root_inside_a_root_of_another_format_or_a_half_formatted_one_is_refused(broker, rows, told):
    StateTable.create_at(broker.child("cluster"), CLUSTER, rows)
    inner = broker.child("in")
    match = rf"^{inner.uri}: lies in {broker.uri}, the root of a cluster or a broker \({told}\); give each root"
    with pytest.raises(InconsistentClusterIdException, match=match):
        format_broker(inner, "c", 2)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ("s3://bucket/a/b", "s3a://bucket/a", "lies in s3a://bucket/a,"),
        ("abfss://box@account/a", "abfs://box@account/a/b", "contains abfs://box@account/a/b,"),
        ("abfs://box@account/a", "abfss://box@account/a", "is"),
        ("/lake/one", "/", "lies in /,"),
        ("/", "/lake/one", "contains /lake/one,"),
    ],
)
def test_roots_are_compared_by_where_they_are(one, other, place):
    with pytest.raises(InconsistentClusterIdException, match=f"^{one}: {place} the root of x; "):
        check_apart(StorageRoot.of(one), other, "x")
    check_apart(StorageRoot.of("s3://bucket/ab"), "s3a://bucket/a", "x")
    check_apart(StorageRoot.of("/lake/ones"), "/lake/one", "x")


def test_a_root_that_was_formatted_inside_another_one_before_is_left_as_it_is(cluster):
    """Its broker must still start."""
    inner = cluster.child("b")
    format_broker(inner, "c", 1)
    StateTable.create_at(cluster.child("cluster"), CLUSTER, [identity(broker_id=-1)])
    format_broker(inner, "c", 1)
    check_identity(inner, "c", 1)


@pytest.fixture
def without_rights():
    """Root may read everything, so the test runs as another user."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.parametrize("folder", ["", "cluster", "cluster/_delta_log"])
def test_a_root_that_may_not_be_read_is_not_to_be_formatted(cluster, request, folder):
    """delta-rs reports such a table as missing."""
    format_cluster(cluster, Config())
    Path(cluster.uri, folder).chmod(0)
    request.getfixturevalue("without_rights")
    with pytest.raises(KafkaStorageException, match=f"^{cluster.uri}/.*: cannot be read: .*Permission denied"):
        Cluster.open(cluster.uri)


def test_a_root_whose_formatting_was_cut_short_is_refused(cluster, broker, monkeypatch):
    """The identity is written last, so a half-formatted root has none."""
    monkeypatch.setattr(StateTable, "update", lambda *_: (_ for _ in ()).throw(KafkaStorageException("disk full")))
    for refused in (lambda: format_cluster(cluster, Config()), lambda: format_broker(broker, "c", 1)):
        with pytest.raises(KafkaStorageException, match="disk full"):
            refused()
    monkeypatch.undo()
    for refused in (lambda: Cluster.open(cluster.uri), lambda: format_broker(broker, "c", 1)):
        with pytest.raises(InconsistentClusterIdException, match="is not finished"):
            refused()


def test_the_root_of_a_broker_is_no_cluster(broker):
    format_broker(broker, "c", 1)
    with pytest.raises(InconsistentClusterIdException, match="is the root of broker 1, no cluster"):
        Cluster.open(broker.uri)


def test_a_broker_is_found_by_its_registration(cluster, broker):
    format_cluster(cluster, Config())
    opened = Cluster.open(cluster.uri)
    with pytest.raises(BrokerNotAvailableException, match="broker 1 is not registered"):
        opened.broker_root(1)
    table = BrokerTable.open_or_create(cluster, 1)
    assert opened.refresh_brokers() == {}
    registration = BrokerRegistration(1, broker.uri, None, 1, -1, False, None, "log-id", 0)
    table.register(lambda _: registration)
    assert opened.broker_root(1) == broker
    table.heartbeat(1, "heartbeat")
    assert opened.refresh_brokers()[1].heartbeat == 2


def test_credentials_of_a_root_come_from_the_configuration(cluster):
    format_cluster(cluster, Config())
    opened = Cluster.open(cluster.uri, Config.from_properties({"storage.2.aws_region": "x", "storage.fsync": True}))
    root = opened.storage_of(2, "s3://bucket/b")
    assert (dict(root.options), root.fsync) == ({"AWS_REGION": "x"}, True)
    assert dict(opened.storage_of(3, "s3://bucket/b").options) == {}


@pytest.mark.parametrize("where", ["local", "s3"])
def test_a_store_that_takes_a_second_put_is_refused(broker, monkeypatch, where, request):
    """Two writers would both believe that they won, and one commit would be lost."""
    if where == "s3":
        broker = StorageRoot.of("s3://bucket/second-put", request.getfixturevalue("s3_options"))

    def over(root, name, content):
        root.put(name, content)
        return root.stamps([name])[0]

    monkeypatch.setattr(type(broker), "put_if_absent", over)
    with pytest.raises(InvalidConfigurationException, match=f"{broker.uri}: the store takes a second put"):
        format_broker(broker, "c", 1)
    assert broker.list() == []


def test_a_store_that_refuses_a_second_put_is_admitted_and_left_clean(broker):
    broker.create_folder()
    check_conditional_put(broker)
    assert broker.list() == []


def test_a_put_that_is_refused_because_its_answer_was_lost_does_not_count(broker, monkeypatch):
    broker.create_folder()
    real = LocalRoot.put_if_absent
    monkeypatch.setattr(LocalRoot, "put_if_absent", lambda *given: real(*given) and None)
    check_conditional_put(broker)
    assert broker.list() == []


@pytest.mark.parametrize("step", ["put_if_absent", "create_folder"])
def test_a_root_that_cannot_be_written_is_named(broker, monkeypatch, step):
    def refuse(*_):
        raise KafkaStorageException(f"{broker.uri}: Permission denied")

    monkeypatch.setattr(LocalRoot, step, refuse)
    with pytest.raises(KafkaStorageException, match=f"{broker.uri}: Permission denied"):
        format_broker(broker, "c", 1)
    assert broker.list() == []
