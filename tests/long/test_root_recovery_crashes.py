"""A recovery of the cluster root that dies at each of its writes, one after another."""

from tests.storage import test_root_recovery
from tests.storage.test_root_recovery import Lake


def test_a_crash_at_each_write_leaves_one_root_at_most_and_the_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(test_root_recovery, "STEP", 1)
    lake = Lake.made(tmp_path / "lake")
    test_root_recovery.test_a_crash_between_two_writes_leaves_one_root_at_most_and_the_command_goes_on(
        lake, tmp_path, monkeypatch
    )
