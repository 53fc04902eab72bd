"""Which headers are accepted."""

import dataclasses

import pytest

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.log_validator import validate_headers
from lakelog.replication.protocol.record_batch import BatchHeader

GOOD = BatchHeader("t", "id", 0, 3, 10, 12, -5, 0, digest="d", previous="p")


def changed(**changes):
    """A header with other values and their chain."""
    return linked(dataclasses.replace(GOOD, **changes), "p")


def test_valid_headers_are_accepted():
    validate_headers([changed(), changed(partition=1), changed(base_offset=13, last_offset=13)], 7)
    validate_headers([changed(base_offset=20, last_offset=20), changed()], 4)
    validate_headers([], 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": ""}, {"topic": None}, {"topic_id": 7}, {"digest": ""},
        {"partition": "0"}, {"partition": True}, {"partition": -1}, {"partition": 2**31}, {"partition": 0.0},
        {"leader_epoch": -1}, {"leader_epoch": 2**31}, {"leader_epoch": None},
        {"base_offset": -1}, {"last_offset": 9}, {"last_offset": 2**63 - 1}, {"last_offset": 2**70},
        {"max_timestamp": 2**63}, {"bytes": -1},
        {"producer_id": -2}, {"producer_epoch": -2}, {"base_sequence": -2}, {"base_sequence": 2**31},
    ],
)  # fmt: skip
def test_an_impossible_header_value_is_refused(changes):
    header = changed(**changes)
    with pytest.raises(CorruptRecordException, match=next(iter(changes)).split("_")[-1]):
        validate_headers([header], 3)


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_headers_with_another_number_of_rows_are_refused(rows):
    with pytest.raises(CorruptRecordException, match=f"describe 3 records, but it has {rows} rows"):
        validate_headers([changed()], rows)


@pytest.mark.parametrize("base", [10, 12])
def test_overlapping_headers_are_refused(base):
    with pytest.raises(CorruptRecordException, match=f"t-0 has offset {max(base, 10)} twice"):
        validate_headers([changed(base_offset=base, last_offset=13), changed()], 0)


@pytest.mark.parametrize("changes", [{"bytes": 1}, {"digest": "e"}, {"previous": "q"}, {"chain": "c"}])
def test_a_header_with_another_chain_is_refused(changes):
    with pytest.raises(CorruptRecordException, match="does not have the chain of its header"):
        validate_headers([dataclasses.replace(changed(), **changes)], 3)
