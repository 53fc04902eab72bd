"""Histories with three cluster roots, one of which breaks at a time, and the account that they keep of all votes."""

import json
from dataclasses import replace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import METADATA
from lakelog.verification.simulation.history_events import NO_FAULTS, Violation
from lakelog.verification.simulation.stack.breaks import StackSabotage
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.rates import (
    OTHERS_VOTE,
    ROOT_AWAY,
    ROOT_EMPTIED,
    ROOT_FAILS,
    ROOT_HANGS,
    ROOT_REPLACED,
    ROOT_RESTORED,
    Rates,
    drawn,
    drawn_with_roots,
)
from lakelog.verification.simulation.stack.root_sabotages import ROOT_SABOTAGES
from lakelog.verification.simulation.stack.schedules import voters
from lakelog.verification.simulation.stack.stack_history import run
from lakelog.verification.simulation.stack.stack_world import StackWorld
from lakelog.verification.simulation.stack.voting_roots import COUNT

SEEDS_THAT_CATCH = {
    "publishes_before_a_majority": 6,
    "proposes_its_own": 10,
    "reads_at_home": 6,
    "files_are_not_voted_on": 7,
    "known_roots_vote_too_early": 29,
}
SEEDS = 178, 188  # in the first one a root gets others, in the other one a root is replaced
# A broker that is down loses records while a root gets others; a vote lands late in a root that was replaced.
SEEDS_WITHOUT_FALSE_ALARM = 618, 850
TRIES = 20


@pytest.fixture
def world():
    with Changes() as changes:
        made = StackWorld(0, changes, Rates(cluster_count=COUNT))
        made.calm()
        yield made


def test_no_invariant_is_violated():
    kinds = set[str]()
    for seed in (*SEEDS, *SEEDS_WITHOUT_FALSE_ALARM):
        history = run(seed, cluster_count=COUNT)
        assert history.violation is None
        kinds |= history.faults.keys()
    assert kinds >= {OTHERS_VOTE, ROOT_REPLACED}


@pytest.mark.parametrize("name", ROOT_SABOTAGES)
def test_what_is_broken_is_caught(name):
    first = SEEDS_THAT_CATCH.get(name, 1)
    tries = range(first, first + TRIES)
    histories = (run(seed, sabotage=ROOT_SABOTAGES[name], cluster_count=COUNT).violation for seed in tries)
    caught = next(filter(None, histories), None)
    assert caught is not None
    assert caught.invariant != NO_FAULTS


@pytest.mark.parametrize("kind", [ROOT_AWAY, ROOT_FAILS, ROOT_HANGS, ROOT_EMPTIED, ROOT_RESTORED])
def test_the_cluster_goes_on_while_a_root_is_broken_and_after_it_was_mended(world, kind):
    uri = world.voting.uris[0]
    world.voting.back_up(uri)
    world.voting.break_root(uri, kind)
    assert world.clients[0].send({0: 1, 1: 1})
    world.voting.mend()
    assert world.voting.broken is None
    for _ in range(3):
        world.go_on()
    assert world.clients[0].send({0: 1})
    world.calm()
    world.voting.ledger.check()


@pytest.mark.parametrize("schedule", [voters.emptied_root, voters.restored_root_and_one_away])
def test_a_directed_history_finds_nothing_as_it_is_shipped(schedule):
    as_it_is = StackSabotage("nothing", lambda _: None, schedule)
    assert run(1, sabotage=as_it_is, cluster_count=COUNT).violation is None


def test_processes_do_not_reach_a_root_that_is_away_and_the_simulation_does(world):
    uri = world.voting.uris[1]
    with world.voting.without(uri):
        with world.acting(world.controllers[0]), pytest.raises(KafkaStorageException, match="no route to host"):
            StorageRoot.of(uri).list()
        assert StorageRoot.of(uri).list()
    with world.acting(world.controllers[0]):
        assert StorageRoot.of(uri).list()


def test_a_restored_root_has_another_identity_and_old_tables(world):
    uri, ledger = world.voting.uris[2], world.voting.ledger
    before = ledger._identity(uri)
    world.voting.back_up(uri)
    old = last_version(StorageRoot.of(uri).child(METADATA.name))
    world.cluster.metadata.put([replace(r, partition_epoch=9) for r in world.partitions().values()], {"who": "test"})
    world.voting.lose(uri, ROOT_RESTORED)
    assert ledger._identity(uri) not in (None, before)
    assert last_version(StorageRoot.of(uri).child(METADATA.name)) == old


def metadata(world, number):
    return f"{world.voting.uris[number]}/{METADATA.name}"


def test_the_account_refuses_a_commit_that_nobody_has_decided(world):
    version = last_version(StorageRoot.of(metadata(world, 0)))
    content = StorageRoot.of(metadata(world, 0)).read(commit_name(version))
    with pytest.raises(Violation, match="published_commits_are_decided"):
        world.store.put(f"{metadata(world, 1)}/{commit_name(version + 1)}", content)


def test_the_account_refuses_another_commit_of_a_version(world):
    version = last_version(StorageRoot.of(metadata(world, 0)))
    other = StorageRoot.of(metadata(world, 0)).read(commit_name(version - 1))
    with pytest.raises(Violation, match="published_commits_are_equal"):
        world.store.put(f"{metadata(world, 1)}/{commit_name(version)}", other)


def test_the_account_refuses_that_a_vote_changes_or_goes_without_a_seal(world):
    folder = f"{world.voting.uris[0]}/_quorum/{METADATA.name}"
    name = next(name for name in world.store.names(folder) if name.endswith(".json"))
    content = bytes(world.store.find(f"{folder}/{name}").content)
    with pytest.raises(Violation, match="votes_never_change"):
        world.store.put(f"{folder}/{name}", content)
    with pytest.raises(Violation, match="votes_are_deleted_after_their_seal"):
        world.store.delete(f"{folder}/{name}")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_account_refuses_a_ballot_that_falls_unless_its_root_was_replaced(world, is_replaced):
    uri, version = world.voting.uris[0], last_version(StorageRoot.of(metadata(world, 0)))
    folder = f"{uri}/_quorum/{METADATA.name}"
    voted = [name for name in world.store.names(folder) if name.startswith(f"{version:020d}-")]
    event = json.loads(bytes(world.store.find(f"{folder}/{voted[-1]}").content))
    event["ballot"] = [-1, "a"]
    put = f"{folder}/{version:020d}-{len(voted):06d}.json", json.dumps(event).encode()
    if is_replaced:
        world.voting.ledger._identity = lambda _: "another"
        world.store.put(*put)
    else:
        with pytest.raises(Violation, match="ballots_never_fall"):
            world.store.put(*put)


def test_the_account_refuses_two_commits_that_are_decided(world):
    """Each has the votes of two roots, under different ballots."""
    version = last_version(StorageRoot.of(metadata(world, 0)))
    for number in range(2):
        uri = world.voting.uris[number]
        folder = f"{uri}/_quorum/{METADATA.name}"
        voted = [name for name in world.store.names(folder) if name.startswith(f"{version:020d}-")]
        event = json.loads(bytes(world.store.find(f"{folder}/{voted[-1]}").content))
        event["ballot"] = [event["ballot"][0] + 1, "z"]
        event["commit"]["nonce"] = "another"
        put = f"{folder}/{version:020d}-{len(voted):06d}.json", json.dumps(event).encode()
        if number == 0:
            world.store.put(*put)
        else:
            with pytest.raises(Violation, match="one_commit_is_decided_a_version"):
                world.store.put(*put)


@pytest.mark.parametrize("has_begun", [True, False])
def test_only_what_was_begun_before_may_land_in_a_root_that_is_being_replaced(world, monkeypatch, has_begun):
    """A commit without the one before it. Others bring the root both, as it has no first commit either."""
    uri, (process, other), plain = world.voting.uris[2], world.controllers[:2], QuorumMember.clear
    table, refused = StorageRoot.of(metadata(world, 2)), []
    version = last_version(table)
    commit = table.path(commit_name(version)), table.read(commit_name(version))

    def clear(member):
        plain(member)
        with world.acting(process if has_begun else other):
            try:
                world.store.put(*commit)
            except Violation as violation:
                refused.append(violation.invariant)

    monkeypatch.setattr(QuorumMember, "clear", clear)
    with world.acting(process):
        world.voting.lose(uri, ROOT_EMPTIED)
        world.voting.note_step(process)  # the one after that in which the root was lost
        world.voting.mend()
    assert refused == ([] if has_begun else ["commits_are_published_in_order"])
    assert world.voting.ledger._identity(uri) is not None
    assert last_version(table) >= version


def test_only_histories_with_one_root_lose_it():
    for seed in range(1, 40):
        rates = drawn_with_roots(seed, COUNT)
        assert (rates.recovers, rates.cluster_roots, rates.cluster_count) == (0, 0, COUNT)
        assert drawn_with_roots(seed, 1) == drawn(seed)


def test_without_any_one_root_a_cluster_opens(world):
    expected = Cluster.open(world.voting.uri).metadata.snapshot()[1]
    for uri in world.voting.uris:
        with world.voting.without(uri), world.acting(world.controllers[0]):
            assert Cluster.open(world.voting.uri, Config()).metadata.snapshot()[1] == expected
