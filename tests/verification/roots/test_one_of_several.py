"""Faults of one of three cluster roots."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from lakelog.jobs.cli.root_names import DISK, S3
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta import quorum_member
from lakelog.verification.roots.one_of_several import (
    AWAY,
    DELETED,
    EMPTIED,
    HANGING,
    described,
    lose_root,
    losses_that_end,
    put_new_root,
    root_numbered,
)
from lakelog.verification.roots.roots import STORES, LocalRoots

CONFIG = Config(lakelog_storage_timeout_ms=1000)
END = [*((DISK, by) for by in (AWAY, DELETED, EMPTIED)), *((S3, by) for by in (AWAY, HANGING))]


@pytest.fixture
def roots(tmp_path: Path, store: str) -> Iterator[LocalRoots]:
    found = STORES[store](tmp_path, 0, 3)
    with found.running():
        format_cluster(storage_root(found.uri("cluster"), "cluster", CONFIG), CONFIG)
        yield found


def change(roots: LocalRoots, value: str) -> None:
    configs = Cluster.open(roots.uri("cluster"), CONFIG).configs
    configs.change({Entity("brokers", "1"): {"n": value}}, {"who": "test"})


def values(uri: str) -> list[str]:
    return [configs["n"] for configs in Cluster.open(uri, CONFIG).configs.configs.values()]


@pytest.mark.parametrize("store", STORES)
def test_an_object_store_hangs_and_a_folder_does_not(roots: LocalRoots, store: str) -> None:
    assert [(store, by) for by in losses_that_end(root_numbered(roots, 1))] == [end for end in END if end[0] == store]
    with nullcontext() if store == S3 else pytest.raises(InvalidRequestException, match="a folder cannot hang"):
        lose_root(roots, 1, HANGING)


@pytest.mark.parametrize(("store", "by"), END)
@pytest.mark.parametrize("number", [1, 3])
def test_a_root_that_is_lost_comes_back_as_it_was(roots: LocalRoots, number: int, by: str) -> None:
    uri = lose_root(roots, number, by)
    assert roots.is_away(uri)
    with pytest.raises(InvalidRequestException, match="is away already"):
        lose_root(roots, number, by)
    change(roots, by)
    roots.bring_back(uri)
    assert not roots.is_away(uri)
    assert values(uri) == [by]


@pytest.mark.parametrize(("store", "by"), [*END, (S3, EMPTIED)])
def test_a_new_root_votes_in_the_place_of_a_lost_one(
    roots: LocalRoots, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum_member, "_CLEAR_SECONDS", 0.0)  # no other process relies on what it has read
    change(roots, "before")
    was = described(roots, 1, CONFIG).identity
    lose_root(roots, 1, by)
    assert described(roots, 1, CONFIG).identity is None
    uri = put_new_root(roots, 1, CONFIG)
    status = described(roots, 1, CONFIG)
    assert (status.has_vote, status.behind) == (True, 0)
    assert status.identity != was
    assert not roots.is_away(uri)
    lose_root(roots, 2, EMPTIED)
    change(roots, "after")
    assert values(uri) == ["after"]


def test_the_only_root_is_none_of_several(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestException, match="there is no cluster root 1 of several"):
        root_numbered(LocalRoots(tmp_path), 1)
