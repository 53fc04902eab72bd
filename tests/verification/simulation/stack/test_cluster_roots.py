"""Another cluster root lies at the address for a while, and a producer is copied."""

from collections import Counter
from dataclasses import replace

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.log.pieces import CopiedBatches
from lakelog.verification.memory_root import MemoryRoot
from lakelog.verification.simulation.stack import stack_history
from lakelog.verification.simulation.stack.breaks import StackSabotage
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.rates import (
    COPIED,
    EMPTY,
    LATE,
    LOST_TOGETHER,
    OLDER,
    OTHERS,
    OUTDATED,
)
from lakelog.verification.simulation.stack.schedules import identity
from lakelog.verification.simulation.stack.stack_history import run
from lakelog.verification.simulation.stack.stack_sabotages import ANY_ROOT
from lakelog.verification.simulation.stack.stack_world import StackWorld

KINDS = [OLDER, EMPTY, OTHERS]


@pytest.fixture
def world():
    """A world whose root was backed up before records were sent and the metadata moved."""
    with Changes() as changes:
        made = StackWorld(0, changes)
        made.calm()
        made.roots.back_up()
        moved = [replace(r, partition_epoch=r.partition_epoch + 1) for r in made.partitions().values()]
        made.cluster.metadata.put(moved, {"who": "test"})
        assert made.clients[0].send({0: 2, 1: 1})
        for _ in range(2):
            made.calm()
        yield made


def files(world):
    return {folder: dict(found) for folder, found in world.store.folders.items() if "/cluster" in folder}


@pytest.mark.parametrize("kind", KINDS)
def test_processes_see_the_other_root_and_the_simulation_sees_the_right_one(world, kind):
    before, partitions = files(world), world.partitions()
    world.roots.replace(kind)
    with world.acting(world.controllers[0]):
        assert files(world) != before
        with world.acting(None):
            assert files(world) == before
        assert files(world) != before
        world.cluster.root.write("a file", b"")
    assert world.partitions() == partitions
    world.roots.put_back()
    with world.acting(world.controllers[0]):
        assert files(world) == before


@pytest.mark.parametrize("kind", [EMPTY, OTHERS])
def test_processes_that_began_with_the_other_root_end_with_it(world, kind):
    first, second = world.controllers
    kept = second.begun
    world.roots.replace(kind)
    first.kill()
    for _ in range(2):
        world.run(first)
        world.run(second)
    world.roots.put_back()
    assert first.is_dead or not first.begun
    assert second.begun == kept
    assert not second.is_dead


def test_a_late_commit_to_the_other_root_never_lands_in_the_right_one(world, monkeypatch):
    before = files(world)
    world.roots.replace(OTHERS)
    monkeypatch.setattr(world.faults, "_choose", lambda _: LATE)
    world.faults.has_faults = True
    with world.acting(world.controllers[0]), pytest.raises(KafkaStorageException):
        world.cluster.root.child("metadata").put_if_absent("late", b"")
    world.faults.has_faults = False
    for _ in range(8):
        world.disasters.happen()
    world.roots.put_back()
    world.faults.land(all_of_them=True)
    assert files(world) == before


def test_records_that_were_sent_meanwhile_are_there_once_when_the_right_root_is_back(world):
    for kind in KINDS:
        world.roots.replace(kind)
        world.clients[1].send({0: 1, 1: 1}, 1000)
        world.go_on()
        world.roots.put_back()
    world.calm()
    stack_history.check(world)


def test_a_copied_producer_goes_on_under_the_sequences_of_the_original(world):
    (client, _) = world.clients
    copy = client.copied("producer-3")
    world.clients.append(copy)
    assert copy.send({0: 1})
    assert not client.send({0: 1})
    assert type(client.sent[-1].answer.error).__name__ == "DuplicateSequenceException"
    assert client.send({0: 1})
    world.calm()
    stack_history.check(world)


def test_a_producer_with_records_on_their_way_is_not_copied(world):
    (client, _) = world.clients
    client.is_sending = True
    assert client.copied("producer-3") is None


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        (identity.lost_root_of_a_leader, LOST_TOGETHER),
        (identity.lost_root_of_the_only_one_in_sync, None),
        (identity.restored_root_on_a_lost_one, OUTDATED),
    ],
)
def test_a_broker_loses_its_root_with_the_cluster_root_or_gets_one_from_before(schedule, fault):
    """A root that is needed is found."""
    history = run(1, sabotage=StackSabotage("as it is shipped", lambda _: None, schedule))
    assert history.violation is None
    assert {LOST_TOGETHER, OUTDATED} & history.faults.keys() == ({fault} - {None})


def test_storms_have_them_copy_files_and_row_groups_and_violate_nothing(monkeypatch):
    """Every eleventh seed has these faults."""
    kinds, copies, copy_from, copied_rows = Counter(), Counter(), MemoryRoot.copy_from, CopiedBatches.__init__

    def counted_file(*given):
        copies["file"] += (is_copied := copy_from(*given))
        return is_copied

    def counted_rows(*given):
        copies["row groups"] += 1
        copied_rows(*given)

    monkeypatch.setattr(MemoryRoot, "copy_from", counted_file)
    monkeypatch.setattr(CopiedBatches, "__init__", counted_rows)
    for seed in (10, 131, *range(21, 131, 11)):  # the first two have what is looked for
        history = run(seed)
        assert history.violation is None
        kinds.update(history.faults)
        if {EMPTY, COPIED} <= set(kinds) and all(copies[what] for what in ("file", "row groups")):
            return
    pytest.fail(f"only {kinds}, {copies}")


def test_replicas_that_the_metadata_do_not_explain_are_kept_even_if_any_root_is_believed():
    """So the directed history catches that they are deleted, not that the root is believed."""
    assert run(1, sabotage=StackSabotage("any root is believed", ANY_ROOT, identity.root_of_others)).violation is None
