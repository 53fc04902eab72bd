"""When committed offsets expire: which ones nobody uses, and for how long."""

import pytest

from lakelog.replication.protocol.consumer_group import ConsumerGroup, GroupMember, fence_of
from lakelog.replication.protocol.offset_expiration import SeenGroup, idle_ms_after

EMPTY = ConsumerGroup(4)
READS_A = ConsumerGroup(4, (GroupMember("m", "m", "host", 0, 45_000, ("a",), ("range",)),))


@pytest.mark.parametrize(
    ("seen", "topic", "fence", "expected"),
    [
        (SeenGroup(0, ConsumerGroup()), "a", 0, True),
        (SeenGroup(0, ConsumerGroup()), "a", fence_of(1, True), False),
        (SeenGroup(fence_of(4, False), EMPTY), "a", fence_of(4, False), True),
        (SeenGroup(fence_of(4, False), EMPTY), "a", fence_of(5, True), False),
        (SeenGroup(fence_of(4, True), EMPTY), "a", fence_of(4, True), False),
        (SeenGroup(fence_of(4, True), READS_A), "a", fence_of(4, True), False),
        (SeenGroup(fence_of(4, True), READS_A), "b", fence_of(4, True), True),
        (SeenGroup(fence_of(4, True), READS_A), "b", fence_of(5, True), False),
    ],
    ids=[
        "no member ever", "its first member has come since", "empty", "a member has come since", "not released yet",
        "a member reads the topic", "no member reads the topic", "members may read other topics since",
    ],
)  # fmt: skip
def test_ap_04_offsets_are_unused_if_no_member_reads_their_topic(seen, topic, fence, expected):
    assert seen.leaves_unused(topic, fence) == expected


@pytest.mark.parametrize(
    ("idle_ms", "passed_ms", "is_unused", "expected"),
    [
        (None, None, False, None), (None, 600, False, None), (700, 600, False, None), (None, None, True, 0),
        (None, 600, True, 0), (0, 600, True, 600), (700, 600, True, 1300), (700, None, True, 700),
    ],
)  # fmt: skip
def test_ap_04_only_time_between_two_looks_at_an_unused_offset_counts(idle_ms, passed_ms, is_unused, expected):
    assert idle_ms_after(idle_ms, passed_ms, is_unused) == expected
