import pytest

from lakelog.replication.errors import InvalidTopicException
from lakelog.replication.protocol.topic import check_not_internal, check_topic_name


@pytest.mark.parametrize("name", ["a", "flights", "A.b_c-9", "...", "x" * 249])
def test_a_valid_topic_name_is_accepted(name):
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        (".", "folder"),
        ("..", "folder"),
        ("x" * 250, "250 characters: at most 249"),
        ("a b", "characters other than"),
        ("a/b", "characters other than"),
        ("a\n", "characters other than"),
        ("vuelos_años", "characters other than"),
        ("٣", "characters other than"),
    ],
)
def test_an_invalid_topic_name_is_refused(name, problem):
    with pytest.raises(InvalidTopicException, match=problem):
        check_topic_name(name)


@pytest.mark.parametrize("name", [5, b"orders", None, ["orders"]])
def test_a_topic_name_that_is_no_text_is_refused(name):
    problem = f"is of type {type(name).__name__}, it must be text"
    for check in (check_topic_name, lambda topic: check_not_internal(topic, "a producer")):
        with pytest.raises(InvalidTopicException, match=problem):
            check(name)
