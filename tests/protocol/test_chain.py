"""The chain of a log covers every field of a header and all batches before it."""

import dataclasses

import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import HASH_BYTES, check_link, genesis, halves, joined, linked
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition

P = TopicIdPartition("flights-id", 3)
HEADER = BatchHeader("flights", "flights-id", 3, 5, 10, 19, 1_767_268_800_000_000, 420, 7, 1, 40, "digest")
LINKED = linked(HEADER, genesis(P))
MEMBERS = [field.name for field in dataclasses.fields(BatchHeader) if field.compare and field.name != "chain"]


def changed(header, name):
    """The header with another value in one field."""
    value = getattr(header, name)
    return dataclasses.replace(header, **{name: f"{value}x" if isinstance(value, str) else value + 1})


@pytest.mark.parametrize("name", MEMBERS)
def test_tr_08_every_field_the_digest_and_the_chain_before_are_part_of_the_chain(name):
    other = changed(LINKED, name)
    assert linked(other, other.previous).chain != LINKED.chain
    with pytest.raises(CorruptRecordException):
        check_link(other)


def test_tr_08_moving_text_between_two_fields_changes_the_chain():
    one = dataclasses.replace(HEADER, base_offset=1, last_offset=12)
    other = dataclasses.replace(HEADER, base_offset=11, last_offset=2)
    assert linked(one, "x").chain != linked(other, "x").chain
    assert genesis(TopicIdPartition("a1", 1)) != genesis(TopicIdPartition("a", 11))


def test_tr_08_a_link_does_not_depend_on_the_old_chain_of_a_header():
    assert linked(dataclasses.replace(LINKED, previous="old", chain="old"), genesis(P)) == LINKED
    assert (LINKED.previous, len(LINKED.chain)) == (genesis(P), 2 * HASH_BYTES)
    check_link(LINKED)


def test_tr_08_equal_chains_mean_equal_batches_before():
    """With another first batch and the same ones after it, all chains differ."""
    first, others = LINKED, [dataclasses.replace(HEADER, base_offset=o, last_offset=o + 9) for o in (20, 30)]
    chains = {}
    for name, begin in {"one": first, "other": linked(changed(HEADER, "digest"), genesis(P))}.items():
        chains[name] = [begin.chain]
        for header in others:
            chains[name].append(linked(header, chains[name][-1]).chain)
    assert not set(chains["one"]) & set(chains["other"])


def test_tr_08_each_partition_and_each_topic_that_is_made_again_begins_another_chain():
    partitions = [P, TopicIdPartition("flights-id", 4), TopicIdPartition("made again", 3)]
    assert len({genesis(partition) for partition in partitions}) == 3
    assert genesis(P) == genesis(TopicIdPartition(*P))


def test_tr_08_a_header_that_does_not_have_its_chain_is_named():
    with pytest.raises(CorruptRecordException, match="flights-3: the batch of offsets 10 to 19 does not"):
        check_link(dataclasses.replace(LINKED, chain=genesis(P)))
    with pytest.raises(CorruptRecordException):
        check_link(HEADER)


LARGEST = "ff" * HASH_BYTES
HALF = HASH_BYTES  # hex digits


@pytest.mark.parametrize(
    ("chain", "parts"),
    [
        pytest.param("0" * 2 * HALF, (0, 0), id="zeros stand in front"),
        pytest.param("0" * (2 * HALF - 1) + "1", (0, 1), id="one"),
        pytest.param("0" * (HALF - 1) + "1" + "0" * HALF, (1, 0), id="one above"),
        pytest.param(LARGEST, (-1, -1), id="the largest"),
        pytest.param("7f" + "ff" * 7 + "80" + "00" * 7, (2**63 - 1, -(2**63)), id="both ends of a signed number"),
        pytest.param("80" + "00" * 7 + "7f" + "ff" * 7, (-(2**63), 2**63 - 1), id="and the other way round"),
        pytest.param("00" * 8 + "ff" * 8, (0, -1), id="one half negative"),
    ],
)
def test_tr_08_a_chain_is_two_signed_numbers_and_is_itself_again(chain, parts):
    assert halves(chain) == parts
    assert joined(*parts) == chain


@pytest.mark.parametrize("number", range(20))
def test_tr_08_any_chain_comes_back_from_its_halves(number):
    chain = genesis(TopicIdPartition("any", number))
    assert joined(*halves(chain)) == chain
    assert all(-(2**63) <= half < 2**63 for half in halves(chain))


def test_tr_08_an_error_names_an_invalid_chain() -> None:
    with pytest.raises(CorruptRecordException, match="'' is no chain: it must be 32 hexadecimal digits"):
        halves("")
