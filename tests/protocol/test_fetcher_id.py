import pytest

from lakelog.replication.protocol.fetch_state import fetcher_id, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        pytest.param("é", 233, id="one code unit above ASCII"),
        pytest.param("\U0001f600", 31 * 0xD83D + 0xDE00, id="two code units"),
    ],
)
def test_fm_03_the_hash_of_a_topic_equals_javas(text, expected):
    assert java_hash(text) == expected


@pytest.mark.parametrize(
    ("topic", "partition", "fetchers", "expected"),
    [
        pytest.param("flights", 0, 1, 0, id="one fetcher"),
        pytest.param("a", 0, 4, 31 * 97 % 4, id="positive"),
        pytest.param("a", 1, 4, (31 * 97 + 1) % 4, id="the next partition goes to the next"),
        # 31 * 99162322 = 3074031982, above 2**31: it wraps around to -1220935314.
        pytest.param("hello", 0, 1000, 314, id="wraps around, then the absolute value"),
        pytest.param("hello", 1, 1000, 313, id="below zero the order is reversed"),
        # 31 * -2**31 wraps around to -2**31, whose absolute value does not fit into 32 bits.
        pytest.param("polygenelubricants", 0, 7, 0, id="least integer counts as 0"),
        pytest.param("polygenelubricants", 1, 7, (2**31 - 1) % 7, id="one above it"),
    ],
)
def test_fm_03_the_fetcher_id_equals_kafkas(topic, partition, fetchers, expected):
    assert fetcher_id(topic, partition, fetchers) == expected


def test_fm_03_a_fetcher_id_without_fetchers_is_refused():
    with pytest.raises(ValueError, match="fetchers is 0"):
        fetcher_id("a", 0, 0)
