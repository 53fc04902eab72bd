"""Two processes that append to one log at once: no offset twice, none missing, each writer in its own order."""

from deltalake import DeltaTable

from replication.storage.append import Appended
from replication.storage.commit import last_version
from replication.storage.filesystem import StorageRoot
from replication.storage.replica_log import ReplicaLog
from tests.processes import race
from tests.storage.logs import P0, P1, facts, new_log, records, request, send

APPENDS, CHECKPOINT_EVERY = 500, 100


def write(start, uri, writer):
    """Appends of one record each, that says who wrote it and as which one; answers the offsets it was given."""
    log = ReplicaLog.open(StorageRoot.of(uri))
    start()
    given = []
    for number in range(APPENDS):
        wanted = request(P0, 1, sequence=number, producer_id=writer)
        (outcome,) = send(log, wanted, tables={P0: records(b"%d %d" % (writer, number))})
        assert isinstance(outcome, Appended), outcome
        assert not outcome.duplicate
        given.append(outcome.base_offset)
    return given


def test_two_processes_append_1000_times_to_one_log(root):
    """The owner of the log makes checkpoints meanwhile, as it does in life: they must not disturb the writers."""
    log, checkpoints = new_log(root, P0, P1), [1]

    def maintain():
        version = last_version(log.root)
        if version >= checkpoints[-1] + CHECKPOINT_EVERY:
            DeltaTable(log.root.uri).create_checkpoint()
            checkpoints.append(version)

    given = race(write, (log.root.uri, 1), (log.root.uri, 2), timeout=300, meanwhile=maintain)
    rows = log.read(P0, 0).select(["offset", "value"]).to_pylist()
    assert [row["offset"] for row in rows] == list(range(2 * APPENDS))
    for writer, offsets in enumerate(given, 1):
        mine = [(row["offset"], row["value"]) for row in rows if row["value"].startswith(b"%d " % writer)]
        assert mine == [(offset, b"%d %d" % (writer, number)) for number, offset in enumerate(offsets)]
        assert offsets != list(range(offsets[0], offsets[0] + APPENDS)), "they did not race"
    assert len(checkpoints) > 1
    assert facts(ReplicaLog.open(log.root)) == facts(log)
