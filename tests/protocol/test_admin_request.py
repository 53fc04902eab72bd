"""The arguments of every kind of request: their types and bounds."""

import pytest

from lakelog.replication.errors import InvalidRequestException, PolicyViolationException
from lakelog.replication.protocol.admin_request import PartitionLimits, check_arguments, check_limits

TOPIC = {"topic": "t"}
PUT = {"put": {}, "delete": []}

RIGHT = [
    ("create_topic", TOPIC),
    ("create_topic", {"topic": "t", "partitions": None, "replication_factor": None, "assignment": None, "configs": {}}),
    (
        "create_topic",
        {"topic": "t", "partitions": 3, "replication_factor": 2, "configs": {"a": 1, "b": None, "c": "x"}},
    ),
    ("create_topic", {"topic": "t", "assignment": {"0": [1, 2], "1": []}}),
    ("create_partitions", {"topic": "t", "total": 2}),
    ("create_partitions", {"topic": "t", "total": 2, "assignment": {"1": [2]}}),
    ("alter_configs", {**TOPIC, "put": {"a": True}, "delete": ["b"]}),
    ("alter_broker_configs", {"broker": "<default>", **PUT}),
    ("unregister_broker", {"broker": 3}),
    ("delete_topic", TOPIC),
    ("alter_partition_reassignments", {"reassignments": {"t-0": [1], "t-1": None}}),
    ("elect_leaders", {"election_type": "preferred", "partitions": None}),
    ("elect_leaders", {"election_type": "preferred", "partitions": ["t-0"]}),
]

WRONG = [
    ("make_coffee", {}, "unknown kind of request 'make_coffee'; there are: create_topic"),
    ("delete_topic", ["topic"], r"the arguments are \['topic'\], they must be an object"),
    ("delete_topic", {}, "delete_topic: topic is missing"),
    ("delete_topic", {"topic": "t", "colour": 1}, "unknown argument 'colour'; there are: topic"),
    ("delete_topic", {"topic": ["t"]}, r"topic is \['t'\], it must be a string in UTF-8"),
    ("delete_topic", {"topic": "\ud800"}, r"topic is '\\ud800', it must be a string in UTF-8"),
    ("delete_topic", {"topic": None}, "topic is None, it must be a string"),
    ("create_topic", {"topic": "t", "partitions": "3"}, "partitions is '3', it must be an integer"),
    ("create_topic", {"topic": "t", "partitions": True}, "partitions is True, it must be an integer"),
    ("create_topic", {"topic": "t", "partitions": 1.0}, r"partitions is 1\.0, it must be an integer"),
    ("create_topic", {"topic": "t", "partitions": 2**31}, "partitions is 2147483648, it must be an integer, at most"),
    ("create_topic", {"topic": "t", "partitions": -(2**40)}, "must be an integer"),
    ("create_topic", {"topic": "t", "replication_factor": 1.5}, r"replication_factor is 1\.5"),
    ("create_topic", {"topic": "t", "assignment": [[1]]}, "it must be a list of broker ids for each partition number"),
    ("create_topic", {"topic": "t", "assignment": {"first": [1]}}, "a list of broker ids for each partition number"),
    ("create_topic", {"topic": "t", "assignment": {"0": [1], "00": [2]}}, "for each partition number"),
    ("create_topic", {"topic": "t", "assignment": {"9" * 5000: [1]}}, "5009 characters"),
    ("create_topic", {"topic": "t", "assignment": {"2147483648": [1]}}, "for each partition number"),
    ("create_topic", {"topic": "t", "assignment": {"0": [True, 2]}}, "assignment is .* a list of broker ids"),
    ("create_topic", {"topic": "t", "assignment": {"0": [1.0]}}, "a list of broker ids"),
    ("create_topic", {"topic": "t", "assignment": {"0": ["1"]}}, "a list of broker ids"),
    ("create_topic", {"topic": "t", "assignment": {"0": [-1]}}, "a list of broker ids"),
    ("create_topic", {"topic": "t", "assignment": {"0": [2**31]}}, "a list of broker ids"),
    ("create_topic", {"topic": "t", "assignment": {"0": "12"}}, "a list of broker ids"),
    ("create_topic", {"topic": "t", "configs": ["a"]}, "configs is .* a value for each key"),
    ("create_topic", {"topic": "t", "configs": {"a": [1]}}, "a string, a number or a boolean for each key"),
    ("create_topic", {"topic": "t", "configs": {"a": "\udfff"}}, "a string in UTF-8"),
    ("create_partitions", {"topic": "t"}, "create_partitions: total is missing"),
    ("create_partitions", {"topic": "t", "total": None}, "total is None, it must be an integer"),
    ("alter_configs", {"topic": "t", "put": {}, "delete": "key"}, "delete is 'key', it must be a list of strings"),
    ("alter_configs", {"topic": "t", "put": {}, "delete": [1]}, "a string in UTF-8"),
    ("alter_configs", {"topic": "t", "put": {"\ud800": 1}, "delete": []}, "a string in UTF-8"),
    ("alter_broker_configs", {"broker": 1, **PUT}, "broker is 1, it must be a string"),
    ("unregister_broker", {"broker": "3"}, "broker is '3', it must be an integer"),
    ("alter_partition_reassignments", {"reassignments": ["t-0"]}, "a list of broker ids, or null, for each partition"),
    ("alter_partition_reassignments", {"reassignments": {"t-0": "1,2"}}, "a list of broker ids, or null"),
    ("alter_partition_reassignments", {"reassignments": {"\ud800": [1]}}, "a string in UTF-8"),
    ("elect_leaders", {"election_type": "preferred", "partitions": "t-0"}, "a list of strings"),
    ("elect_leaders", {"election_type": None, "partitions": None}, "election_type is None"),
]


@pytest.mark.parametrize(("kind", "arguments"), RIGHT)
def test_ev_05_valid_arguments_are_accepted(kind, arguments):
    check_arguments(kind, arguments)


@pytest.mark.parametrize(("kind", "arguments", "words"), WRONG)
def test_ev_05_an_error_names_the_invalid_argument(kind, arguments, words):
    with pytest.raises(InvalidRequestException, match=words) as refused:
        check_arguments(kind, arguments)
    assert len(str(refused.value)) < 300
    assert str(refused.value).encode()


def brokers_of(count):
    return {str(number): [1] for number in range(count)}


@pytest.mark.parametrize(
    ("kind", "argument", "of"),
    [
        ("create_topic", "partitions", lambda count: count),
        ("create_topic", "assignment", brokers_of),
        ("create_partitions", "assignment", brokers_of),
        ("alter_partition_reassignments", "reassignments", brokers_of),
        ("elect_leaders", "partitions", lambda count: ["t-0"] * count),
    ],
)
def test_ev_05_a_request_is_of_a_bounded_number_of_partitions(kind, argument, of):
    limits, given = PartitionLimits(100, 5), {"topic": "t", "total": 9}
    check_limits(kind, {**given, argument: of(5)}, limits)
    with pytest.raises(PolicyViolationException, match=f"{kind}: 6 partitions .*per.request .5.;"):
        check_limits(kind, {**given, argument: of(6)}, limits)


@pytest.mark.parametrize(
    ("kind", "argument", "of"),
    [
        ("create_topic", "partitions", lambda count: count),
        ("create_topic", "assignment", brokers_of),
        ("create_partitions", "total", lambda count: count),
    ],
)
def test_ev_05_a_topic_has_a_bounded_number_of_partitions(kind, argument, of):
    limits = PartitionLimits(5, 100)
    check_limits(kind, {"topic": "t", argument: of(5)}, limits)
    with pytest.raises(PolicyViolationException, match=r"topic t: 6 partitions exceed .*per\.topic .5.$"):
        check_limits(kind, {"topic": "t", argument: of(6)}, limits)
