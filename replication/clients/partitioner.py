"""Chooses the partition of each record: the one that Kafka's own clients choose for its key.

Arrow's kernels hash a whole column at once. Keys of one length form one matrix of 32-bit words, so each step of the
hash is a few kernel calls over all keys instead of a Python loop over each key.

Kafka: `DefaultPartitioner`, `Utils.murmur2`. KIP-480 (records without a key).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.errors import InvalidPartitionsException

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_MAX_INT = 0x7FFFFFFF
_M_OF_ALL = pa.scalar(_M, pa.uint32())  # for the kernels

# Below this number of keys, hashing them one by one is cheaper than the kernel calls.
_FEW_KEYS = 16


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit hash of a key, signed as in Java. Tests compare the column version with this simple one.

    Kafka: `Utils.murmur2`. A word is 4 bytes, little-endian. An incomplete last word is padded with zeros and mixed in
    with fewer steps.
    """
    whole = len(data) & ~3
    value = _SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        value = value * _M & _MASK ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    value ^= value >> 15
    return value - 2**32 if value > _MAX_INT else value


def partition_of_keys(keys: pa.Array | pa.ChunkedArray, partitions: int, null_partition: int) -> pa.Array:
    """The partition of each key, int32, in the order of the keys.

    Args:
        keys: binary (or string), in one piece or in chunks; a null is a record without a key.
        partitions: number of partitions of the topic.
        null_partition: the partition of records without a key. It is one partition for a whole batch, so a batch is one
            large write instead of many small ones. The caller changes it from batch to batch. KIP-480.

    Kafka: `DefaultPartitioner.partition`: the hash without its sign bit, modulo the number of partitions.

    Raises:
        InvalidPartitionsException: `null_partition` is not a partition of the topic, or the topic has none.
    """
    if not 0 <= null_partition < partitions:
        raise InvalidPartitionsException(f"partition {null_partition}: the topic has partitions 0 to {partitions - 1}")
    # 64-bit offsets: all chunks together, or the padded keys, may have more than 2 GiB.
    column = pa.chunked_array(keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys], keys.type)
    encoded = column.cast(pa.large_binary()).combine_chunks().dictionary_encode()
    hashes = pc.bit_wise_and(_murmur2_of_each(encoded.dictionary), pa.scalar(_MAX_INT, pa.uint32()))
    count = pa.scalar(partitions, pa.uint32())
    chosen = pc.subtract(hashes, pc.multiply(pc.divide(hashes, count), count)).cast(pa.int32())  # the hash modulo it
    return pc.fill_null(chosen.take(encoded.indices), pa.scalar(null_partition, pa.int32()))


def _murmur2_of_each(keys: pa.Array) -> pa.Array:
    """The hashes of the keys (large binary, without nulls), as uint32."""
    lengths = pc.binary_length(keys)
    order = pc.sort_indices(lengths)
    ordered_keys = keys.take(order)
    runs = pc.run_end_encode(lengths.take(order), run_end_type=pa.int64())
    hashes, start = [pa.array([], pa.uint32())], 0
    for end, length in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        hashes.append(_murmur2_of_length(ordered_keys.slice(start, end - start), length))
        start = end
    # The sort indices of a permutation are its inverse: they move the hashes back to the positions of their keys.
    return pa.concat_arrays(hashes).take(pc.sort_indices(order))


def _murmur2_of_length(keys: pa.Array, length: int) -> pa.Array:
    """The hashes of keys that all have `length` bytes."""
    if len(keys) < _FEW_KEYS:
        return pa.array([murmur2(key) & _MASK for key in keys.to_pylist()], pa.uint32())
    # The keys as lists of little-endian 32-bit words, the last one padded with zeros, without copying them again.
    padding = pa.scalar(bytes(-length % 4), pa.large_binary())
    padded = pc.binary_join_element_wise(keys, padding, pa.scalar(b"", pa.large_binary()))
    size = -(-length // 4)
    values = pa.Array.from_buffers(pa.uint32(), len(keys) * size, [None, padded.buffers()[2]])
    words = pa.FixedSizeListArray.from_arrays(values, size)
    value = pa.repeat(pa.scalar(_SEED ^ length, pa.uint32()), len(keys))
    for position in range(length // 4):
        word = pc.multiply(pc.list_element(words, position), _M_OF_ALL)
        word = pc.multiply(_xor_shifted(word, 24), _M_OF_ALL)
        value = pc.bit_wise_xor(pc.multiply(value, _M_OF_ALL), word)
    if length % 4:
        value = pc.multiply(pc.bit_wise_xor(value, pc.list_element(words, length // 4)), _M_OF_ALL)
    return _xor_shifted(pc.multiply(_xor_shifted(value, 13), _M_OF_ALL), 15)


def _xor_shifted(value: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_xor(value, pc.shift_right(value, pa.scalar(bits, pa.uint32())))
