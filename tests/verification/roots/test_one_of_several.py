"""Faults of one of three cluster roots."""

from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.verification.roots.one_of_several import (
    EMPTIED,
    LOSSES,
    described,
    lose_root,
    put_new_root,
    root_numbered,
)
from lakelog.verification.roots.roots import LocalRoots

CONFIG = Config()


@pytest.fixture
def roots(tmp_path: Path) -> LocalRoots:
    found = LocalRoots(tmp_path, cluster_roots=3)
    format_cluster(storage_root(found.uri("cluster"), "cluster", CONFIG), CONFIG)
    return found


def change(roots: LocalRoots, value: str) -> None:
    Cluster.open(roots.uri("cluster")).configs.change({Entity("brokers", "1"): {"n": value}}, {"who": "test"})


def values(uri: str) -> list[str]:
    return [configs["n"] for configs in Cluster.open(uri).configs.configs.values()]


@pytest.mark.parametrize("by", LOSSES)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_root_that_is_lost_comes_back_as_it_was(roots: LocalRoots, number: int, by: str) -> None:
    uri = lose_root(roots, number, by)
    assert roots.is_away(uri)
    with pytest.raises(InvalidRequestException, match="is away already"):
        lose_root(roots, number, by)
    change(roots, by)
    roots.bring_back(uri)
    assert not roots.is_away(uri)
    assert values(uri) == [by]


@pytest.mark.parametrize("by", LOSSES)
def test_a_new_root_votes_in_the_place_of_a_lost_one(roots: LocalRoots, by: str) -> None:
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
