"""The options of a read, and what is wrong with them."""

import logging

import pytest

from lakelog.replication.clients.source.offset_spec import EARLIEST, LATEST, OffsetSpec
from lakelog.replication.clients.source.source_options import parse_options
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.record_batch import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NEEDED = {"cluster": "/lake", "subscribe": "a"}


def parsed(**given):
    return parse_options({**NEEDED, **{name.replace("__", "."): value for name, value in given.items()}})


def test_options_of_the_source_default_to_those_of_the_kafka_source():
    found = parsed()
    assert (found.cluster, found.topics, found.pattern, found.assigned) == ("/lake", ("a",), None, frozenset())
    assert found.batch_starting == OffsetSpec(EARLIEST, "startingOffsets")
    assert found.stream_starting == OffsetSpec(LATEST, "startingOffsets")
    assert found.ending == OffsetSpec(LATEST, "endingOffsets")
    assert (found.fail_on_data_loss, found.include_headers, found.include_leader_epoch) == (True, False, False)
    assert (found.max_offsets, found.min_offsets, found.max_trigger_delay_ms) == (None, None, 900_000)
    assert (found.min_partitions, found.max_records_per_partition, found.rack, found.group) == (None, None, None, None)


def test_option_names_have_any_case_and_kafka_bootstrap_servers_is_the_cluster():
    found = parse_options({"KAFKA.bootstrap.SERVERS": "/lake", "SUBSCRIBE": " a, b ,a", "INCLUDEheaders": "TRUE"})
    assert (found.cluster, found.topics, found.include_headers) == ("/lake", ("a", "b"), True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "EARLIEST"}, OffsetSpec(EARLIEST, "startingOffsets")),
        (
            {"startingOffsets": '{"a": {"0": 23, "1": -2}}'},
            OffsetSpec(LATEST, "startingOffsets", offsets={A0: 23, A1: -2}),
        ),
        (
            {"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "startingOffsets": "earliest"},
            OffsetSpec(LATEST, "startingOffsetsByTimestamp", timestamps={A0: 5}),
        ),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"a": {"0": 5}}', "startingOffsets": "earliest"},
            OffsetSpec(LATEST, "startingTimestamp", timestamp=7),
        ),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"},
            OffsetSpec(LATEST, "startingTimestamp", timestamp=7, or_latest=True),
        ),
        ({"startingOffsets": "group", "kafka__group__id": "g"}, OffsetSpec(LATEST, "startingOffsets", is_group=True)),
    ],
)
def test_the_option_of_one_timestamp_wins_over_timestamps_and_those_over_offsets(given, expected):
    assert parsed(**given).stream_starting == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cluster": ""}, "option cluster is missing; allowed: the URI of a cluster root"),
        (
            {"kafka__bootstrap__servers": "/other"},
            "options cluster and kafka.bootstrap.servers are the same and differ: '/lake' and '/other'",
        ),
        ({"subscribePattern": "a.*"}, "options subscribe, subscribePattern exclude one another"),
        ({"subscribe": " , "}, "option subscribe names no topic"),
        ({"startingOffset": "latest"}, "option startingOffset is unknown; did you mean startingOffsets?"),
        ({"owner": "root"}, "a topic cannot be a table of Spark's catalog"),
        ({"provider": "lakelog", "option__subscribe": "a"}, "instead of CREATE TABLE use CREATE TEMPORARY VIEW"),
        ({"path": "/x"}, "option path is unknown; "),
        ({"startingOffsets": "soon"}, "option startingOffsets is 'soon'; allowed: earliest, latest, group, or JSON"),
        ({"endingOffsets": "group"}, "option endingOffsets is 'group'; allowed: latest, or JSON"),
        ({"startingOffsets": '{"a": {"0": 1'}, "is no JSON: Expecting ',' delimiter at line 1, column 14"),
        ({"startingOffsets": '{"a": {"0": 1, "0": 2}}'}, 'startingOffsets: "0" is there twice'),
        ({"startingOffsets": "{}"}, "option startingOffsets: it names no partition"),
        ({"startingOffsets": '{"a": 5}'}, 'startingOffsets: "a" has 5; allowed: JSON such as'),
        ({"startingOffsets": '{"a": {"x": 5}}'}, "topic a has 'x', which is no number of a partition"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "a-0 has true, which is no whole number"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "a-0 has -3; allowed: whole numbers from 0 on, -1 for latest"),
        ({"startingTimestamp": "-1"}, "option startingTimestamp is '-1'; allowed: milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "a-0 has -1; allowed: whole numbers from 0 on"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "is 'x'; allowed: error, latest"),
        ({"startingOffsets": "group"}, "option startingOffsets is group; it needs kafka.group.id"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss is 'perhaps'; allowed: true, false"),
        ({"minPartitions": "0"}, "option minPartitions is '0'; allowed: whole numbers from 1 on"),
        ({"maxRecordsPerPartition": "many"}, "option maxRecordsPerPartition is 'many'; allowed: whole numbers"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is 9; allowed: at most maxOffsetsPerTrigger, 8"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon'; allowed: a number and a unit"),
        ({"storage__cluster": "x"}, "storage.cluster"),
    ],
)
def test_a_wrong_option_is_an_error_with_the_allowed_values(given, text):
    with pytest.raises(InvalidConfigurationException) as error:
        parsed(**given)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "give one of the options subscribe, subscribePattern, assign"),
        ({"subscribePattern": " "}, "option subscribePattern is empty"),
        ({"subscribePattern": "("}, "option subscribePattern is '(', no regular expression"),
        ({"assign": "[]"}, 'option assign: it is []; allowed: JSON such as {"orders": [0, 1]}'),
        ({"assign": "{}"}, "option assign: it names no partition"),
        ({"assign": '{"a": []}'}, 'option assign: "a" has []'),
        ({"assign": '{"a": [0.5]}'}, "topic a has '0.5', which is no number of a partition"),
    ],
)
def test_a_missing_or_wrong_choice_of_partitions_is_refused(given, text):
    with pytest.raises(InvalidConfigurationException) as error:
        parse_options({"cluster": "/lake", **given})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsets": "latest"}, "option startingOffsets: latest (-1) is wrong"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "latest (-1) for a-0 is wrong"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: earliest (-2) is wrong"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "earliest (-2) for a-0 is wrong"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger is for streams"),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay is for streams"),
    ],
)
def test_a_batch_read_refuses_a_start_at_latest_an_end_at_earliest_and_options_of_streams(given, text):
    with pytest.raises(InvalidConfigurationException) as error:
        parsed(**given).check_batch()
    assert text in str(error.value)
    parsed(**given).check_stream() if "endingOffsets" not in given else None


def test_a_start_without_an_offset_is_earliest_for_batches_and_latest_for_streams():
    for given in (
        {"startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": "group", "kafka__group__id": "g"},
    ):
        found = parsed(**given)
        found.check_batch()
        assert (found.batch_starting.everywhere, found.stream_starting.everywhere) == (EARLIEST, LATEST)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_refuses_ending_offsets(name):
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"a": {"0": 1}}')
    options = parsed(**{name: value})
    options.check_batch()
    with pytest.raises(InvalidConfigurationException, match=f"option {name} is for batch reads"):
        options.check_stream()


def test_options_of_kafka_without_effect_are_named_in_one_warning(caplog):
    with caplog.at_level(logging.WARNING):
        given = {"kafka.session.timeout.ms": "1", "fetchOffset.numRetries": "3", "kafka.request.timeout.ms": "77"}
        options = parse_options({**NEEDED, **given}, warn=True)
    (record,) = caplog.records
    assert record.getMessage() == "options without effect here: fetchOffset.numRetries, kafka.session.timeout.ms"
    assert options.config.request_timeout_ms == 77


def test_options_of_storage_are_passed_to_the_roots():
    options = parsed(storage__cluster__aws_endpoint_url="http://x", storage__2__aws_region="eu").config
    assert options.storage_options("cluster", {}) == {"AWS_ENDPOINT_URL": "http://x"}
    assert options.storage_options(2, {}) == {"AWS_REGION": "eu"}
