"""Topics are created, extended and configured."""

import json
from dataclasses import replace

import pytest

from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.controller.decide import decide
from tests.controller.contexts import NOBODY, Active, changed, check, context, errors, partition, request, tp

NEW, ONLINE = "NewReplica", "OnlineReplica"
RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


def made(decision):
    return {r.partition: r.replicas for r in decision.changed.values() if r.topic == "new"}


def create(active, request_id="new-id", **arguments):
    return active.ask("create_topic", request_id, topic="new", **arguments)


def test_li_02_le_03_a_topic_is_created_with_the_given_assignment():
    active = Active(context(partition()))
    decision = create(active, assignment={"0": [2, 3], "1": [1, 2]}, configs={"min.insync.replicas": 2})
    assert (errors(decision), made(decision)) == ({"new": None}, {0: (2, 3), 1: (1, 2)})
    assert decision.outcomes["new"].message == "partition 0 on brokers 2,3; partition 1 on brokers 1,2"
    topic = active.context.topics["new"]
    assert (topic.topic_id, topic.partitions, topic.configs) == ("new-id", 2, {"min.insync.replicas": "2"})
    row = active.context.partitions[tp(0, "new")]
    assert (row.leader, row.isr, row.leader_epoch, row.controller_epoch) == (2, (2, 3), 0, 4)
    assert active.context.partition_states[tp(0, "new")] == "OnlinePartition"
    assert [active.state(broker, 0, "new") for broker in (2, 3)] == [ONLINE, ONLINE]
    moves = [(change.before, change.after) for change in decision.state_changes if change.what == "new-0"]
    assert moves == [("NonExistentPartition", "NewPartition"), ("NewPartition", "OnlinePartition")]


@pytest.mark.parametrize(
    ("arguments", "partitions", "factor"),
    [
        ({}, 5, 2),
        ({"partitions": 3}, 3, 2),
        ({"replication_factor": 3}, 5, 3),
        ({"partitions": 1, "replication_factor": 1}, 1, 1),
    ],
    ids=["both by default", "factor by default", "number by default", "told"],
)
def test_li_02_tm_02_a_new_topic_is_spread_over_live_brokers(arguments, partitions, factor):
    given = context(live=(1, 2, 3, 4), shutting_down=(4,), num_partitions=5, default_replication_factor=2)
    replicas = made(create(Active(given), **arguments))
    assert sorted(replicas) == list(range(partitions))
    assert {len(set(brokers)) for brokers in replicas.values()} == {factor}
    used = [broker for brokers in replicas.values() for broker in brokers]
    assert set(used) <= {1, 2, 3}, "nothing goes to who is shutting down"
    assert max(map(used.count, (1, 2, 3))) - min(map(used.count, (1, 2, 3))) <= factor
    assert replicas == made(create(Active(given), **arguments)), "decided again it comes out the same"


def test_li_02_tm_02_replicas_of_a_new_topic_are_on_different_racks():
    racked = {broker: BrokerView(1, rack=rack) for broker, rack in RACKS.items()}
    active = Active(replace(context(), brokers=racked))
    for brokers in made(create(active, partitions=8, replication_factor=2)).values():
        assert {RACKS[broker] for broker in brokers} == {"a", "b"}
    decision = active.ask("create_partitions", "more", topic="new", total=12)
    assert [len({RACKS[broker] for broker in r.replicas}) for r in decision.changed.values()] == [2] * 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "flights", "partitions": 1}, "TopicExistsException"),
        ({"topic": "a/b", "partitions": 1}, "InvalidTopicException"),
        ({"topic": "__consumer_offsets", "partitions": 1}, "InvalidTopicException"),
        ({"topic": "new", "partitions": 0}, "InvalidPartitionsException"),
        ({"topic": "new", "replication_factor": 4}, "InvalidReplicationFactorException"),
        ({"topic": "new", "assignment": {}}, "InvalidPartitionsException"),
        ({"topic": "new", "assignment": {"0": [1], "2": [2]}}, "InvalidReplicaAssignmentException"),
        ({"topic": "new", "assignment": {"0": [1, 1]}}, "InvalidReplicaAssignmentException"),
        ({"topic": "new", "assignment": {"0": [9]}}, "InvalidReplicaAssignmentException"),
        ({"topic": "new", "assignment": {"0": [1]}, "partitions": 1}, "InvalidPartitionsException"),
        ({"topic": "new", "configs": {"min.insync.replica": 2}}, "InvalidConfigurationException"),
    ],
)
def test_li_02_an_invalid_topic_is_refused_and_changes_nothing(arguments, error):
    decision = Active(context(partition())).ask("create_topic", **arguments)
    assert errors(decision) == {arguments["topic"]: error}
    assert (decision.touches_metadata, decision.topics, decision.state_changes) == (False, {}, [])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("create_topic", {}),
        ("create_topic", {"topic": "new", "assignment": {"first": [1]}}),
        ("create_topic", {"topic": "new", "partitions": "3"}),
        ("create_partitions", {"topic": "flights"}),
        ("alter_configs", {"topic": "flights", "put": {}}),
        ("delete_topic", {}),
        ("alter_partition_reassignments", {"reassignments": ["flights-0"]}),
    ],
)
def test_ev_05_a_request_that_cannot_be_read_is_answered(kind, arguments):
    decision = Active(context(partition())).ask(kind, **arguments)
    assert errors(decision) == {kind: "InvalidRequestException"}
    assert (decision.touches_metadata, decision.topics) == (False, {})


@pytest.mark.parametrize("total", [2, 4])
@pytest.mark.parametrize("assignment", [None, [2, 3]], ids=["spread", "told"])
def test_li_07_a_topic_gets_more_partitions(total, assignment):
    active = Active(context(partition((1, 2))))
    told = assignment and {str(number): assignment for number in range(1, total)}
    decision = active.ask("create_partitions", topic="flights", total=total, assignment=told)
    assert decision.outcomes["flights"] == (decision.outcomes["flights"].__class__)(None, f"1 -> {total} partitions")
    assert sorted(p.partition for p in decision.changed) == list(range(1, total)), (
        "those that were there stay as they are"
    )
    assert {len(r.replicas) for r in decision.changed.values()} == {2}
    assert all(not assignment or r.replicas == (2, 3) for r in decision.changed.values())
    assert active.context.topics["flights"].partitions == total


@pytest.mark.parametrize(
    ("row", "factor"),
    [
        (partition((1, 2)), 2),
        (partition((3, 2, 1), 1, (1, 2), adding=(3,), removing=(1,)), 2),
        (partition((3, 4, 1, 2), 1, (1, 2), adding=(3, 4), removing=(1, 2)), 2),
        (partition((1, 2, 3), 1, (1, 2), adding=(3,)), 3),
        (partition((2, 1, 3), 1, (1, 2, 3), removing=(1, 3)), 1),
    ],
    ids=["none moves", "one for another", "both for others", "one more", "fewer"],
)
def test_li_07_ra_01_during_a_reassignment_new_partitions_have_as_many_replicas_as_its_target(row, factor):
    active = Active(context(row, live=(1, 2, 3, 4)))
    decision = active.ask("create_partitions", topic="flights", total=3)
    assert [len(r.replicas) for key, r in sorted(decision.changed.items()) if key.partition] == [factor] * 2


@pytest.mark.parametrize(("live", "leader", "isr"), [((1, 2), 2, (2,)), ((1, 2, 3), 3, (3, 2)), ((1,), NOBODY, ())])
def test_li_02_le_03_an_assignment_may_name_brokers_that_are_dead_and_the_first_that_lives_leads(live, leader, isr):
    active = Active(context(partition((1,)), live=live, registered=(1, 2, 3)))
    for kind, name, arguments in (
        ("create_topic", "new", {"assignment": {"0": [3, 2]}}),
        ("create_partitions", "flights", {"total": 2, "assignment": {"1": [3, 2]}}),
    ):
        decision = active.ask(kind, topic=name, **arguments)
        (row,) = decision.changed.values()
        assert (errors(decision), row.replicas, row.leader, row.isr) == ({name: None}, (3, 2), leader, isr)


def test_li_02_replicas_are_not_spread_over_dead_brokers():
    active = Active(context(live=(1, 2), registered=(1, 2, 3)))
    assert errors(create(active, replication_factor=3)) == {"new": "InvalidReplicationFactorException"}
    assert {b for brokers in made(create(active, partitions=9)).values() for b in brokers} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "ghosts", "total": 5}, "UnknownTopicOrPartitionException"),
        ({"topic": "flights", "total": 1}, "InvalidPartitionsException"),
        ({"topic": "flights", "total": 2}, "InvalidPartitionsException"),
        ({"topic": "flights", "total": 3, "assignment": {"1": [1]}}, "InvalidPartitionsException"),
        ({"topic": "flights", "total": 3, "assignment": {"2": [1], "3": [1]}}, "InvalidPartitionsException"),
        ({"topic": "flights", "total": 3, "assignment": {"2": [9]}}, "InvalidReplicaAssignmentException"),
    ],
)
def test_li_07_invalid_new_partitions_are_refused_and_change_nothing(arguments, error):
    decision = Active(context(partition(), partition(number=1))).ask("create_partitions", **arguments)
    assert (errors(decision), decision.touches_metadata, decision.topics) == ({arguments["topic"]: error}, False, {})


def test_li_02_fo_04_the_next_controller_writes_missing_partitions_of_a_topic():
    """The last controller died between the two commits. The same request continues, another one is refused."""
    active = Active(context())
    topic = decide(active.context, request("create_topic", "new-id", topic="new", partitions=2)).topics
    active.context = replace(active.context, topics=topic)
    assert errors(active.ask("create_topic", "other-id", topic="new", partitions=2)) == {"new": "TopicExistsException"}
    decision = create(active, partitions=2)
    assert (errors(decision), sorted(made(decision))) == ({"new": None}, [0, 1])


def test_li_02_is_05_partitions_whose_commit_had_no_answer_stay_unchanged():
    """The commit has landed and its answer was lost. A leader has shrunk the ISR since."""
    before = context()
    asked = request("create_topic", "new-id", topic="new", assignment={"0": [2, 3]})
    (row,) = decide(before, asked).changed.values()
    landed = {tp(0, "new"): replace(row, isr=(2,), partition_epoch=row.partition_epoch + 1)}
    decision = decide(before.with_partitions(landed), asked)
    assert (errors(decision), decision.changed) == ({"new": None}, {})
    active = Active(decision.applied(41))
    assert active.context.partition_states == {tp(0, "new"): "OnlinePartition"}
    assert [active.state(broker, 0, "new") for broker in (2, 3)] == [ONLINE, ONLINE]


@pytest.mark.parametrize("ahead", ["topics", "metadata"])
def test_li_07_fo_04_the_next_controller_completes_partitions_that_only_one_table_has(ahead):
    """The last controller died between the two commits, or the answer of a landed commit was lost."""
    before = context(partition((1, 2)))
    asked = request("create_partitions", topic="flights", total=3)
    decision = decide(before, asked)
    if ahead == "topics":
        given = replace(before, topics=decision.topics)
    else:
        given = before.with_partitions({**before.partitions, **decision.changed})
    again = decide(given, asked)
    check(again)
    assert (errors(again), again.topics) == ({"flights": None}, decision.topics)
    assert again.changed == (decision.changed if ahead == "topics" else {})
    assert len(again.applied(41).partition_states) == 3


@pytest.mark.parametrize(
    ("put", "delete", "configs"),
    [
        ({"min.insync.replicas": 2}, [], {"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}),
        ({}, ["unclean.leader.election.enable"], {}),
        ({}, ["min.insync.replicas"], {"unclean.leader.election.enable": "false"}),
        ({"unclean.leader.election.enable": True}, [], {"unclean.leader.election.enable": "true"}),
    ],
    ids=["put", "removed", "removed though it is not there", "replaced"],
)
def test_ev_05_settings_of_a_topic_are_put_and_removed(put, delete, configs):
    active = Active(context(partition(), configs={"unclean.leader.election.enable": "false"}))
    decision = active.ask("alter_configs", topic="flights", put=put, delete=delete)
    assert (errors(decision), decision.touches_metadata) == ({"flights": None}, False)
    assert active.context.topics["flights"].configs == configs


def test_ev_05_what_a_newer_version_has_set_stays_and_can_be_removed():
    active = Active(context(partition(), configs={"segment.ms": "9"}))
    decision = active.ask("alter_configs", topic="flights", put={"retention.ms": 5}, delete=[])
    configs = {"segment.ms": "9", "retention.ms": "5"}
    assert (errors(decision), active.context.topics["flights"].configs) == ({"flights": None}, configs)
    decision = active.ask("alter_configs", topic="flights", put={"segment.ms": 8}, delete=[])
    assert errors(decision) == {"flights": "InvalidConfigurationException"}
    decision = active.ask("alter_configs", topic="flights", put={}, delete=["segment.ms"])
    assert (errors(decision), active.context.topics["flights"].configs) == ({"flights": None}, {"retention.ms": "5"})


@pytest.mark.parametrize(
    ("topic", "put", "delete", "error"),
    [
        ("ghosts", {}, [], "UnknownTopicOrPartitionException"),
        ("flights", {"min.insync.replicas": 0}, [], "InvalidConfigurationException"),
        ("flights", {"segment.ms": 5}, [], "InvalidConfigurationException"),
        ("flights", {}, ["segment.ms"], "InvalidConfigurationException"),
    ],
)
def test_ev_05_invalid_topic_settings_are_refused(topic, put, delete, error):
    decision = Active(context(partition())).ask("alter_configs", topic=topic, put=put, delete=delete)
    assert (errors(decision), decision.topics) == ({topic: error}, {})


def test_ev_05_settings_that_stay_and_those_that_are_put_go_together():
    active = Active(context(partition(), configs={"max.compaction.lag.ms": "1000", "segment.ms": "x"}))
    put = {"min.compaction.lag.ms": 1001}
    decision = active.ask("alter_configs", topic="flights", put=put, delete=[])
    assert (errors(decision), decision.topics) == ({"flights": "InvalidConfigurationException"}, {})
    decision = active.ask("alter_configs", topic="flights", put=put, delete=["max.compaction.lag.ms"])
    assert (errors(decision), active.context.topics["flights"].configs["min.compaction.lag.ms"]) == (
        {"flights": None}, "1001",
    )  # fmt: skip


SCHEMA = {"value.schema": "item STRING, price INT"}


@pytest.mark.parametrize(
    ("put", "delete", "error"),
    [
        ({"value.schema": "item STRING, price BIGINT"}, [], None),
        ({"value.schema": "item STRING"}, [], None),
        ({"value.schema": "item STRING, price STRING"}, [], "InvalidConfigurationException"),
        ({"value.schema": "item STRING, price STRING", "value.schema.compatibility": "NONE"}, [], None),
        ({"value.schema": "item"}, [], "InvalidConfigurationException"),
        ({"value.schema.validation": True}, [], None),
        ({"value.schema.validation": True}, ["value.schema"], "InvalidConfigurationException"),
        ({}, ["value.schema"], None),
        ({"value.schema.compatibility": "backward"}, [], "InvalidConfigurationException"),
        ({"value.schema.type": "PROTOBUF"}, [], "InvalidConfigurationException"),
    ],
)
def test_a_topic_takes_a_schema_that_goes_with_the_one_that_stands(put, delete, error):
    active = Active(context(partition(), configs=SCHEMA))
    decision = active.ask("alter_configs", topic="flights", put=put, delete=delete)
    expected = {key: str(value).replace("True", "true") for key, value in {**SCHEMA, **put}.items()}
    left = {key: value for key, value in expected.items() if key not in delete}
    assert (errors(decision), active.context.topics["flights"].configs) == (
        {"flights": error}, SCHEMA if error else left,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ({**SCHEMA, "value.schema.validation": True}, None),
        ({"value.schema": "item STRUNG"}, "InvalidConfigurationException"),
        ({"value.schema.validation": True}, "InvalidConfigurationException"),
    ],
)
def test_a_topic_is_created_with_a_schema_that_parses(configs, error):
    decision = create(Active(context(partition())), partitions=1, configs=configs)
    assert errors(decision) == {"new": error}


def test_the_schemas_of_avro_that_a_topic_has_had_are_written_with_its_settings():
    """One row holds them all. So a controller that dies leaves both, or none."""
    text = '{"type":"record","name":"Sale","fields":[{"name":"item","type":"bytes"}]}'
    old, new = text, text.replace("bytes", "string")
    active = Active(context(partition()))
    put = {"value.schema": old, "value.schema.type": "AVRO", "value.schema.id": 7}
    decision = active.ask("alter_configs", topic="flights", put=put, delete=[])
    assert errors(decision) == {"flights": None}
    decision = active.ask("alter_configs", topic="flights", put={"value.schema": new}, delete=[])
    (topic,) = decision.topics.values()
    assert "value.schema.history=2 schemas: " in decision.outcomes["flights"].message
    history = json.loads(topic.configs["value.schema.history"])
    assert [(each["ids"], each["schema"]) for each in history] == [([7], json.loads(old)), ([], json.loads(new))]
    assert "value.schema.id" not in topic.configs
    made = create(Active(context(partition())), partitions=1, configs={**put, "value.schema": new})
    assert [each["ids"] for each in json.loads(made.topics["new"].configs["value.schema.history"])] == [[7]]


@pytest.mark.parametrize(("allowed", "elected"), [(True, {"flights-0": (2, (2,))}), (False, {})])
def test_ev_05_le_02_allowing_unclean_elections_elects_at_once(allowed, elected):
    rows = [partition((1, 2), NOBODY, (1,)), partition((2, 1), 2, (2,), 1), partition((1, 2), NOBODY, (1,), topic="b")]
    active = Active(context(*rows, live=(2, 3)))
    decision = active.ask("alter_configs", topic="flights", put={"unclean.leader.election.enable": allowed}, delete=[])
    assert (errors(decision), changed(decision)) == ({"flights": None}, elected)


def test_ev_05_the_controller_too_counts_the_partitions_that_a_request_names():
    active = Active(context(partition((1, 2)), partition((1, 2), number=1), lakelog_max_partitions_per_request=1))
    for wanted, error in (({"flights-0": [2, 1]}, None), ({"flights-0": [1], "flights-1": [1]}, "PolicyViolation")):
        decision = active.ask("alter_partition_reassignments", reassignments=wanted)
        assert [(told or "").removesuffix("Exception") or None for told in errors(decision).values()] == [error]
