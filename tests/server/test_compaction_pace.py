"""Compaction keeps to its bytes a second, and takes a twentieth of a core while its log is in use."""

import pytest

from lakelog.replication.server.log_maintenance import CompactionPace, LogUse, cpu_share

UNLIMITED = 2**63 - 1


class Clock:
    def __init__(self):
        self.now = 100.0
        self.worked = 0.0
        self.waits = []

    def __call__(self):
        return self.now

    def cpu(self):
        return self.worked

    def work(self, seconds):
        self.now += seconds
        self.worked += seconds

    def wait(self, seconds):
        self.now += seconds
        self.waits.append(round(seconds, 3))


@pytest.mark.parametrize(
    ("rate", "in_use", "work", "waits"),
    [
        pytest.param(UNLIMITED, False, [(1 << 20, 0.5), (1 << 20, 0.5)], [], id="alone, it takes all its time"),
        pytest.param(UNLIMITED, True, [(1 << 20, 0.5), (0, 0.1)], [9.5, 1.9], id="in use, a twentieth"),
        pytest.param(1000, False, [(500, 0.1), (500, 0.6)], [0.4], id="500 bytes take half a second, at least"),
        pytest.param(1000, True, [(500, 0.01), (500, 0.1)], [0.49, 1.9], id="the longer wait of both"),
        pytest.param(UNLIMITED, True, [(1, 0.00003), (1, 0.00003), (1, 0.00003)], [0.001], id="short waits add up"),
        pytest.param(10_000, False, [(5, 0.0), (5, 0.0), (5, 0.0)], [0.001], id="short waits for bytes too"),
    ],
)
def test_na_04_compaction_waits_between_two_files(rate, in_use, work, waits):
    clock = Clock()
    pace = CompactionPace(rate, lambda: in_use, clock.wait, 0.05, clock, clock.cpu)
    for size, seconds in work:
        clock.work(seconds)
        pace(size)
    assert clock.waits == waits


def test_na_04_only_computing_time_counts_towards_the_share_of_compaction():
    clock = Clock()
    pace = CompactionPace(UNLIMITED, lambda: True, clock.wait, 0.05, clock, clock.cpu)
    clock.now += 10.0  # others have the cores
    clock.work(0.1)
    pace(1)
    assert clock.waits == []
    clock.work(2.0)
    pace(1)
    assert clock.waits == [38.0]


def test_na_04_a_log_is_in_use_for_a_second_after_a_commit():
    clock, versions = Clock(), [7]
    is_in_use = LogUse(lambda: versions[-1], clock)
    assert not is_in_use()
    versions.append(8)
    assert is_in_use()
    clock.now += 0.9
    assert is_in_use()
    clock.now += 0.2
    assert not is_in_use()


def test_na_04_a_log_of_many_segments_is_compacted_faster_than_a_busy_one_grows():
    assert [cpu_share(segments) for segments in (0, 1000, 1001, 100_000)] == [0.05, 0.05, 0.2, 0.2]
