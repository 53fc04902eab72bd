"""Dynamic settings of brokers: set, removed, refused, and known to the next controller."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.topic import Entity
from tests.controller.contexts import Active, context, errors, partition

LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
ONE, ALL = Entity("brokers", "1"), Entity("brokers", "<default>")


@pytest.fixture
def active():
    made = Active(context(partition((1, 2, 9))))
    made.context = replace(made.context, configs={ONE: {LEADER: "7"}, Entity("brokers", "8"): {LEADER: "1"}})
    return made


@pytest.mark.parametrize(
    ("broker", "put", "delete", "entity", "configs", "message"),
    [
        ("1", {FOLLOWER: 5}, [], ONE, {LEADER: "7", FOLLOWER: "5"}, f"{LEADER}=7, {FOLLOWER}=5"),
        ("1", {LEADER: "5"}, [], ONE, {LEADER: "5"}, f"{LEADER}=5"),
        ("01", {LEADER: "5"}, [], ONE, {LEADER: "5"}, f"{LEADER}=5"),
        ("1", {FOLLOWER: 5}, [LEADER], ONE, {FOLLOWER: "5"}, f"{FOLLOWER}=5"),
        ("1", {}, [LEADER], ONE, None, "no settings"),
        ("1", {}, [FOLLOWER], ONE, {LEADER: "7"}, f"{LEADER}=7"),
        ("2", {LEADER: 0}, [], Entity("brokers", "2"), {LEADER: "0"}, f"{LEADER}=0"),
        ("9", {LEADER: 3}, [], Entity("brokers", "9"), {LEADER: "3"}, f"{LEADER}=3"),
        ("8", {}, [LEADER], Entity("brokers", "8"), None, "no settings"),
        ("<default>", {LEADER: 3}, [], ALL, {LEADER: "3"}, f"{LEADER}=3"),
    ],
    ids=[
        "put", "replaced", "a number is a number", "put and removed", "removed", "removed though it is not there",
        "the first", "a broker that is down, with replicas", "a broker that is down, with settings", "all brokers",
    ],
)  # fmt: skip
def test_th_02_settings_of_a_broker_are_put_and_removed(active, broker, put, delete, entity, configs, message):
    decision = active.ask("alter_broker_configs", broker=broker, put=put, delete=delete)
    assert (errors(decision), decision.outcomes[broker].message) == ({broker: None}, message)
    assert active.context.configs.get(entity) == configs
    assert not decision.touches_metadata, "brokers read it where it stands"


def test_th_02_what_a_newer_version_has_set_stays_and_can_be_removed(active):
    there = {"leader.quota": "1", "broker.rack": "eu", LEADER: "7"}
    active.context = replace(active.context, configs={ONE: there})
    decision = active.ask("alter_broker_configs", broker="1", put={LEADER: 8}, delete=[])
    assert (errors(decision), active.context.configs[ONE]) == ({"1": None}, {**there, LEADER: "8"})
    decision = active.ask("alter_broker_configs", broker="1", put={"leader.quota": 2}, delete=[])
    assert errors(decision) == {"1": "InvalidConfigurationException"}
    decision = active.ask("alter_broker_configs", broker="1", put={}, delete=["leader.quota", "broker.rack"])
    assert (errors(decision), active.context.configs[ONE]) == ({"1": None}, {LEADER: "8"})
    assert errors(active.ask("alter_broker_configs", broker="1", put={}, delete=["leader.quota"])) != {"1": None}


@pytest.mark.parametrize(
    ("broker", "put", "delete", "error", "words"),
    [
        ("7", {LEADER: 1}, [], "BrokerNotAvailableException", "no broker 7; there are: 1, 2, 3, 9"),
        ("x", {LEADER: 1}, [], "InvalidRequestException", "'x' is no broker: it must be a broker id or <default>"),
        ("1", {"num.partitions": 1}, [], "InvalidRequestException", "num.partitions cannot change while a broker runs"),
        ("1", {}, ["broker.rack"], "InvalidRequestException", f"these can: message.max.bytes, {LEADER}, {FOLLOWER}"),
        ("1", {"rate": 1}, [], "InvalidConfigurationException", "broker 1: unknown key rate"),
        (
            "1",
            {},
            ["rate"],
            "InvalidConfigurationException",
            f"unknown key rate; message.max.bytes, {LEADER}, {FOLLOWER}, cordoned.log.dirs exist",
        ),
        ("1", {"retention.ms": 1}, [], "InvalidConfigurationException", "unknown key retention.ms"),
        ("1", {LEADER: -1}, [], "InvalidConfigurationException", f"{LEADER} is '-1', it must be an integer from 0"),
    ],
)
def test_th_02_invalid_broker_settings_are_refused(active, broker, put, delete, error, words):
    decision = active.ask("alter_broker_configs", broker=broker, put=put, delete=delete)
    assert (errors(decision), decision.configs) == ({broker: error}, {})
    assert words in decision.outcomes[broker].message
