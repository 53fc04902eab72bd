"""Which small files are merged: few rewrites, and at most one file of a partition in a size class."""

import random
from collections import Counter

import pytest

from replication.protocol.compaction import LogFile, plan_compaction, size_class
from replication.protocol.record_batch import TopicIdPartition

KIB, MIB = 1024, 1024 * 1024
SEGMENT = 32 * MIB
P, Q = TopicIdPartition("id", 0), TopicIdPartition("id", 1)


def small(number, size=KIB, *partitions):
    return LogFile(f"file-{number}", size, dict.fromkeys(partitions or (P,), 100))


def plan(files, min_files=4, max_bytes=256 * MIB):
    return [file.name for file in plan_compaction(files, SEGMENT, min_files, max_bytes)]


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
def test_na_04_small_files_are_merged_when_it_is_worth_it(files, names):
    assert plan(files) == names


def test_na_04_what_the_result_would_lie_beside_is_merged_too():
    files = [small(n, 60 * KIB) for n in range(4)] + [small("p", 100 * KIB), small("q", 100 * KIB, Q)]
    assert plan(files) == ["file-0", "file-1", "file-2", "file-3", "file-p"]


def test_na_04_a_compaction_reads_no_more_than_it_may():
    files = [small(n, 10 * KIB) for n in range(40)]
    assert plan(files, max_bytes=100 * KIB) == [f"file-{n}" for n in range(10)]


def merged(files, chosen, number):
    """The files after a compaction: one a partition, as long as none is larger than a segment."""
    sizes = Counter()
    for file in chosen:
        for partition, share in file.partitions.items():
            sizes[partition] += file.size * share // sum(file.partitions.values())
    kept = [file for file in files if file not in chosen]
    return kept + [LogFile(f"merged-{number}-{p}", size, {p: size}) for p, size in sizes.items()]


@pytest.mark.parametrize("seed", range(20))
def test_na_04_a_partition_ends_up_with_at_most_one_file_in_a_class(seed):
    """And a byte is written again at most once a class: what is read in all is bounded by that."""
    chance = random.Random(seed)
    partitions = [TopicIdPartition("id", number) for number in range(chance.randint(1, 5))]
    files, read, written, number = [], 0, 0, 0
    for number in range(chance.randint(100, 400)):
        file = small(
            number, chance.randint(1, 40) * KIB, *chance.sample(partitions, chance.randint(1, len(partitions)))
        )
        files.append(file)
        written += file.size
        while chosen := plan_compaction(files, SEGMENT, 8, 1024 * MIB):
            read += sum(c.size for c in chosen)
            files = merged(files, chosen, f"{number}-{read}")
            held = Counter(
                (partition, size_class(f.size, SEGMENT)) for f in files for partition in f.partitions
                if f.name.startswith("merged") and size_class(f.size, SEGMENT) >= 0
            )  # fmt: skip
            assert max(held.values()) == 1, held
    assert len(files) < max(8, 2 * len(partitions)) + 4 * len(partitions)
    assert read <= written * 8
