"""`lakelog recover` of a cluster of which a majority of three cluster roots is lost, to one new root or to three; and a
backup of it."""

import shutil
from pathlib import Path

import pytest

from lakelog.replication.errors import InconsistentClusterIdException
from lakelog.replication.storage.cluster import storage_root
from lakelog.replication.storage.cluster_backup import read_backup, take_backup
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.schemas import GROUPS, METADATA, TOPICS
from lakelog.verification.roots import storage_faults
from tests.storage.test_root_recovery import CONFIG, Lake, check

REGIONS = ("north", "west", "south")


class SeveralRoots(Lake):
    """The cluster of `Lake` with three cluster roots."""

    def root(self, name):
        if name in ("cluster", "three"):
            return storage_root(
                ",".join(str(self.folder / f"{name}-{region}") for region in REGIONS), "cluster", CONFIG
            )
        return super().root(name)

    def regions(self, *names):
        return [self.folder / f"cluster-{name}" for name in names]


@pytest.fixture
def lake(tmp_path):
    return SeveralRoots.made(tmp_path / "lake")


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("lose", [shutil.rmtree, empty], ids=["deleted", "emptied"])
@pytest.mark.parametrize("to", ["new", "three"])
def test_a_cluster_whose_majority_of_roots_is_lost_is_recovered_to_one_root_or_to_three(lake, lose, to):
    for folder in lake.regions("north", "south"):
        lose(folder)
    recovery = lake.recovery(to=to)
    recovery.check_old_root()
    recovery.execute()
    cluster = check(lake, to)
    assert isinstance(cluster.root, QuorumRoot) == (to == "three")
    with pytest.raises(InconsistentClusterIdException, match="the recovery has ended"):
        lake.recovery(to=to)


def test_a_cluster_that_was_recovered_to_three_roots_goes_on_without_one(lake):
    for folder in lake.regions(*REGIONS):
        shutil.rmtree(folder)
    lake.recovery(to="three").execute()
    shutil.rmtree(lake.folder / "three-west")
    check(lake, "three")


@pytest.mark.parametrize("lost", REGIONS)
def test_a_cluster_that_has_a_majority_need_not_be_recovered(lake, lost):
    (folder,) = lake.regions(lost)
    shutil.rmtree(folder)
    with pytest.raises(InconsistentClusterIdException, match="is there, so it need not be recovered"):
        lake.recovery().check_old_root()


def test_roots_that_do_not_answer_may_still_be_in_use_elsewhere(lake):
    north, west = lake.regions("north", "west")
    shutil.rmtree(north)
    storage_faults.take_away(str(west))
    with pytest.raises(InconsistentClusterIdException, match=r"others may still use .*With --force"):
        lake.recovery().check_old_root()


def test_roots_that_come_back_after_a_recovery_are_refused(lake):
    north, south = lake.regions("north", "south")
    for folder in (north, south):
        shutil.move(folder, f"{folder}.away")
    lake.recovery(to="three").execute()
    for folder in (north, south):
        shutil.move(f"{folder}.away", folder)
    old = lake.opened("cluster")
    assert [lake.refuses(old, broker) for broker in (1, 2, 3)] == [True] * 3
    check(lake, "three")


def test_a_second_loss_is_recovered_too(lake):
    for folder in lake.regions(*REGIONS):
        shutil.rmtree(folder)
    lake.recovery(to="three").execute()
    for region in REGIONS[:2]:
        shutil.rmtree(Path(lake.folder, f"three-{region}"))
    recovery = lake.recovery()
    recovery.check_old_root()
    recovery.execute()
    check(lake, generation=2)


def test_a_backup_of_several_roots_is_taken_while_one_is_lost(lake):
    (folder,) = lake.regions("north")
    shutil.rmtree(folder)
    path = str(lake.folder / "backup.tar.gz")
    take_backup(lake.opened("cluster"), path)
    found = read_backup(path)
    assert [len(found.tables[table.name].rows) for table in (TOPICS, METADATA, GROUPS)] == [1, 1, 1]
    assert found.tables[TOPICS.name].source.uri == lake.root("cluster").uri
