"""Throttles: set by `configs`, and set by a reassignment and removed by its verification."""

import argparse
import json
from typing import Any

import pytest

from lakelog.jobs import configs, reassign_partitions
from lakelog.jobs.admin.reassignment_throttle import REPLICAS, moves, throttled_replicas
from lakelog.jobs.configs import config_pairs
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.protocol.partition_registration import PartitionRegistration

Run = Any  # what a verb has answered: (status, stdout, stderr)

LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=[0:1,0:2]", {"a": "0:1,0:2"}),
        ("a=[0:1,0:2],b=[1:1],c=*", {"a": "0:1,0:2", "b": "1:1", "c": "*"}),
        ("a=[]", {"a": ""}),
        ("a=[b", {"a": "[b"}),
        ("a=b],c=1", {"a": "b]", "c": "1"}),
        ('a=[{"x": ["y", "z"], "w": [1]}],b=2', {"a": '{"x": ["y", "z"], "w": [1]}', "b": "2"}),
        ('value.schema.history=[{"ids": [7, 8]}, {}],b=2', {"value.schema.history": '[{"ids": [7, 8]}, {}]', "b": "2"}),
        ('value.schema.history=[ [{"ids": [7, 8]}]]', {"value.schema.history": ' [{"ids": [7, 8]}]'}),
        ("a=[x INT,\n y DECIMAL(10, 2)]", {"a": "x INT,\n y DECIMAL(10, 2)"}),
    ],
)
def test_brackets_hold_a_value_with_commas_together(text: str, pairs: dict[str, str]) -> None:
    assert config_pairs(text) == pairs


@pytest.mark.parametrize("text", ["a", "a=1,b", "a=1,", "=1"])
def test_a_setting_that_is_no_key_and_value_is_wrong_usage(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"form key=value; a value with commas .* key=\[value\]"):
        config_pairs(text)


def test_th_02_settings_of_brokers_are_altered_and_described(on_t: Run) -> None:
    of_2 = ("--entity-type", "brokers", "--entity-name", "2")
    put = ("--alter", "--add-config", f"{LEADER}=5,{FOLLOWER}=6")
    assert on_t(configs, *of_2, *put) == (0, "", f"2: {LEADER}=5, {FOLLOWER}=6\n")
    assert on_t(configs, *of_2, "--alter", "--delete-config", LEADER) == (0, "", f"2: {FOLLOWER}=6\n")
    of_all = ("--entity-type", "brokers", "--entity-default")
    assert on_t(configs, *of_all, *put[:2], f"{LEADER}=7")[0] == 0
    assert on_t(configs, *of_2, "--describe") == (0, f"  {FOLLOWER}=6\n", "Dynamic configs for broker 2 are:\n")
    assert on_t(configs, "--entity-type", "brokers", "--entity-name", "3", "--describe")[1] == ""
    rows = json.loads(on_t(configs, "--entity-type", "brokers", "--describe", "-o", "json")[1])
    assert rows == [
        {"broker": "2", "key": FOLLOWER, "value": "6"},
        {"broker": "<default>", "key": LEADER, "value": "7"},
    ]


@pytest.mark.parametrize(
    ("broker", "config", "words"),
    [
        ("9", f"{LEADER}=5", "lakelog: BrokerNotAvailableException: no broker 9; there are: 1, 2, 3\n"),
        ("1", "broker.rack=a", "lakelog: InvalidRequestException: broker 1: broker.rack cannot change while a broker"),
        ("1", "rate=5", "lakelog: InvalidConfigurationException: broker 1: unknown key rate"),
    ],
)
def test_th_02_settings_that_cannot_be_are_refused(on_t: Run, broker: str, config: str, words: str) -> None:
    of = ("--entity-type", "brokers", "--entity-name", broker)
    status, out, err = on_t(configs, *of, "--alter", "--add-config", config)
    assert (status, out) == (1, "")
    assert err.startswith(words)


def test_th_02_a_dry_run_alters_no_settings(on_t: Run, admin: AdminClient) -> None:
    of = ("--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", f"{LEADER}=5")
    status, out, err = on_t(configs, *of, "--dry-run", "-o", "json")
    assert (status, json.loads(out)[0]["message"]) == (0, f"{LEADER}=5")
    assert err == "Nothing was written. This is what would be done.\n"
    assert admin.describe_broker_configs() == {}


def move(partition: int, *replicas: int) -> dict[str, Any]:
    return {"version": 1, "partitions": [{"topic": "t", "partition": partition, "replicas": list(replicas)}]}


def topic_settings(admin: AdminClient) -> tuple[str | None, ...]:
    configs_of_t = admin.describe_topic("t").topic.configs
    return tuple(configs_of_t.get(key) for key in REPLICAS)


def test_th_02_a_reassignment_is_throttled_until_it_is_verified(on_t: Run, admin: AdminClient, write: Any) -> None:
    """Partition 0 goes from brokers 1 and 2 to 2 and 3, by which broker 3 alone has anything to fetch."""
    words = ("--reassignment-json-file", write(move(0, 2, 3)))
    status, _, err = on_t(reassign_partitions, "--execute", *words, "--throttle", 1000)
    assert (status, "limit was set to 1000 B/s" in err) == (0, True)
    assert topic_settings(admin) == ("0:1,0:2", "0:3")
    assert admin.describe_broker_configs() == {b: {LEADER: "1000", FOLLOWER: "1000"} for b in ("1", "2", "3")}
    assert on_t(reassign_partitions, "--verify", *words)[2] == "Status of partition reassignment:\n"
    assert topic_settings(admin) == ("0:1,0:2", "0:3"), "it is still under way"
    assert on_t(reassign_partitions, "--cancel", *words)[0] == 0
    assert on_t(reassign_partitions, "--verify", *words, "--preserve-throttles")[0] == 0
    assert topic_settings(admin) == ("0:1,0:2", "0:3")
    assert on_t(reassign_partitions, "--verify", *words)[2].splitlines() == [
        "Status of partition reassignment:",
        "Cleared broker-level throttles on brokers 1,2,3",
        "Cleared topic-level throttles on topic t",
    ]
    assert (topic_settings(admin), admin.describe_broker_configs()) == ((None, None), {})


def test_th_02_a_throttle_is_changed_while_partitions_move(on_t: Run, admin: AdminClient, write: Any) -> None:
    """Partition 0 moves already when partition 1 begins to: both are throttled, at the rate that was told last."""
    on_t(reassign_partitions, "--execute", "--reassignment-json-file", write(move(0, 2, 3)), "--throttle", 1000)
    on_t(reassign_partitions, "--execute", "--reassignment-json-file", write(move(1, 3, 1)), "--throttle", 500)
    assert topic_settings(admin) == ("0:1,0:2,1:2,1:3", "0:3,1:1")
    assert set(admin.describe_broker_configs()["1"].values()) == {"500"}


def test_th_02_a_partition_that_gains_no_replica_is_not_throttled(on_t: Run, admin: AdminClient, write: Any) -> None:
    words = ("--reassignment-json-file", write(move(0, 2)), "--throttle", 1000)
    status, _, err = on_t(reassign_partitions, "--execute", *words)
    assert (status, "limit was set" in err) == (0, False)
    assert (topic_settings(admin), admin.describe_broker_configs()) == ((None, None), {})


def test_th_02_a_dry_run_throttles_nothing(on_t: Run, admin: AdminClient, write: Any) -> None:
    words = ("--reassignment-json-file", write(move(0, 2, 3)), "--throttle", 1000, "--dry-run")
    assert on_t(reassign_partitions, "--execute", *words)[0] == 0
    assert (topic_settings(admin), admin.describe_broker_configs()) == ((None, None), {})


def test_th_02_a_partition_that_cannot_move_is_refused_also_with_a_throttle(
    on_t: Run, admin: AdminClient, write: Any
) -> None:
    words = ("--reassignment-json-file", write(move(0, 2, 9)), "--throttle", 1000)
    status, _, err = on_t(reassign_partitions, "--execute", *words)
    assert (status, "InvalidReplicaAssignmentException: t-0" in err) == (1, True)
    assert set(admin.describe_broker_configs()) == {"1", "2"}


@pytest.mark.parametrize(
    "words", [["--execute", "--throttle", "0"], ["--execute", "--throttle", "x"], ["--verify", "--throttle", "5"],
              ["--execute", "--preserve-throttles"]],
)  # fmt: skip
def test_a_throttle_that_cannot_be_is_wrong_usage(lakelog: Run, cluster: str, write: Any, words: list[str]) -> None:
    given = (*words, "--reassignment-json-file", write(move(0, 2, 3)))
    assert lakelog(reassign_partitions, "--cluster", cluster, *given)[0] == 2


@pytest.mark.parametrize(
    ("row", "target", "expected"),
    [
        (((1, 2), (), ()), [1, 2], ("", "")),
        (((1, 2), (), ()), [2, 1], ("", "")),
        (((1, 2), (), ()), [3, 1], ("0:1,0:2", "0:3")),
        (((1, 2), (), ()), [1, 2, 3, 4], ("0:1,0:2", "0:3,0:4")),
        (((1, 2), (), ()), [2], ("", "")),
        (((3, 1, 2), (3,), (2,)), [4], ("0:1,0:2", "0:4")),
        (((3, 1, 2), (3,), (2,)), [1], ("", "")),
        (((3, 1, 2), (3,), (2,)), None, ("0:1,0:2", "0:3")),
        (((1, 2), (), (2,)), None, ("", "")),
    ],
    ids=[
        "stays",
        "another order",
        "one for another",
        "two more",
        "fewer",
        "moves already, and now elsewhere",
        "moves already, and goes back",
        "moves already",
        "loses one already",
    ],
)
def test_th_02_a_moving_partition_throttles_its_leaders_and_its_new_followers(
    row: tuple[tuple[int, ...], ...], target: list[int] | None, expected: tuple[str, str]
) -> None:
    replicas, adding, removing = row
    found = PartitionRegistration("t", "t-id", 0, replicas, replicas[0], 0, (1,), 0, 0, adding, removing)
    other = PartitionRegistration("u", "u-id", 0, (1, 2), 1, 0, (1,), 0, 0, (2,), ())
    wanted: dict[tuple[str, int], list[int]] = {("t", 1): [1], ("v", 0): [1]}
    moving = moves({("t", 0): found, ("u", 0): other}, wanted if target is None else {**wanted, ("t", 0): target})
    assert throttled_replicas(moving) == expected
