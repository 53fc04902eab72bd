"""Rows and columns of a state table: what has not changed is taken over, and nothing else."""

from random import Random

import pyarrow as pa
import pytest

from lakelog.replication.storage.tables.state_table import RowCodec, RowValues
from lakelog.schemas import REPLICAS, TOPICS

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("numbers", pa.list_(pa.int32())),
        pa.field("epochs", REPLICAS.arrow.field("epochs").type),
    ]
)


def row(random, key):
    epochs = [
        {"leader_epoch": number, "start_offset": random.choice((0, None)), "chain": random.choice(("a", "b"))}
        for number in range(random.randrange(3))
    ]
    numbers = random.choice((None, [], [1], [2], [1, 2], [2, None]))
    return {"key": key, "text": random.choice((None, "", "x")), "numbers": numbers, "epochs": epochs}


def moved(random, rows):
    """Some of the rows in another order, some of them new, and new ones between them."""
    kept = [random.choice((old, row(random, old["key"]))) if random.random() < 0.3 else old for old in rows]
    if random.random() < 0.5:
        kept = random.sample(kept, random.randrange(len(kept) + 1)) + [row(random, key) for key in range(2)]
    return kept


@pytest.mark.parametrize("seed", range(100))
def test_rows_and_columns_are_those_that_a_conversion_of_everything_gives(seed):
    random, reader, writer = Random(seed), RowCodec(SCHEMA), RowCodec(SCHEMA)
    rows = [row(random, key) for key in range(random.choice((0, 1, 5, 64, 65, 200)))]
    for _ in range(5):
        columns = pa.Table.from_pylist(rows, SCHEMA)
        assert writer.encode(rows).equals(columns)
        assert reader.decode(columns) == rows
        rows = moved(random, reader.decode(columns) if random.random() < 0.5 else rows)


@pytest.mark.parametrize("numbers", [[1], [1] * 2000], ids=["short", "long"])
@pytest.mark.parametrize("count", [9, 64, 65, 200])
def test_rows_that_have_not_changed_are_the_same_dicts(count, numbers):
    random, codec = Random(1), RowCodec(SCHEMA)
    rows = [{**row(random, key), "numbers": numbers} for key in range(count)]
    first = codec.decode(pa.Table.from_pylist(rows, SCHEMA))
    rows[4] = {**rows[4], "epochs": [{"leader_epoch": 7, "start_offset": 7, "chain": "c"}]}
    second = codec.decode(pa.Table.from_pylist(rows, SCHEMA))
    assert [a is b for a, b in zip(first, second, strict=True)] == [key != 4 for key in range(count)]
    assert (first[4]["epochs"], second[4]["epochs"]) != (second[4]["epochs"],) * 2


@pytest.mark.parametrize("count", [1, 65])
def test_a_column_that_cannot_be_compared_is_read_anew(count):
    codec = RowCodec(TOPICS.arrow)
    topics = [{"topic": "t", "topic_id": "id", "partitions": 1, "configs": [("a", n)], "deleting": False} for n in "12"]
    for topic in topics:
        assert codec.decode(pa.Table.from_pylist([topic] * count, TOPICS.arrow)) == [topic] * count


def test_a_value_that_does_not_fit_is_an_error_and_is_not_remembered():
    codec = RowCodec(SCHEMA)
    good = {"key": 1, "text": None, "numbers": None, "epochs": None}
    codec.encode([good])
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        codec.encode([good, {**good, "key": "one"}])
    assert codec.encode([good]).to_pylist() == [good]


def test_values_that_have_not_changed_are_the_same_objects_and_need_no_conversion():
    asked = []

    def value_of(row):
        asked.append(row)
        return (row["key"], row["text"])

    values = RowValues(value_of, lambda value: {"key": value[0], "text": value[1]}, lambda value: value[0])
    rows = [{"key": key, "text": "x"} for key in (2, 1)]
    first = values.decode(rows)
    assert list(first) == [2, 1]
    second = values.decode([rows[1], {"key": 3, "text": "y"}])
    assert (list(second), second[1] is first[1], len(asked)) == ([1, 3], True, 3)
    wanted = {5: (5, "z"), 3: second[3], 1: second[1]}
    encoded, ordered = values.encode(wanted)
    assert (list(ordered), encoded[0] is rows[1], len(asked)) == ([1, 3, 5], True, 3)
    assert encoded == [{"key": 1, "text": "x"}, {"key": 3, "text": "y"}, {"key": 5, "text": "z"}]
    assert values.decode(encoded) == ordered
    assert len(asked) == 3


def test_a_row_that_two_keys_share_is_converted_like_any_other():
    values = RowValues(dict, dict, lambda value: value["key"])
    rows = [{"key": 1, "text": "x"}, {"key": 1, "text": "y"}]
    for _ in range(2):
        assert values.decode(rows) == {1: rows[1]}
    assert values.encode({1: rows[0]})[0] == rows[:1]


def test_values_that_change_places_have_their_own_keys():
    values = RowValues(lambda row: (row["key"],), lambda value: {"key": value[0]}, lambda value: value[0])
    rows = [{"key": key} for key in (1, 2)]
    assert list(values.decode(rows)) == [1, 2]
    assert values.decode(rows[::-1]) == {2: (2,), 1: (1,)}
    assert values.encode({2: (2,), 1: (1,)}) == (rows, {1: (1,), 2: (2,)})
