"""Chooses the small files to merge: few rewrites, and at most one file of a partition in a size class."""

import random
from collections import Counter

import pytest

from lakelog.replication.protocol.compaction import LogFile, plan_compaction, size_class
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition

KIB, MIB = 1024, 1024 * 1024
SEGMENT = 32 * MIB
P, Q = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


def batch(partition, base=0, size=100):
    return BatchHeader(
        "topic", *partition, leader_epoch=0, base_offset=base, last_offset=base, max_timestamp=0, bytes=size
    )


def small(number, size=KIB, *partitions):
    return LogFile(f"file-{number}", size, [batch(partition) for partition in partitions or (P,)])


def plan(files, min_files=4, max_bytes=256 * MIB):
    found = plan_compaction(files, SEGMENT, min_files, max_bytes)
    return [file.name for file in found.files] if found else []


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0), (64 * KIB - 1, 0), (64 * KIB, 1), (512 * KIB - 1, 1), (512 * KIB, 2), (4 * MIB, 3), (16 * MIB - 1, 3),
        (16 * MIB, -1), (40 * MIB, -1),
    ],
)  # fmt: skip
def test_na_04_a_file_has_a_size_class(size, expected):
    assert size_class(size, SEGMENT) == expected


@pytest.mark.parametrize(
    ("files", "names"),
    [
        pytest.param([small(n) for n in range(3)], [], id="too few"),
        pytest.param([small(n) for n in range(4)], ["file-0", "file-1", "file-2", "file-3"], id="enough"),
        pytest.param([small(n, KIB, P, Q) for n in range(3)], [], id="too few, of two partitions"),
        pytest.param([small(n, KIB, P, Q) for n in range(4)], [f"file-{n}" for n in range(4)], id="half as many"),
        pytest.param(
            [small(n, KIB, *(TopicIdPartition("id", m) for m in range(9))) for n in range(17)], [],
            id="the result would be more than half as many files",
        ),
        pytest.param([small(n, 20 * MIB) for n in range(9)], [], id="large ones are left alone"),
        pytest.param([small(n, 100 * KIB) for n in range(4)], [f"file-{n}" for n in range(4)], id="a class further up"),
        pytest.param([small(0), small(1), small(2, 100 * KIB), small(3, 100 * KIB)], [], id="classes count alone"),
    ],
)  # fmt: skip
def test_na_04_small_files_are_merged_once_there_are_enough(files, names):
    assert plan(files) == names


def test_na_04_files_of_the_result_s_class_are_merged_too():
    files = [small(n, 60 * KIB) for n in range(4)] + [small("p", 100 * KIB), small("q", 100 * KIB, Q)]
    assert plan(files) == ["file-0", "file-1", "file-2", "file-3", "file-p"]


def test_na_04_a_compaction_reads_at_most_its_byte_limit():
    files = [small(n, 10 * KIB) for n in range(40)]
    assert plan(files, max_bytes=100 * KIB) == [f"file-{n}" for n in range(10)]


def test_na_04_compressed_files_are_packed_by_their_size_as_files():
    """Their records are many times as large: 8 files of 4 MiB with 64 MiB of records each become one of 32 MiB."""
    files = [LogFile(f"file-{n}", 4 * MIB, [batch(P, n, 64 * MIB)]) for n in range(8)]
    found = plan_compaction(files, SEGMENT, 8, 1024 * MIB)
    assert [[header.base_offset for _, header in pack] for pack in found.packs] == [list(range(8))]


@pytest.mark.parametrize(
    ("partitions", "results"),
    [pytest.param([P], [4], id="one partition"), pytest.param([P, Q], [2, 2], id="two partitions in each file")],
)
def test_na_04_a_result_is_a_segment_at_most_in_order_of_offsets(partitions, results):
    files = [LogFile(f"file-{n}", 15 * MIB, [batch(p, 7 - n) for p in partitions]) for n in range(8)]
    found = plan_compaction(files, SEGMENT, 8, 256 * MIB)
    assert Counter(header.partition for pack in found.packs for _, header in pack[:1]) == Counter(
        {p.partition: count for p, count in zip(partitions, results, strict=True)}
    )
    for partition in partitions:
        offsets = [h.base_offset for pack in found.packs for _, h in pack if h.topic_id_partition == partition]
        assert offsets == list(range(8))


def test_na_04_a_batch_that_shares_its_file_counts_as_its_part_of_it():
    file = LogFile("file", 1000, [batch(P, size=299), batch(Q, size=99)])
    assert [share for _, share in file.shares()] == [750, 250]


def test_na_04_a_result_of_more_than_half_as_many_files_is_no_plan():
    """Three files of 12 MiB would become two, and seven of 15 MiB four. That is too little gain."""
    for count, size in ((3, 12 * MIB), (7, 15 * MIB)):
        assert plan([small(n, size) for n in range(count)], min_files=3) == []
    assert len(plan([small(n, 15 * MIB) for n in range(8)], min_files=3)) == 8


def test_na_04_files_that_make_the_result_too_large_are_left_out():
    """Eight files become four. With the ninth they would become five."""
    files = [small(n, 15 * MIB) for n in range(8)] + [small("p", 3 * MIB)]
    assert plan(files, min_files=8) == [f"file-{n}" for n in range(8)]


def test_na_04_a_class_with_enough_files_is_merged_in_parts_if_the_limit_is_smaller():
    """Otherwise files of a middle size would never be merged: 64 of them exceed the bytes that may be read."""
    files = [small(n, 10 * MIB) for n in range(64)]
    assert len(plan(files, min_files=64, max_bytes=60 * MIB)) == 6


def test_na_04_a_compaction_reads_at_most_its_record_limit():
    files = [LogFile(f"file-{n}", 10 * KIB, [batch(P, n, 100 * KIB)]) for n in range(40)]
    assert plan(files, max_bytes=1000 * KIB) == [f"file-{n}" for n in range(10)]


def merged(files, found, number):
    """The files after a compaction."""
    new = []
    for index, pack in enumerate(found.packs):
        size = sum(dict(file.shares())[header] for file, header in pack)
        new.append(LogFile(f"merged-{number}-{index}", size, [header for _, header in pack]))
    return [file for file in files if file not in found.files] + new


@pytest.mark.parametrize("seed", range(20))
def test_na_04_a_partition_ends_up_with_at_most_one_file_in_a_class(seed):
    """A byte is rewritten at most once in each class, which bounds the work."""
    chance = random.Random(seed)
    partitions = [TopicIdPartition("id", number) for number in range(chance.randint(1, 5))]
    files, read, written, number = [], 0, 0, 0
    for number in range(chance.randint(100, 400)):
        held = chance.sample(partitions, chance.randint(1, len(partitions)))
        file = LogFile(f"file-{number}", chance.randint(1, 40) * KIB, [batch(p, number) for p in held])
        files.append(file)
        written += file.size
        while chosen := plan_compaction(files, SEGMENT, 8, 1024 * MIB):
            assert 2 * len(chosen.packs) <= len(chosen.files)
            read += sum(c.size for c in chosen.files)
            files = merged(files, chosen, f"{number}-{read}")
            held = Counter(
                (partition, size_class(f.size, SEGMENT)) for f in files for partition in f.partitions
                if f.name.startswith("merged") and size_class(f.size, SEGMENT) >= 0
            )  # fmt: skip
            assert max(held.values()) == 1, held
    assert len(files) < max(8, 2 * len(partitions)) + 4 * len(partitions)
    assert read <= written * 8
