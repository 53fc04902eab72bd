"""Producer, follower and a deposed leader race for one log while its role changes 100 times.

Every decision under a role loses to the commit that ends the role. Afterwards the test replays the log commit by
commit: nothing was appended under a fenced epoch, at another offset than the log's end, or twice.
"""

import dataclasses
from collections import Counter

from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, Role
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import replica_log
from lakelog.replication.storage.log.log_append import Appended, Fetched, append_as_follower
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_segment, write_segment
from lakelog.replication.storage.log.truncate import truncate_logs
from tests.processes import race, wait_until
from tests.storage.logs import P0, follow, header, log_rows, new_log, request, send

ROLE_CHANGES, COMMITS_BETWEEN = 100, 3
END = Role(ROLE_CHANGES, STOPPED)


def change_roles(start, uri):
    """The broker: leader under even epochs, follower under odd ones. It changes roles after each commit of others."""
    replica_log.LOG = dataclasses.replace(replica_log.LOG, commits_kept=None)  # the test reads all commits at the end
    log = ReplicaLog.open(StorageRoot.of(uri))
    start()
    for epoch in range(1, ROLE_CHANGES):
        version = log.become({P0: Role(epoch, LEADER if epoch % 2 == 0 else FOLLOWER)}, "test")
        wait_until(lambda v=version: log.refresh().version >= v + COMMITS_BETWEEN, f"commits under epoch {epoch}")
        if epoch % 20 == 0:  # checkpoints take time, in which the others add to what the next one has to read
            log.maintain()
    log.become({P0: END}, "test")
    return Counter()


def produce(start, uri, producer_id, max_staleness):
    """A producer that learns of a new epoch after `max_staleness` refusals: with many it is a leader deposed long ago.

    Sequences that were truncated or that it cannot be sure of are not used again: it takes a new id."""
    log = ReplicaLog.open(StorageRoot.of(uri))
    start()
    outcomes, sequence, epoch, refused = Counter(), 0, 0, 0
    while (role := log.current().partition(P0).role) != END:
        decided_at = log.current().version
        if refused >= max_staleness:
            epoch, refused = role.leader_epoch, 0
        (outcome,) = send(log, request(P0, 2, sequence, epoch, producer_id=producer_id))
        outcomes[type(outcome).__name__] += 1
        if isinstance(outcome, Appended):
            sequence += 2
            continue
        refused += 1
        if outcome.name == "OutOfOrderSequenceException":
            producer_id, sequence = producer_id + 10, 0
        else:
            await_commit(log, decided_at)
    return outcomes


def fetch(start, uri):
    """The fetcher: truncates once when it follows under a new epoch, then appends what it has copied, epoch after
    epoch."""
    log = ReplicaLog.open(StorageRoot.of(uri))
    start()
    outcomes, truncated_at = Counter(), -1
    while (state := log.current().partition(P0)).role != END:
        epoch, end, decided_at = state.role.leader_epoch, state.log_end, log.current().version
        if epoch % 2 == 1 and truncated_at != epoch:
            truncated_at = epoch
            truncate_logs(log, {P0: Truncation(epoch, end.offset // 4)}, "fetcher")
            outcomes["truncated"] += 1
            end = log.current().partition(P0).log_end
        following = header(P0, end.offset, end.offset + 2, epoch, previous=end.chain)
        copied = write_segment(log.root, 2, log_rows(P0, end.offset, 3, epoch), [following])
        (error,) = append_as_follower(log, [Fetched([copied], {P0: end.chain}, {P0: epoch})], "fetcher")
        outcomes["appended" if error is None else error.name] += 1
        if error is not None:
            await_commit(log, decided_at)
        log.refresh()
    return outcomes


def await_commit(log, decided_at):
    """Waits until the log is past the version of a refused decision."""
    wait_until(lambda: log.current().partition(P0).role == END or log.refresh().version > decided_at, "a commit")


def replay(log):
    """Yields every commit with the state before it and its new batches."""
    state = LogState(lambda _: None)
    for version in range(log.refresh().version + 1):
        commit = read_commit(log.root, version)
        added = [read_segment(log.root, file) for file in commit.adds]
        yield commit, state.partition(P0), [header for segment in added for header in segment.headers]
        state = state.after(commit, added)


def test_ep_06_nothing_lands_in_a_log_after_its_replica_was_told_to_follow_a_newer_leader(root):
    log = new_log(root, P0)
    uri = log.root.uri
    _, producer, deposed, follower = race(
        _run, (change_roles, uri), (produce, uri, 1, 1), (produce, uri, 2, 20), (fetch, uri), timeout=240
    )
    assert min(producer["Appended"], follower["appended"], follower["truncated"]) > ROLE_CHANGES / 10
    assert deposed["FencedLeaderEpochException"] > ROLE_CHANGES, "the deposed leader has not raced"
    kinds, sent = {}, Counter()
    for commit, before, headers in replay(log):
        for appended in headers if not commit.removes else ():
            assert (appended.leader_epoch, appended.base_offset) == (before.role.leader_epoch, before.log_end_offset)
            assert before.role.kind == (LEADER if appended.producer_id > 0 else FOLLOWER)
            kinds[appended.leader_epoch] = before.role.kind
            sent[appended.producer_id, appended.base_sequence] += appended.producer_id > 0
    assert max(sent.values()) == 1, "a batch was appended twice"
    assert len(kinds) > ROLE_CHANGES / 2, "most epochs have written"
    end = log.current().partition(P0)
    end.check(P0)
    assert ReplicaLog.open(log.root).current().partition(P0) == end
    follow(log, P0, epoch=ROLE_CHANGES - 1)
    assert log.refresh().partition(P0).role == END


def _run(start, target, *arguments):
    return target(start, *arguments)
