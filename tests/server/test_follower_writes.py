"""Fetchers of one broker write to its log and its rows together."""

import pytest

from lakelog.replication.errors import CorruptRecordException, FencedLeaderEpochException, KafkaStorageException
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.storage.log.log_append import Fetched
from lakelog.replication.storage.log.segment_copy import copy_segment
from tests.hanging import ends, in_background, raises
from tests.processes import wait_until
from tests.storage.logs import P0, P1, fill, follow, leo, new_log, values

LONG = 60.0


class Fetches:
    """A follower, with what two of its fetchers have copied from a leader: two records of P0, three of P1."""

    def __init__(self, root):
        leader = new_log(f"{root}/1", P0, P1)
        fill(leader, P0, 2)
        fill(leader, P1, 3)
        self.log, self.published = new_log(f"{root}/2"), []
        follow(self.log, P0, P1, epoch=0)
        segments = [copy_segment(leader.root, s, self.log.root) for s in leader.refresh().segments.values()]
        self.fetched = {s.headers[0].topic_id_partition: self._fetched(s) for s in segments}
        self.writes = FollowerWrites(self.log, "broker-2", self._publish)
        self.errors = []

    def _fetched(self, segment):
        partition = segment.headers[0].topic_id_partition
        return Fetched([segment], {partition: self.log.current().partition(partition).log_end.chain}, {partition: 0})

    def _publish(self, why):
        self.published.append((why, {p: leo(self.log, p) for p in (P0, P1)}))

    def fetch(self, partition, publish=True):
        """What a round does after its copies. `errors` gets its error."""
        try:
            self.writes.append(partition, self.fetched[partition])
            if publish:
                self.writes.rows.add(partition, "fetched")
        except Exception as error:
            self.errors.append(error)
        finally:
            self.writes.done(partition)

    def together(self, *partitions):
        """Fetches of which the first waits for the others."""
        for group in (self.writes._appends, self.writes.rows):
            group._took = LONG
        for partition in partitions:
            self.writes.expect(partition, 1)
        first = in_background(lambda: self.fetch(partitions[0]))
        wait_until(lambda: self.writes._appends._group, "the first fetch")
        for partition in partitions[1:]:
            self.fetch(partition)
        assert ends(first)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A wait for others lasts until they come."""
    monkeypatch.setattr("lakelog.replication.server.follower_writes._LONGEST_SECONDS", LONG)


@pytest.fixture
def fetches(root):
    return Fetches(root)


def test_ft_09_fetches_at_the_same_time_are_appended_in_one_commit_and_published_in_one(fetches):
    before = fetches.log.current().version
    fetches.together(P0, P1)
    assert fetches.errors == []
    assert fetches.log.current().version == before + 1
    assert (values(fetches.log, P0), values(fetches.log, P1)) == ([b"0", b"1"], [b"0", b"1", b"2"])
    assert fetches.published == [("fetched", {P0: 2, P1: 3})]


def test_ft_09_a_refused_fetch_does_not_prevent_the_append_of_others(fetches):
    follow(fetches.log, P0, epoch=1)
    before = fetches.log.current().version
    fetches.together(P0, P1)
    assert [type(error) for error in fetches.errors] == [FencedLeaderEpochException]
    assert fetches.log.current().version == before + 1
    assert fetches.published == [("fetched", {P0: 0, P1: 3})]


@pytest.mark.parametrize("bad", [P0, P1])
def test_ft_09_a_bad_copy_does_not_prevent_the_append_of_other_fetches(fetches, bad):
    """The error names the file of the fetch that gets it."""
    name = fetches.fetched[bad].segments[0].name
    fetches.log.root.delete(name)
    before = fetches.log.current().version
    fetches.together(P0, P1)
    (error,) = fetches.errors
    assert (type(error), name in str(error)) == (CorruptRecordException, True)
    assert fetches.log.current().version == before + 1
    assert (leo(fetches.log, P0), leo(fetches.log, P1)) == ((0, 3) if bad == P0 else (2, 0))


def test_ft_09_each_fetch_with_a_bad_copy_gets_its_own_error(fetches):
    names = [fetches.fetched[partition].segments[0].name for partition in (P0, P1)]
    for name in names:
        fetches.log.root.delete(name)
    fetches.together(P0, P1)
    assert sorted(name for name in names for error in fetches.errors if name in str(error)) == sorted(names)


def test_ft_09_two_fetches_of_one_partition_never_follow_one_another_in_one_commit(fetches):
    """The second one was copied for the log end before the first one."""
    twin = fetches.fetched[P0].segments[0]
    copied = copy_segment(fetches.log.root, twin, fetches.log.root)
    fetches.fetched[P1] = fetches.fetched[P0]._replace(segments=[copied])
    fetches.together(P0, P1)
    assert [error.name for error in fetches.errors] == ["OffsetOutOfRangeException"]
    assert values(fetches.log, P0) == [b"0", b"1"]


def test_a_group_commit_does_not_wait_for_a_large_copy(fetches):
    for group in (fetches.writes._appends, fetches.writes.rows):
        group._took = LONG
    fetches.writes.expect(P1)
    fetches.writes.expect(P1, 2 << 20)
    assert ends(in_background(lambda: fetches.fetch(P0)))
    assert leo(fetches.log, P0) == 2


@pytest.mark.parametrize("step", ["append", "publish"])
def test_a_group_commit_does_not_wait_for_a_round_that_ended_early(fetches, step):
    for group in (fetches.writes._appends, fetches.writes.rows):
        group._took = LONG
    fetches.writes.expect(P1, 1)
    first = in_background(lambda: fetches.fetch(P0))
    wait_until(lambda: fetches.writes._appends._group, "the first fetch")
    if step == "append":
        fetches.writes.done(P1)
    else:
        fetches.fetch(P1, publish=False)
    assert ends(first)
    assert [why for why, _ in fetches.published] == ["fetched"]


def test_rows_that_cannot_be_published_fail_all_their_fetches(fetches):
    fetches.writes._write_rows = raises(KafkaStorageException("disk full"))
    fetches.together(P0, P1)
    assert [str(error) for error in fetches.errors] == ["disk full"] * 2
    assert (leo(fetches.log, P0), leo(fetches.log, P1)) == (2, 3)


def test_ft_09_a_fetch_that_has_landed_without_an_answer_is_not_appended_again(fetches):
    fetches.fetch(P0)
    fetches.together(P0, P1)
    assert fetches.errors == []
    assert (values(fetches.log, P0), leo(fetches.log, P1)) == ([b"0", b"1"], 3)
