"""The roots of a cluster, which can be taken away and come back, wherever they are."""

from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.cluster import storage_root
from lakelog.verification.roots.roots import STORES


@pytest.mark.parametrize("store", STORES)
def test_a_root_that_is_taken_away_comes_back_as_it_was(store: str, tmp_path: Path) -> None:
    roots = STORES[store](tmp_path, 2)
    with roots.running():
        config = Config.from_properties({"lakelog.storage.timeout.ms": 1000})
        made = [storage_root(roots.uri(owner), owner, config) for owner in ("cluster", 1, 2)]
        for root in made:
            root.create_folder()
            root.put("file", b"all of it")
        roots.take_away(roots.uri(1))
        assert [roots.is_away(roots.uri(owner)) for owner in ("cluster", 1, 2)] == [False, True, False]
        with pytest.raises(KafkaStorageException):
            made[1].read("file")
        assert [root.read("file") for root in (made[0], made[2])] == [b"all of it"] * 2
        for _ in range(2):
            roots.bring_back(roots.uri(1))
            assert (roots.is_away(roots.uri(1)), made[1].read("file")) == (False, b"all of it")
