"""Signs of life at the roots of a quorum, and the heartbeats and the lease that they stand for."""

import json
import shutil
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import ControllerMovedException, KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta import cluster_quorum, root_requests
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit_format import newest_commit
from lakelog.replication.storage.delta.commit_publisher import CommitPublisher
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.quorum_member import FOLDER
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.tables.broker_table import BrokerDirectory, BrokerTable
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from tests.clock import monotonic_clock
from tests.hanging import Hanging, wait_for_late_requests

NAMES = "abc"
ROW = BrokerRegistration(1, "/data/broker-1", None, 1, -1, False, None, "log", 0)


@pytest.fixture
def folders(tmp_path):
    return {name: tmp_path / name for name in NAMES}


@pytest.fixture
def cluster(folders):
    format_cluster(storage_root(uris(folders), "cluster", Config()), Config())
    return root_at(folders)


def uris(folders, home="a"):
    return ",".join(str(folders[name]) for name in sorted(NAMES, key=lambda name: name != home))


def root_at(folders, home="a"):
    """A process whose home is this root."""
    return Cluster.open(uris(folders, home)).root


def registered(cluster, epoch=1):
    table = BrokerTable.open_or_create(cluster, 1)
    table.register(lambda _: BrokerRegistration(**{**ROW.__dict__, "broker_epoch": epoch}))
    return table


def sign(folders, name, table="brokers-1"):
    return Path(folders[name], FOLDER, "signs", f"{table}.json")


def voters(cluster, folders):
    """The names of the roots that vote, in the order in which all processes know them."""
    members = cluster.quorum.known.members
    uris = [members[root].root.uri for root in cluster.quorum.voters()]
    return [next(name for name in folders if str(folders[name]) == uri) for uri in uris]


def signed(cluster, folders, table="brokers-1"):
    """The numbers of the signs, by the names of the roots that have one."""
    wait_for_late_requests()
    there = {name: sign(folders, name, table) for name in voters(cluster, folders)}
    return {name: json.loads(path.read_bytes())["number"] for name, path in there.items() if path.exists()}


def beat_of(directory, max_staleness=0.0):
    directory.refresh(max_staleness)
    return directory.registrations[1].heartbeat


def test_a_heartbeat_without_changes_is_seen_everywhere_and_is_no_commit(cluster, folders):
    table, directory = registered(cluster), BrokerDirectory(root_at(folders, "c"))
    version, seen = table.version, [beat_of(directory)]
    for _ in range(3):
        found = table.heartbeat(1, "heartbeat", storage_error=None)
        seen.append(beat_of(directory, None))
        assert found.heartbeat == seen[-1]
    wait_for_late_requests()
    assert seen == sorted(set(seen))
    table.refresh()
    assert table.version == version
    assert signed(cluster, folders) == dict.fromkeys(voters(cluster, folders)[:2], 3)


def test_a_heartbeat_with_changes_is_a_commit(cluster, folders):
    table = registered(cluster)
    version = table.version
    table.heartbeat(1, "heartbeat", storage_error="broken")
    assert table.version == version + 1
    directory = BrokerDirectory(root_at(folders, "b"))
    directory.refresh()
    assert directory.registrations[1].storage_error == "broken"


def test_a_reader_reads_at_its_home_if_signs_are_written_there_and_else_at_the_first_root(cluster, folders):
    registered(cluster)
    first, second, third = voters(cluster, folders)
    for home, read in ((first, first), (second, second), (third, first)):
        reader = root_at(folders, home)
        assert reader.quorum.near_member(("brokers", "1")).root.uri == str(folders[read])


def test_signs_are_read_elsewhere_for_a_while_after_a_read_has_failed(cluster, folders, monkeypatch):
    registered(cluster)
    first, _, third = voters(cluster, folders)
    reader, plain = root_at(folders, third).quorum, LocalRoot.read

    def read(root, name):
        if root.uri.startswith(str(folders[first])):
            raise KafkaStorageException("does not answer")
        return plain(root, name)

    monkeypatch.setattr(LocalRoot, "read", read)
    assert reader.signs.number(("brokers", "1"), 1, 0.0) == 0
    assert reader.near_member(("brokers", "1")).root.uri != str(folders[first])


def test_a_sign_that_a_root_refuses_goes_to_the_others(cluster, folders):
    table = registered(cluster)
    table.heartbeat(1, "heartbeat")
    first, second, third = voters(cluster, folders)
    shutil.rmtree(folders[first] / FOLDER / "signs")
    table.heartbeat(1, "heartbeat")
    assert signed(cluster, folders) == {second: 2, third: 2}


def test_a_sign_waits_once_for_a_root_that_hangs(cluster, folders, monkeypatch):
    table = registered(cluster)
    table.heartbeat(1, "heartbeat")
    first, second, third = voters(cluster, folders)
    hanging, plain, asked = Hanging(), LocalRoot.put, []

    def put(root, name, content):
        asked.append(root.uri)
        return hanging() if root.uri.startswith(str(folders[first])) else plain(root, name, content)

    monkeypatch.setattr(LocalRoot, "put", put)
    table.heartbeat(1, "heartbeat")
    asked.clear()
    table.heartbeat(1, "heartbeat")
    hanging.let_go()
    assert {uri.split("/")[-3] for uri in asked} == {second, third}
    assert signed(cluster, folders) == {first: 1, second: 3, third: 3}


def test_a_reader_whose_home_the_broker_cannot_reach_asks_the_others(cluster, folders):
    directory = BrokerDirectory(root_at(folders, "a"))
    table = registered(cluster)
    first = beat_of(directory, None)
    shutil.rmtree(folders["a"] / FOLDER / "signs")  # its writes fail there
    table.heartbeat(1, "heartbeat")
    assert beat_of(directory, None) > first


def test_a_reader_that_no_majority_has_answered_asks_again_soon(cluster, folders, monkeypatch):
    """Else it takes the broker for dead, if it is the second question within the session time-out."""
    clock, table, names = monotonic_clock(monkeypatch), registered(cluster), ("brokers", "1")
    reader = root_at(folders, voters(cluster, folders)[0]).quorum
    table.heartbeat(1, "heartbeat")
    assert reader.signs.number(names, 1, 1.5) == 1
    shutil.rmtree(folders[voters(cluster, folders)[0]] / FOLDER / "signs")
    table.heartbeat(1, "heartbeat")

    def no_majority(*_):
        raise KafkaStorageException("no majority")

    clock.now += 4.0
    with monkeypatch.context() as patched:
        patched.setattr(ClusterQuorum, "at_majority", no_majority)
        assert reader.signs.number(names, 1, 1.5) == 1
    assert reader.signs.number(names, 1, 1.5) == 2


def test_without_a_majority_no_sign_moves_on(cluster, folders):
    table = registered(cluster)
    table.heartbeat(1, "heartbeat")
    wait_for_late_requests()
    for name in "bc":
        shutil.rmtree(folders[name] / FOLDER)
    for _ in range(3):
        with pytest.raises(KafkaStorageException, match="no majority of the 3 cluster roots has answered"):
            table.root.show_life(1)
    assert signed(cluster, folders) == {"a": 2}


@pytest.mark.parametrize("late", [b'{"epoch": 1, "number": 99}', b'{"epoch": 2, "number": 1}', b"torn"])
def test_a_late_sign_shows_no_life(cluster, folders, late):
    """Of an earlier process that was frozen, or of a request that was slow."""
    table = registered(cluster, 2)
    for _ in range(3):
        table.heartbeat(2, "heartbeat")
    wait_for_late_requests()
    directory = BrokerDirectory(root_at(folders, "b"))
    seen = beat_of(directory)
    for name in NAMES:
        sign(folders, name).write_bytes(late)
    assert beat_of(directory) == beat_of(directory, None) == seen


def test_an_emptied_root_gets_no_sign(cluster, folders):
    table = registered(cluster)
    cluster.quorum.flush()
    first, *others = voters(cluster, folders)
    shutil.rmtree(folders[first])
    folders[first].mkdir()
    table.heartbeat(1, "heartbeat")
    assert not list(folders[first].iterdir())
    assert signed(cluster, folders) == dict.fromkeys(others, 1)


def test_a_renewal_moves_the_lease_without_a_commit_and_an_election_ends_it(cluster, folders):
    lease, other = ControllerLease.open(cluster), ControllerLease.open(root_at(folders, "b"))
    held = lease.elect("one", None)
    seen = other.read()
    version, renewed = lease.version, lease.renew(held)
    wait_for_late_requests()
    assert lease.version == version
    assert other.watched(0.0) == renewed != seen
    assert other.elect("two", seen) is None  # it has been renewed since
    assert other.elect("two", other.read()) is not None
    with pytest.raises(ControllerMovedException, match="two was elected under epoch 2"):
        lease.renew(renewed)


def test_the_age_of_a_heartbeat_is_that_of_its_newest_sign(cluster):
    table = registered(cluster)
    commit = newest_commit(table.root)
    table.heartbeat(1, "heartbeat")
    assert newest_commit(table.root) != commit
    assert newest_commit(table.root)[1] >= commit[1]


def test_a_poll_finds_in_time_what_was_decided_and_published_nowhere(cluster, folders, monkeypatch):
    """Its writer has died after the votes."""
    reader = Cluster.open(uris(folders, "c")).lease
    lease = ControllerLease.open(cluster)
    monkeypatch.setattr(cluster.quorum, "_settle", lambda *_, **__: None)
    lease.update({"who": "test", "why": "elected"}, lambda _: [{"controller_id": "one", "controller_epoch": 1,
                                                                       "resigned": False}])  # fmt: skip
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    assert reader.watched(0.0).controller_id == "one"


def replace_all(folders):
    """An operator lets the roots d, e and f vote in place of a, b and c, which stay on."""
    for old, new in zip(NAMES, "def", strict=True):
        folders[new] = folders["a"].parent / new
        RootChanges(Cluster.open(uris(folders))).replace(str(folders[old]), str(folders[new]))


@pytest.mark.parametrize("learns", ["in time", "by a commit", "by a read", "by a poll"])
def test_signs_go_to_the_roots_that_vote_although_those_that_did_are_on(cluster, folders, monkeypatch, learns):
    table = registered(cluster)
    table.heartbeat(1, "heartbeat")
    replace_all(folders)
    if learns == "in time":
        monkeypatch.setattr(cluster_quorum, "_SIGNS_VOTERS_SECONDS", 0.0)
    elif learns == "by a commit":
        table.heartbeat(1, "heartbeat", storage_error="broken")
    elif learns == "by a poll":  # at its home, which votes no more
        table.refresh(0.0)
    else:
        table.refresh()
    number = table.heartbeat(1, "heartbeat").heartbeat - table.version
    there = [path for path in (sign(folders, name) for name in "def") if path.exists()]  # the last one may be late
    assert sum(json.loads(path.read_bytes())["number"] == number for path in there) >= 2


def test_who_votes_is_asked_once_in_a_while(cluster, monkeypatch):
    table, asked, plain = registered(cluster), [], ClusterQuorum.catch_up

    def catch_up(quorum, *words):
        asked.append(words)
        return plain(quorum, *words)

    table.heartbeat(1, "heartbeat")
    monkeypatch.setattr(ClusterQuorum, "catch_up", catch_up)
    for _ in range(5):
        table.heartbeat(1, "heartbeat")
    assert not asked


def move(folders, name, end=("", ".away")):
    Path(f"{folders[name]}{end[0]}").rename(f"{folders[name]}{end[1]}")


@pytest.mark.parametrize("missing", ["the table", "the registration"])
@pytest.mark.parametrize("max_staleness", [0.0, None])
def test_a_reader_whose_home_lacks_the_registration_of_a_broker_finds_it(
    cluster, folders, monkeypatch, missing, max_staleness
):
    directory = BrokerDirectory(root_at(folders, "c"))
    if missing == "the registration":
        BrokerTable.open_or_create(cluster, 1)
        cluster.quorum.flush()
    move(folders, "c")
    registered(cluster)
    cluster.quorum.flush()
    move(folders, "c", (".away", ""))
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    for _ in range(1 if max_staleness is None else 2):
        directory.refresh(max_staleness)
    assert directory.registrations.keys() == {1}


def test_a_process_that_wants_the_id_of_a_broker_finds_it_registered_although_its_home_does_not_know(cluster, folders):
    other = root_at(folders, "c")
    move(folders, "c")
    registered(cluster)
    cluster.quorum.flush()
    move(folders, "c", (".away", ""))
    assert BrokerTable.open_if_registered(other, 1).registration.broker_id == 1
    assert BrokerTable.open_if_registered(other, 2) is None


def test_a_sign_of_a_later_epoch_lets_its_reader_catch_up(cluster, folders, monkeypatch):
    registered(cluster)
    directory = BrokerDirectory(root_at(folders, "c"))
    directory.refresh(0.0)
    cluster.quorum.flush()
    move(folders, "c")
    table = registered(cluster, 2)
    cluster.quorum.flush()
    move(folders, "c", (".away", ""))
    monkeypatch.setattr(CommitPublisher, "bring_missing", lambda _: None)
    monkeypatch.setattr(root_requests, "start_thread", lambda run, _: run())
    monkeypatch.setattr(ClusterQuorum, "catch_up_now_and_then", lambda *_: None)
    table.heartbeat(2, "heartbeat")
    for _ in range(2):
        directory.refresh(0.0)
    assert directory.registrations[1].broker_epoch == 2
