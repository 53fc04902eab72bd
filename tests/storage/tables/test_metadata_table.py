"""The metadata table: leaders change ISRs, controllers change everything, each by compare-and-set."""

from dataclasses import replace

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.elections import with_leader
from lakelog.replication.protocol.isr import AlterIsrOutcome, change_to
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from tests.processes import race
from tests.storage.delta.answers import lose_an_answer, refuse_all

P, Q, GONE = (TopicIdPartition("id", number) for number in (0, 1, 9))
LED = PartitionRegistration("t", "id", 0, (1, 2, 3), 1, 5, (1, 2, 3), 8, 2, (9,), (7,))
OTHER = replace(LED, partition=1)
EPOCHS = {1: 10, 2: 20, 3: 30}
CAUSE = {"who": "broker-1", "why": "isr"}


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def table(storage):
    made = MetadataTable.create(storage)
    made.put([LED, OTHER], {"who": "test"})
    return made


def commits(storage):
    return last_version(storage.child("metadata"))


def alter(table, *changes, epochs=EPOCHS):
    return table.alter_partitions(changes, lambda: epochs, CAUSE)


def written(before, *isr):
    return replace(before, isr=isr, partition_epoch=before.partition_epoch + 1)


def test_is_05_a_change_is_applied_in_one_commit_that_says_who_and_why(storage, table):
    before = commits(storage)
    assert alter(table, change_to(LED, (1, 3))) == {P: (AlterIsrOutcome.APPLIED, written(LED, 1, 3))}
    assert commits(storage) == before + 1
    info = read_commit(storage.child("metadata"), before + 1).info
    assert (info["who"], info["why"]) == ("broker-1", "isr")
    assert MetadataTable.open(storage).partitions == table.partitions == {P: written(LED, 1, 3), Q: OTHER}


def test_is_05_several_changes_are_one_commit_and_each_has_its_own_outcome(storage, table):
    table.put([replace(OTHER, leader=2, leader_epoch=6)], {"who": "elector"})
    before = commits(storage)
    outcomes = alter(table, change_to(LED, (1,)), change_to(OTHER, (1,)), change_to(replace(LED, partition=9), (1,)))
    assert outcomes == {
        P: (AlterIsrOutcome.APPLIED, written(LED, 1)),
        Q: (AlterIsrOutcome.LOST, replace(OTHER, leader=2, leader_epoch=6)),
        GONE: (AlterIsrOutcome.LOST, None),
    }
    assert commits(storage) == before + 1
    assert table.partitions == {P: written(LED, 1), Q: replace(OTHER, leader=2, leader_epoch=6)}


def test_is_05_what_is_lost_or_found_is_not_written(storage, table):
    change = change_to(LED, (1, 3))
    alter(table, change)
    before = commits(storage)
    assert alter(table, change) == {P: (AlterIsrOutcome.FOUND, written(LED, 1, 3))}
    assert alter(table, change_to(LED, (1,))) == {P: (AlterIsrOutcome.LOST, written(LED, 1, 3))}
    assert alter(table) == {}
    assert commits(storage) == before


@pytest.mark.parametrize("error", [CommitUnknown("timed out"), CommitConflict("refused")], ids=repr)
def test_is_05_a_write_whose_answer_was_lost_is_found_again(storage, table, monkeypatch, error):
    before = commits(storage)
    lose_an_answer(monkeypatch, error=error)
    outcomes = alter(table, change_to(LED, (1, 3)), change_to(OTHER, (1, 2)))
    assert outcomes == {
        P: (AlterIsrOutcome.FOUND, written(LED, 1, 3)),
        Q: (AlterIsrOutcome.FOUND, written(OTHER, 1, 2)),
    }
    assert commits(storage) == before + 1, "written once"


def test_is_05_an_outcome_that_stays_unknown_is_an_error_and_the_same_change_finds_out(storage, table, monkeypatch):
    change = change_to(LED, (1, 3))
    with monkeypatch.context() as patched:
        refuse_all(patched)
        with pytest.raises(KafkaStorageException, match="connection refused"):
            alter(table, change)
    assert alter(table, change) == {P: (AlterIsrOutcome.APPLIED, written(LED, 1, 3))}
    assert MetadataTable.open(storage).partitions[P] == written(LED, 1, 3)


def test_is_05_broker_epochs_are_looked_up_at_each_attempt(storage, table):
    """Another writer commits in between, and the joining broker has restarted meanwhile."""
    other, answers = MetadataTable.open(storage), [{3: 30}, {3: 31}]

    def epochs():
        found = answers.pop(0)
        if answers:
            other.put([replace(OTHER, leader=3, leader_epoch=6)], {"who": "elector"})
        return found

    change = change_to(replace(LED, isr=(1, 2)), (1, 2, 3), {3: 30})
    assert table.alter_partitions([change], epochs, CAUSE) == {P: (AlterIsrOutcome.LOST, LED)}
    assert answers == []


def test_is_05_le_06_an_election_in_between_overtakes_a_change(storage, table):
    elected, other = with_leader(LED, 2, (2, 3)), MetadataTable.open(storage)
    other.put([elected], {"who": "elector"})
    assert alter(table, change_to(LED, (1,))) == {P: (AlterIsrOutcome.LOST, elected)}
    assert table.partitions[P] == elected


def shrink_in_a_race(start, folder, partition, isrs):
    """Writes one change after the other, each decided on the newest state. Returns the outcomes."""
    table = MetadataTable.open(StorageRoot.of(folder))
    start()
    outcomes = []
    for isr in isrs:
        current = table.partitions[TopicIdPartition("id", partition)]
        (answer,) = table.alter_partitions([change_to(current, isr)], dict, CAUSE).values()
        outcomes.append(answer[0].value[:5])
    return outcomes


def test_is_05_two_leaders_that_write_at_the_same_time_both_win(root, storage, table):
    isrs = [(1,), (1, 2), (1, 2, 3)] * 3
    assert race(shrink_in_a_race, (root, 0, isrs), (root, 1, isrs)) == [["appli"] * 9] * 2
    table.refresh()
    assert {p: (r.isr, r.partition_epoch) for p, r in table.partitions.items()} == {
        P: ((1, 2, 3), 17),
        Q: ((1, 2, 3), 17),
    }
    assert commits(storage) == 1 + 18


def claim_in_a_race(start, folder, isr):
    """A change of one partition, decided on the same registration in every process."""
    table = MetadataTable.open(StorageRoot.of(folder))
    change = change_to(table.partitions[P], isr)
    start()
    ((outcome, current),) = table.alter_partitions([change], dict, CAUSE).values()
    return outcome.name, current.isr


def test_is_05_of_two_processes_that_decided_on_the_same_registration_one_wins(root, table):
    outcomes = race(claim_in_a_race, (root, (1, 2)), (root, (1, 3)))
    assert sorted(name for name, _ in outcomes) == ["APPLIED", "LOST"]
    table.refresh()
    assert {isr for _, isr in outcomes} == {table.partitions[P].isr}, "the loser knows what holds"
    assert table.partitions[P].partition_epoch == 9


def test_le_06_a_change_is_decided_on_the_newest_partitions_again_and_again(storage, table):
    other, seen = MetadataTable.open(storage), []

    def decide(partitions):
        seen.append(partitions[P].leader_epoch)
        if len(seen) == 1:
            other.put([with_leader(LED, 2, (2, 3))], {"who": "another"})
        return {P: with_leader(partitions[P], 3, (3,))}

    version = table.change(decide, {"who": "elector"})
    assert seen == [5, 6]
    assert (version, table.version) == (commits(storage), commits(storage))
    assert (table.partitions[P].leader, table.partitions[P].leader_epoch) == (3, 7)
    assert table.partitions[Q] == OTHER


def test_le_06_nothing_to_change_is_nothing_written(storage, table):
    before = commits(storage)
    assert table.change(lambda _: {}, {}) is None
    assert table.change(lambda partitions: partitions, {}) is None
    assert commits(storage) == before


def test_le_06_what_a_decision_raises_leaves_everything_as_it_was(storage, table):
    before = commits(storage)

    def refuse(_):
        raise KeyError("no such partition")

    with pytest.raises(KeyError, match="no such partition"):
        table.change(refuse, {})
    assert (commits(storage), table.partitions) == (before, {P: LED, Q: OTHER})


def test_ol_01_is_05_a_broker_is_kept_out_of_the_isrs_that_are_without_it(storage, table):
    """A leader's earlier decision that is written later loses, and the leader learns the new state."""
    led = replace(LED, isr=(1, 3))
    table.put([led], {"who": "test"})
    before, leaders = commits(storage), MetadataTable.open(storage)
    assert table.fence_isr_changes([P, Q, GONE], 2, CAUSE) == {P}
    assert (commits(storage), table.partitions) == (before + 1, {P: written(led, 1, 3), Q: OTHER})
    late = change_to(led, (1, 2, 3), {2: 20})
    assert alter(leaders, late) == {P: (AlterIsrOutcome.LOST, written(led, 1, 3))}
    assert table.fence_isr_changes([Q], 2, CAUSE) == set()
    assert commits(storage) == before + 1


def test_ol_01_is_05_a_leader_that_is_first_has_won(storage, table):
    led = replace(LED, isr=(1, 3))
    table.put([led], {"who": "test"})
    alter(MetadataTable.open(storage), change_to(led, (1, 2, 3), {2: 20}))
    assert table.fence_isr_changes([P], 2, CAUSE) == set()
    assert table.partitions[P].isr == (1, 2, 3)
