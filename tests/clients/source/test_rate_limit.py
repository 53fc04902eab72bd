"""How many records a micro-batch takes."""

import pytest

from lakelog.replication.clients.source.topic_stream import limited, may_start


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([100, 300], 40, [10, 30]),
        ([100, 300], 400, [100, 300]),
        ([100, 300], 1000, [100, 300]),
        ([1, 1, 1], 1, [1, 0, 0]),
        ([1, 1, 1000], 3, [1, 0, 2]),
        ([0, 5], 2, [0, 2]),
        ([2**62, 2**62], 3, [2, 1]),
        ([], 5, []),
    ],
)
def test_partitions_share_the_limit_of_a_micro_batch_in_proportion(sizes, most, expected):
    starts = {number: 1000 * number for number in range(len(sizes))}
    ends = {number: starts[number] + size for number, size in enumerate(sizes)}
    found = limited(starts, ends, most)
    assert [found[number] - starts[number] for number in starts] == expected


def test_limited_micro_batches_reach_the_end_of_every_partition():
    starts, ends, rounds = dict.fromkeys(range(7), 0), {number: 1 + 10 * number for number in range(7)}, 0
    while starts != ends:
        starts, rounds = limited(starts, ends, 5), rounds + 1
    assert rounds == -(-sum(ends.values()) // 5)


@pytest.mark.parametrize(
    ("available", "least", "waited_ms", "expected"),
    [(0, None, 0, True), (5, 5, 0, True), (4, 5, 0, False), (4, 5, 99, False), (4, 5, 100, True)],
)
def test_a_micro_batch_waits_for_enough_records_but_not_for_ever(available, least, waited_ms, expected):
    assert may_start(available, least, waited_ms, 100) is expected
