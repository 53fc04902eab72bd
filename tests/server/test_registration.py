"""A broker's registration: epochs, heartbeats, the state of its storage, and fencing."""

import time
from types import SimpleNamespace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentBrokerRootException,
    KafkaStorageException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.broker_registration import Liveness, LogIdentity
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.server.registration import Registration, epoch_seen
from lakelog.replication.storage.delta.commit import NONCE
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerDirectory, BrokerTable
from tests.registrations import folder_of
from tests.storage.logs import P0, fill, lead, new_log


def log(table_id="log", version=5, commits=None, checkpoint=None):
    """A log by what a registration looks at: its commits, "a" to "f" of the versions 0 to 5 if nothing else is said."""
    known = {v: "abcdefghi"[v] for v in range(version + 1)} if commits is None else commits
    return SimpleNamespace(
        table_id=table_id, current=lambda: SimpleNamespace(version=version), root=LogFiles(known, checkpoint),
        is_of_older_generation=False,
    )  # fmt: skip


class LogFiles:
    """The files of a log's `_delta_log`."""

    def __init__(self, commits, checkpoint):
        self.files = {commit_name(v): f'{{"commitInfo": {{"{NONCE}": "{told}"}}}}' for v, told in commits.items()}
        self.names = [f"{checkpoint:020d}.checkpoint.parquet"] if checkpoint is not None else []

    def read(self, name):
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name].encode()

    def read_stamped(self, name):
        return self.read(name), None

    def child(self, _):
        return SimpleNamespace(list=lambda: [*self.names, *(name.partition("/")[2] for name in self.files)])


@pytest.fixture
def process(root):
    """Makes a process of broker 1, registered with a log or not at all."""
    cluster = StorageRoot.of(root).child("cluster")

    def make(given=None):
        table = BrokerTable.open_or_create(cluster, 1)
        made = Registration(table, StorageRoot.of("/1"), Config(broker_id=1))
        if given:
            made.register(given)
        return made

    return make


def row(registration):
    registration.table.refresh()
    found = registration.table.registration
    return found.broker_epoch, found.storage_error, found.log_version, found.log_epoch


def test_ol_02_each_heartbeat_has_the_storage_error(process):
    broker = process(log())
    broker.storage_error = "the disk is gone"
    broker.beat(None)
    assert row(broker) == (1, "the disk is gone", 5, 1)
    broker.storage_error = None
    broker.beat(LogIdentity("log", 9, "j"))
    assert row(broker) == (1, None, 9, 1)
    assert broker.table.registration.log == ("log", 9, "j")


FOUND = {
    "as it was": (log(), False),
    "with more, as producers append while a broker is away": (log(version=8), False),
    "an older one": (log(version=4), True),
    "another one": (log("another"), True),
    "its tail was lost, and the versions were used again": (log(version=6, commits={4: "e", 5: "x", 6: "y"}), True),
    "cleaned up, by its broker alone": (log(version=8, commits={7: "h", 8: "i"}, checkpoint=7), False),
    "a commit is gone that no checkpoint has": (log(version=8, commits={7: "h", 8: "i"}, checkpoint=4), True),
}


@pytest.mark.parametrize("case", FOUND)
def test_ol_02_bc_01_li_04_a_broker_whose_storage_works_again_gets_a_new_broker_epoch(process, case):
    found, was_lost = FOUND[case]
    broker = process(log())
    broker.storage_error = "the disk is gone"
    broker.register(found)
    assert row(broker) == (2, None, found.current().version, 2 if was_lost else 1)


def test_li_04_the_epoch_of_a_lost_log_is_kept_over_any_number_of_registrations(process):
    """The registration has the epoch of the loss. Later registrations keep it."""
    said = [row(process(found))[3] for found in (log(), log("B"), log("B"), log("B", 8), log("C"), log("C"))]
    assert said == [1, 2, 2, 2, 5, 5]


def test_li_04_a_commit_without_an_id_does_not_prove_a_lost_log(process):
    """The first commit of a table, or one that could not be read when the broker looked."""
    process(log(version=0, commits={0: ""}))
    assert row(process(log(version=1, commits={0: "a", 1: "b"})))[3] == 1


def test_li_04_a_log_keeps_its_identity_after_appends_and_a_clean_up(process, root):
    home = StorageRoot.of(root).child("a log")
    made = new_log(home)
    lead(made, P0, epoch=0)
    process(made)
    fill(made, P0, 1, 1, 1)
    assert row(process(ReplicaLog.open(home)))[3] == 1
    last = commit_name(last_version(home))
    home.delete(last)
    assert row(process(ReplicaLog.open(home)))[3] == 3
    fill(ReplicaLog.open(home), P0, 1)
    assert row(process(ReplicaLog.open(home)))[3] == 3


def test_li_04_a_log_at_an_older_version_is_registered_as_lost(process, root):
    """What it has seen since its last heartbeat counts, too."""
    home = StorageRoot.of(root).child("a log")
    made = new_log(home)
    lead(made, P0, epoch=0)
    broker = process(made)
    made.claim(1)
    fill(made, P0, 1, 1)
    seen = made.identity
    home.delete(commit_name(seen.version))
    with pytest.raises(InconsistentBrokerRootException, match=f"version {seen.version} is gone"):
        made.refresh()
    assert made.identity == seen
    broker.beat(made.identity)
    broker.register(ReplicaLog.open(home))
    assert row(broker)[3] == 2


@pytest.mark.parametrize("lost", [False, True])
def test_ol_02_a_process_that_starts_without_storage_registers_the_error_under_a_new_epoch(process, lost):
    process(log())
    if lost:
        process(log("another"))
    broker = process()
    broker.register_without_storage("the disk is gone")
    assert row(broker) == (2 + lost, "the disk is gone", 5, 1 + lost)
    broker.beat(None)
    assert row(broker)[:2] == (2 + lost, "the disk is gone")


def come_back(broker):
    broker.register(log())


ACTS = [
    pytest.param(lambda broker: broker.beat(None), id="heartbeat"),
    pytest.param(lambda broker: broker.check_not_fenced(), id="look"),
    pytest.param(come_back, id="return"),
    pytest.param(lambda broker: broker.shutting_down(None), id="shutdown"),
]


@pytest.mark.parametrize("act", ACTS)
def test_bc_01_ol_02_a_process_that_waits_for_storage_is_fenced_by_a_newer_one(process, act):
    older = process(log())
    newer = process(log())
    with pytest.raises(StaleBrokerEpochException, match="1 is fenced: a newer process has registered under epoch 2"):
        act(older)
    newer.beat(LogIdentity("log", 7, "h"))
    assert row(newer) == (2, None, 7, 1)


@pytest.mark.parametrize("act", ACTS)
def test_bc_01_a_process_whose_broker_was_unregistered_is_fenced_and_names_the_reason(process, root, act):
    frozen = process(log())
    directory = BrokerDirectory(StorageRoot.of(root).child("cluster"))
    directory.refresh()
    assert directory.unregister(1, {"who": "test"})
    with pytest.raises(StaleBrokerEpochException, match="epoch 1 is fenced: the broker was unregistered"):
        act(frozen)


@pytest.mark.parametrize("act", ACTS)
def test_bc_01_a_registration_whose_answer_was_lost_is_recognised_by_its_incarnation(process, monkeypatch, act):
    """The commit lands without an answer. At its next write the process finds its own row."""
    broker = process(log())
    with monkeypatch.context() as patched:
        patched.setattr(BrokerTable, "register", unreachable_after(BrokerTable.register))
        with pytest.raises(KafkaStorageException):
            broker.register(log())
    act(broker)
    assert row(broker)[0] == 2 + (act is come_back)


def unreachable_after(register):
    def patched(*args):
        register(*args)
        raise KafkaStorageException("timed out")

    return patched


@pytest.mark.parametrize("beats", [0, 2])
def test_bc_01_two_processes_that_register_at_once_get_different_epochs(process, beats):
    process(log())
    one, other = process(), process()
    decided = []

    def register_meanwhile(_):
        if not decided:
            decided.append(other.register(log()))
            for _ in range(beats):
                other.beat(None)

    one.table.update = interrupted(one.table.update, register_meanwhile)
    assert (one.register(log()), decided) == (3, [2])
    with pytest.raises(StaleBrokerEpochException):
        other.beat(None)


def interrupted(update, meanwhile):
    def updates(cause, change, *given):
        def decides(rows):
            made = change(rows)
            meanwhile(rows)
            return made

        return update(cause, decides, *given)

    return updates


def test_li_04_a_broker_with_a_storage_error_is_not_alive_until_the_error_ends(process):
    broker, liveness, seen = process(log()), Liveness(6000, time.monotonic), []
    for error in (None, "the disk is gone", None):
        broker.storage_error = error
        broker.beat(None)
        found = {1: broker.table.registration}
        seen.append((liveness.observe(found), liveness.leaving(found)))
    assert seen == [({1}, set()), (set(), set()), ({1}, set())]


def test_bc_01_a_broker_whose_row_was_deleted_registers_above_all_epochs_in_other_tables(process, root, caplog):
    """The log and the metadata have its epochs. With a lower one it would be refused, or taken for its old process."""
    made = new_log(StorageRoot.of(root).child("a log"))
    made.claim(5)
    partitions = [PartitionRegistration("t", "id", n, (1, 2), 2, 0, (1, 2), isr_epochs={1: n, 2: 99}) for n in (3, 7)]
    assert epoch_seen(1, made, []) == 5
    assert epoch_seen(1, made, partitions) == 7
    assert epoch_seen(3, log_without_claim(root), partitions) == 0
    broker = process()
    assert broker.register(log(), 7) == 8
    assert row(broker) == (8, None, 5, 8)
    assert "broker 1: its registration is gone; it registers anew under epoch 8" in caplog.text
    assert broker.register(log(), 7) == 9


def log_without_claim(root):
    return new_log(StorageRoot.of(root).child("another log"))


@pytest.mark.parametrize("harm", ["its row is torn", "no table is left"])
def test_bc_01_the_error_of_an_unreadable_registration_names_the_remedy(process, root, harm):
    process(log())
    folder = folder_of(StorageRoot.of(root).child("cluster"), 1)
    if harm == "its row is torn":
        (name,) = [name for name in folder.list() if name.endswith(".parquet")]
        folder.write(name, b"PAR1")
    else:
        folder.delete_folder()
        folder.child("_delta_log").create_folder()
        folder.child("_delta_log").write("left over", b"")
    with pytest.raises(CorruptRecordException, match=r"the registration of broker 1 cannot be read: .*") as raised:
        process()
    assert f"Move the folder {folder.uri} away and start the broker again" in str(raised.value)
    folder.delete_folder()
    assert row(process(log()))[0] == 1
