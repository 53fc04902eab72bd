"""The lease of the controller in an object store. A renewal looks for no commit, and loses to an election all the
same."""

import pytest

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.storage.delta.freshness import SharedCommits, VersionCache
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from tests.clock import monotonic_clock
from tests.looks import counted_store

RENEWAL_SECONDS = 6.0

clock = pytest.fixture(monotonic_clock)
store = pytest.fixture(counted_store)


@pytest.fixture
def root(store):
    return StorageRoot.of(f"{store.uri}/cluster")


@pytest.fixture
def lease(root):
    return ControllerLease.create(root)


def test_ce_02_a_renewal_reads_nothing_but_that_the_commit_before_it_is_still_there(store, lease, clock):
    held = lease.elect("one", None)
    for _ in range(3):
        clock.now += RENEWAL_SECONDS
        renewed, looks = store.faults.of(lambda held=held: lease.renew(held))
        assert (renewed.lease, looks) == (held.lease + 1, 1)
        held = renewed


def test_ce_02_a_renewal_loses_to_an_election_of_another_process(root, lease, clock, monkeypatch):
    held = lease.elect("one", None)
    clock.now += RENEWAL_SECONDS
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(VersionCache, "moved", lambda *_: None)
        elsewhere.setattr(SharedCommits, "add", lambda *_: None)
        other = ControllerLease.open(root)
        elected = other.elect("other", other.read())
    clock.now += RENEWAL_SECONDS
    with pytest.raises(ControllerMovedException, match="other was elected under epoch 2"):
        lease.renew(held)
    assert lease.read() == elected
