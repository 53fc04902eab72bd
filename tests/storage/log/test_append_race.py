"""Several processes append to one log: no offset is doubled or missing, and each writer's records stay in order."""

import pyarrow as pa
from deltalake import DeltaTable

from lakelog.replication.storage.delta.delta_log import CommitConflict, DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import read_records, write_segment
from lakelog.verification.bench.counting_store import counting_store
from tests.processes import race, wait_until
from tests.storage.logs import P0, facts, new_log, records, request, send

APPENDS, MAINTAIN_AT = 150, 40


def write(start, uri, writer, appends=APPENDS, options=None):
    """Appends of one record each, that says who wrote it and as which one; answers the offsets it was given, and how
    many commits it has lost."""
    log, commit, lost = ReplicaLog.open(StorageRoot.of(uri, options)), DeltaLog.commit, []

    def counted(*args, **named):
        try:
            return commit(*args, **named)
        except CommitConflict as error:
            lost.append(error)
            raise

    DeltaLog.commit = counted  # this process does nothing else
    start()
    given = []
    for number in range(appends):
        if options is None and number == appends // 2:
            wait_until(lambda: any(len(segment.headers) > 1 for segment in log.refresh().segments.values()), "a merge")
        wanted = request(P0, 1, sequence=number, producer_id=writer)
        (outcome,) = send(log, wanted, tables={P0: records(b"%d %d" % (writer, number))})
        assert isinstance(outcome, Appended), outcome
        assert not outcome.duplicate
        given.append(outcome.base_offset)
    return given, len(lost)


def maintain(log):
    """What a log's owner does in life: many small segments become one, and a checkpoint."""
    batches = log.refresh().partition(P0).batches
    small = [batch for batch in batches if len(log.current().segments[batch.segment].headers) == 1]
    if len(small) < MAINTAIN_AT:
        return 0
    rows = pa.concat_tables(read_records(log.root, batch.segment) for batch in small)
    merged = write_segment(log.root, 1, rows, [batch.header for batch in small])
    removed = tuple(log.current().segments[batch.segment] for batch in small)
    log.transact({"who": "owner", "why": "compaction"}, lambda _: LogChange((merged,), removed))
    DeltaTable(log.root.uri).create_checkpoint()
    return 1


def test_two_processes_append_300_times_to_one_log(root):
    """The owner of the log merges segments meanwhile, and disturbs nobody."""
    log, maintained = new_log(root, P0), []
    uri = log.root.uri
    given = race(write, (uri, 1), (uri, 2), timeout=300, meanwhile=lambda: maintained.append(maintain(log)))
    check(log, given, APPENDS)
    assert sum(maintained) >= 1, "half of the appends come after a merge"


def check(log, given, appends):
    """No offset is missing or doubled, and each writer's records are at the offsets that it was given, in order."""
    rows = log.read(P0, 0).select(["offset", "value"]).to_pylist()
    assert [row["offset"] for row in rows] == list(range(len(given) * appends))
    for writer, (offsets, _) in enumerate(given, 1):
        mine = [(row["offset"], row["value"]) for row in rows if row["value"].startswith(b"%d " % writer)]
        assert mine == [(offset, b"%d %d" % (writer, number)) for number, offset in enumerate(offsets)]
    assert sum(lost for _, lost in given) > 0, "they did not race"
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_four_processes_append_100_times_to_one_log_in_an_object_store(tmp_path):
    """The store is an S3 server in a process of its own."""
    with counting_store(tmp_path, {}) as (_, options):
        log = new_log(StorageRoot.of("s3://bucket/raced/log", options), P0)
        writers = [(log.root.uri, writer, 25, options) for writer in (1, 2, 3, 4)]
        check(log, race(write, *writers, timeout=300), 25)
