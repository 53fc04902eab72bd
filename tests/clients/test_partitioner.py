import random

import pyarrow as pa
import pytest

from lakelog.replication.clients.partitioner import murmur2, partition_of_keys
from lakelog.replication.errors import InvalidPartitionsException

SEED = 20200229


def expected_partitions(keys, partitions, null_partition):
    return [null_partition if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]


def random_keys(count, longest, nulls=0.0):
    draw = random.Random(SEED)
    return [None if draw.random() < nulls else draw.randbytes(draw.randint(0, longest)) for _ in range(count)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_the_hashes_of_kafka(data, expected):
    assert murmur2(data) == expected


@pytest.mark.parametrize("partitions", [1, 2, 3, 12, 1000, 2**31 - 1])
def test_the_hash_of_a_column_equals_the_hash_of_each_key(partitions):
    keys = random_keys(4000, longest=40)
    # 16 keys or more of each length: kernels hash only such columns.
    assert min(sum(len(key) == length for key in keys) for length in range(41)) >= 16
    assert partition_of_keys(pa.array(keys, pa.binary()), partitions, 0).to_pylist() == expected_partitions(
        keys, partitions, 0
    )


def test_the_hash_of_few_keys_of_many_lengths_equals_that_of_each_key():
    keys = random_keys(200, longest=500)
    assert partition_of_keys(pa.array(keys, pa.binary()), 12, 0).to_pylist() == expected_partitions(keys, 12, 0)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 8])
def test_the_hash_of_keys_of_one_length_equals_that_of_each_key(length):
    draw = random.Random(SEED)
    keys = [draw.randbytes(length) for _ in range(100)]
    assert partition_of_keys(pa.array(keys, pa.binary()), 12, 0).to_pylist() == expected_partitions(keys, 12, 0)


def test_kip_480_records_without_a_key_go_to_the_partition_of_the_batch():
    keys = random_keys(1000, longest=8, nulls=0.3)
    answer = partition_of_keys(pa.array(keys, pa.binary()), 12, 7)
    assert answer.type == pa.int32()
    assert answer.null_count == 0
    assert answer.to_pylist() == expected_partitions(keys, 12, 7)


def test_an_empty_key_is_hashed_as_a_key():
    assert partition_of_keys(pa.array([b"", None], pa.binary()), 12, 5).to_pylist() == [murmur2(b"") % 2**31 % 12, 5]


def test_partitions_of_keys_in_chunks_and_slices_keep_the_order():
    keys = random_keys(3000, longest=10, nulls=0.1)
    column = pa.chunked_array([pa.array(keys[:1000], pa.binary()), pa.array(keys, pa.binary()).slice(1000)])
    answer = partition_of_keys(column, 12, 3)
    assert isinstance(answer, pa.Array)
    assert answer.to_pylist() == expected_partitions(keys, 12, 3)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (pa.array([], pa.binary()), []),
        (pa.chunked_array([], pa.binary()), []),
        (pa.array([None, None], pa.binary()), [4, 4]),
        (pa.nulls(2), [4, 4]),
        (pa.array(["21"]), [(-973932308 & 0x7FFFFFFF) % 12]),
    ],
)
def test_empty_columns_and_columns_of_nulls_or_text_have_partitions(keys, expected):
    assert partition_of_keys(keys, 12, 4).to_pylist() == expected


@pytest.mark.parametrize(("partitions", "null_partition"), [(12, 12), (12, -1), (0, 0)])
def test_a_partition_for_nulls_that_the_topic_lacks_is_refused(partitions, null_partition):
    with pytest.raises(InvalidPartitionsException, match=f"partition {null_partition}: .* 0 to {partitions - 1}"):
        partition_of_keys(pa.array([b"a"], pa.binary()), partitions, null_partition)
