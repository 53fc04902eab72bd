"""`lakelog configs`: values in force and their source, unknown names, and settings that cannot be met."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import configs, topics
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import KEYS, TOPIC_KEYS
from lakelog.replication.protocol.avro_schema import parse_avro
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.cluster import Cluster

Run = Any  # what a verb has answered: (status, stdout, stderr)

TOPIC = ("--entity-type", "topics", "--entity-name", "t")
BROKERS = ("--entity-type", "brokers")
RATE = "follower.replication.throttled.rate"
NOT_COUNTED = "The properties files of brokers are not counted in: name one with --command-config.\n"


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(f"min.insync.replicas=2\nlog.retention.ms=5000\n{RATE}=7\nnum.partitions=1\n")
    return path


def described(on_t: Run, *words: Any) -> dict[str, tuple[str, str]]:
    status, out, _ = on_t(configs, "--describe", "--all", *words, "-o", "json")
    assert status == 0
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(out)}


def test_each_setting_of_a_topic_has_its_source(on_t: Run, properties: Path) -> None:
    assert on_t(configs, "--alter", *TOPIC, "--add-config", "retention.bytes=9,min.insync.replicas=1")[0] == 0
    found = described(on_t, *TOPIC)
    assert list(found) == list(TOPIC_KEYS)
    assert found["min.insync.replicas"] == ("1", "DYNAMIC_TOPIC_CONFIG")
    assert found["retention.ms"] == ("604800000", "DEFAULT_CONFIG")
    found = described(on_t, *TOPIC, "--command-config", properties)
    assert found["min.insync.replicas"] == ("1", "DYNAMIC_TOPIC_CONFIG")
    assert found["retention.ms"] == ("5000", "STATIC_BROKER_CONFIG")
    assert found["leader.replication.throttled.replicas"] == ("", "DEFAULT_CONFIG")


def test_the_schemas_of_avro_that_a_topic_has_had_are_shown_by_their_names(on_t: Run) -> None:
    text = '{"type":"record","name":"Sale","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","int"]}]}'
    given = f"value.schema=[{text}],value.schema.type=AVRO,value.schema.id=7"
    assert on_t(configs, "--alter", *TOPIC, "--add-config", given)[0] == 0
    name = parse_avro(text).fingerprint.hex()
    for verb, words in ((configs, TOPIC), (topics, ("--topic", "t"))):
        assert f"value.schema.history=1 schema: {name} id 7" in on_t(verb, "--describe", *words)[1]
    rows = json.loads(on_t(configs, "--describe", *TOPIC, "-o", "json")[1])
    (history,) = (json.loads(row["value"]) for row in rows if row["key"] == "value.schema.history")
    assert history == [{"fingerprint": name, "ids": [7], "schema": json.loads(text)}]
    assert on_t(configs, "--alter", *TOPIC, "--delete-config", "value.schema,value.schema.history")[0] == 0
    assert "value.schema.history" not in on_t(configs, "--describe", *TOPIC)[1]


def test_ap_06_the_largest_record_of_a_topic_is_its_own_or_that_of_all_brokers(
    on_t: Run, admin: AdminClient, properties: Path
) -> None:
    with properties.open("a") as file:
        file.write("message.max.bytes=7\n")
    found = [described(on_t, *TOPIC)["max.message.bytes"]]
    found.append(described(on_t, *TOPIC, "--command-config", properties)["max.message.bytes"])
    admin.alter_broker_configs("<default>", {"message.max.bytes": 8})
    found.append(described(on_t, *TOPIC, "--command-config", properties)["max.message.bytes"])
    assert on_t(configs, "--alter", *TOPIC, "--add-config", "max.message.bytes=9")[0] == 0
    found.append(described(on_t, *TOPIC)["max.message.bytes"])
    assert found == [
        ("1048588", "DEFAULT_CONFIG"),
        ("7", "STATIC_BROKER_CONFIG"),
        ("8", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("9", "DYNAMIC_TOPIC_CONFIG"),
    ]


def test_describe_all_warns_that_properties_files_are_not_counted_in(on_t: Run, properties: Path) -> None:
    status, out, err = on_t(configs, "--describe", "--all", *TOPIC)
    assert (status, err) == (0, f"{NOT_COUNTED}All configs for topic t are:\n")
    assert out.splitlines()[0] == "  min.insync.replicas=1 source=DEFAULT_CONFIG"
    err = on_t(configs, "--describe", "--all", *TOPIC, "--command-config", properties)[2]
    assert err == "All configs for topic t are:\n"


def test_each_setting_of_a_broker_has_its_source(on_t: Run, admin: AdminClient, properties: Path) -> None:
    admin.alter_broker_configs("<default>", {RATE: 5, "leader.replication.throttled.rate": 6})
    admin.alter_broker_configs(2, {RATE: 4})
    found = described(on_t, *BROKERS, "--entity-name", "2", "--command-config", properties)
    assert list(found) == list(KEYS)
    assert found[RATE] == ("4", "DYNAMIC_BROKER_CONFIG")
    assert found["leader.replication.throttled.rate"] == ("6", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert (found["broker.id"], found["broker.rack"]) == (("2", "BROKER_REGISTRATION"), ("", "BROKER_REGISTRATION"))
    assert found["num.replica.fetchers"] == ("1", "CLUSTER_CONFIG")
    assert found["num.partitions"] == ("1", "STATIC_BROKER_CONFIG")
    assert found["log.retention.bytes"] == ("-1", "DEFAULT_CONFIG")
    assert described(on_t, *BROKERS, "--entity-name", "1")[RATE] == ("5", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert described(on_t, *BROKERS, "--entity-default")[RATE] == ("5", "DYNAMIC_DEFAULT_BROKER_CONFIG")


def test_without_a_name_all_that_are_registered_are_described_in_full(on_t: Run) -> None:
    out = on_t(configs, "--describe", "--all", *BROKERS, "-o", "json")[1]
    assert sorted({row["broker"] for row in json.loads(out)}) == ["1", "2", "3"]


def test_a_default_time_that_depends_on_the_store_is_shown_with_its_value(on_t: Run) -> None:
    found = described(on_t, *BROKERS, "--entity-name", "1")
    sessions = "broker.session.timeout.ms", "controller.session.timeout.ms"
    assert {found[name] for name in sessions} == {("6000", "DEFAULT_CONFIG")}
    assert found["broker.heartbeat.interval.ms"] == ("2000", "DEFAULT_CONFIG")


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_settings_of_an_unknown_broker_or_topic_are_an_error(on_t: Run, words: list[str]) -> None:
    status, out, err = on_t(configs, "--describe", *words, *BROKERS, "--entity-name", "9", "-o", "json")
    message = "no broker 9 has registered; there are: 1, 2, 3"
    assert (status, err.splitlines()[-1]) == (1, f"lakelog: BrokerNotAvailableException: {message}")
    assert json.loads(out) == {"error": {"code": "BrokerNotAvailableException", "message": message}}
    status, out, err = on_t(configs, "--describe", *words, "--entity-type", "topics", "--entity-name", "u")
    assert (status, out) == (1, "")
    assert err.endswith("lakelog: UnknownTopicOrPartitionException: no topic u; there are: t\n")


def test_a_broker_that_has_registered_may_have_no_dynamic_settings(on_t: Run, admin: AdminClient) -> None:
    assert on_t(configs, "--describe", *BROKERS, "--entity-name", "3")[:2] == (0, "")
    assert on_t(configs, "--describe", *BROKERS, "--entity-default")[:2] == (0, "")
    admin.alter_broker_configs("<default>", {RATE: 5})
    assert on_t(configs, "--describe", *BROKERS)[1] == f"  {RATE}=5\n"


def test_dynamic_settings_of_a_broker_without_a_registration_are_described(on_t: Run, cluster: str) -> None:
    Cluster.open(cluster).configs.change({Entity("brokers", "7"): {RATE: "3"}}, {"who": "test"})
    assert on_t(configs, "--describe", *BROKERS, "--entity-name", "7")[:2] == (0, f"  {RATE}=3\n")


def warning(topic: str, replicas: int) -> str:
    return (
        f"lakelog: warning: topic {topic}: min.insync.replicas is 3, but a partition has {replicas} replicas; "
        f"acks=all fails as soon as one of the {replicas} is out of sync\n"
    )


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_min_isr_above_the_replication_factor_is_warned_of(on_t: Run, dry_run: list[str]) -> None:
    asked = ("--config", "min.insync.replicas=3", *dry_run)
    status, _, err = on_t(topics, "--create", "--topic", "u", "--replication-factor", 2, *asked)
    assert (status, warning("u", 2) in err) == (0, True)
    status, _, err = on_t(topics, "--create", "--topic", "v", "--replica-assignment", "1:2,2:3", *asked)
    assert (status, warning("v", 2) in err) == (0, True)
    assert "warning" not in on_t(topics, "--create", "--topic", "w", "--replication-factor", 3, *asked)[2]
    assert on_t(topics, "--create", "--topic", "x", *asked)[0] == 0, "the controller chooses the factor"
    words = ("--alter", *TOPIC, "--add-config", "min.insync.replicas=3", *dry_run)
    status, _, err = on_t(configs, *words)
    assert (status, warning("t", 2) in err) == (0, True)
    assert "warning" not in on_t(configs, "--alter", *TOPIC, "--add-config", "min.insync.replicas=2", *dry_run)[2]


def test_the_factor_that_the_controller_chooses_counts_too(on_t: Run) -> None:
    err = on_t(topics, "--create", "--topic", "u", "--config", "min.insync.replicas=3")[2]
    assert warning("u", 1) in err
