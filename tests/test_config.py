import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from lakelog.replication.config import (
    CLUSTER_KEYS,
    KEYS,
    TOPIC_KEYS,
    Config,
    TopicConfig,
    read_properties,
    topic_configs,
)
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import text_of

SERVER_PROPERTIES = Path(__file__).parent.parent / "conf" / "server.properties"


def problems_of(properties):
    with pytest.raises(InvalidConfigurationException) as caught:
        Config.from_properties(properties, "server.properties")
    return re.split(r"; (?=server\.properties)", str(caught.value))


def test_defaults():
    config = Config.from_properties("")
    assert config == Config()
    assert (config.broker_id, config.broker_rack, config.num_replica_fetchers) == (-1, None, 1)
    assert (config.replica_fetch_backoff_ms, config.replica_fetch_response_max_bytes) == (1000, 268435456)
    assert config.lakelog_poll_interval_ms == 50
    assert (config.num_partitions, config.default_replication_factor, config.min_insync_replicas) == (1, 1, 1)
    assert (config.log_segment_bytes, config.storage_fsync) == (33554432, False)


def test_ft_05_several_full_segments_fit_into_a_micro_batch():
    assert Config().replica_fetch_response_max_bytes == 8 * Config().log_segment_bytes


def test_the_defaults_are_allowed():
    for key in KEYS.values():
        assert key.type.parse(text_of(key.default)) == key.default


def test_the_text_of_properties():
    config = Config.from_properties(
        "# a comment\n"
        "   ! another = one\n"
        "\n"
        "broker.id = 2\n"
        "  broker.rack=eu-\\\n"
        "      west-1a\r\n"
        "storage.fsync=TRUE\n"
        "# a comment does not go on \\\n"
        "num.partitions=12\n"
        "storage.2.aws_session_token=a=b\\\\\n"
        "min.insync.replicas=2\\"
    )
    assert (config.broker_id, config.broker_rack, config.storage_fsync) == (2, "eu-west-1a", True)
    assert (config.num_partitions, config.min_insync_replicas) == (12, 2)
    assert config.storage_options(2, {}) == {"AWS_SESSION_TOKEN": "a=b\\\\"}


def test_the_largest_integer():
    assert Config.from_properties("num.partitions=2147483647").num_partitions == 2147483647
    assert "num.partitions is '2147483648'" in problems_of("num.partitions=2147483648")[0]


def test_a_mapping():
    config = Config.from_properties({"broker.id": 3, "storage.fsync": True, "broker.rack": None, "num.partitions": "4"})
    assert config == Config(broker_id=3, storage_fsync=True, num_partitions=4)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("num.partitions=0", "num.partitions is '0', it must be an integer from 1 to 2147483647"),
        ("num.partitions=1_0", "num.partitions is '1_0', it must be an integer"),
        ("num.partitions=", "num.partitions is '', it must be an integer"),
        ("broker.id=-2", "broker.id is '-2', it must be an integer from -1"),
        ("default.replication.factor=32768", "it must be an integer from 1 to 32767"),
        ("storage.fsync=yes", "storage.fsync is 'yes', it must be true or false"),
        ("num.partition=3", "unknown key num.partition, did you mean num.partitions?"),
        ("zookeeper.connect=x", "unknown key zookeeper.connect; known are broker.id, "),
        ("storage.02.aws_region=x", "and storage.<broker id|cluster>.<option>"),
        ("num.partitions", "not of the form key=value"),
        ("=3", "not of the form key=value"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line, problem):
    (text,) = problems_of(f"broker.id=1\n{line}" if "broker.id" not in line else f"\n{line}")
    assert text.startswith("server.properties, line 2: ")
    assert problem in text


def test_all_that_is_wrong_is_reported_at_once():
    contradiction = "broker.heartbeat.interval.ms=6000\nbroker.session.timeout.ms=6000"
    problems = problems_of(f"num.partitions=0\nbroker.id=1\nnope=1\nbroker.id=2\n{contradiction}")
    assert len(problems) == 4
    assert "line 4: broker.id is given twice, first at server.properties, line 2" in problems[0]
    assert "num.partitions" in problems[1]
    assert "nope" in problems[2]
    assert "broker.heartbeat.interval.ms is 6000" in problems[3]


SESSION, HEARTBEAT, LEASE = "broker.session.timeout.ms", "broker.heartbeat.interval.ms", "controller.session.timeout.ms"


@pytest.mark.parametrize(
    ("given", "on_a_disk", "in_a_store"),
    [
        ({}, (6000, 2000, 6000), (18000, 6000, 18000)),
        ({SESSION: -1, HEARTBEAT: -1, LEASE: -1}, (6000, 2000, 6000), (18000, 6000, 18000)),
        ({SESSION: 9000}, (9000, 2000, 6000), (9000, 3000, 18000)),
        ({SESSION: 60000}, (60000, 2000, 6000), (60000, 6000, 18000)),
        ({SESSION: 3}, (3, 1, 6000), (3, 1, 18000)),
        ({HEARTBEAT: 5999}, (6000, 5999, 6000), (18000, 5999, 18000)),
        ({LEASE: 1}, (6000, 2000, 1), (18000, 6000, 1)),
    ],
)
def test_sessions_that_are_not_set_depend_on_the_store(given, on_a_disk, in_a_store):
    for is_local, expected in ((True, on_a_disk), (False, in_a_store)):
        found = Config.from_properties(given).with_sessions(is_local)
        sessions = found.broker_session_timeout_ms, found.broker_heartbeat_interval_ms
        assert (*sessions, found.controller_session_timeout_ms) == expected


@pytest.mark.parametrize(
    ("beat", "is_local", "where"), [(6000, True, "on a disk"), (18000, False, "in an object store")]
)
def test_a_heartbeat_that_is_no_shorter_than_the_default_session_is_refused(beat, is_local, where):
    words = f"interval.ms is {beat}, it must be below .* \\({beat}, the default if the cluster root is {where}\\): else"
    with pytest.raises(InvalidConfigurationException, match=words):
        Config.from_properties({HEARTBEAT: beat}).with_sessions(is_local)


@pytest.mark.parametrize("name", [SESSION, HEARTBEAT, LEASE])
@pytest.mark.parametrize("value", ["0", "-2", "", "2147483648", "1.5"])
def test_a_session_is_a_positive_time_or_left_to_the_store(name, value):
    (found,) = problems_of(f"{name}={value}")
    low = 3 if name == SESSION else 1
    assert f"{name} is {value!r}, it must be an integer from {low} to 2147483647, or -1 for the default" in found


def test_storage_options_of_a_root():
    config = Config.from_properties(
        "storage.2.aws_endpoint_url=http://a\nstorage.2.aws.region=r\nstorage.22.aws_region=x\nstorage.cluster.k=v"
    )
    environment = {
        "LAKELOG_STORAGE_2_AWS_REGION": "from the environment",
        "LAKELOG_STORAGE_CLUSTER_aws_region": "eu",
        "LAKELOG_STORAGE_22_AWS_REGION": "other",
        "AWS_REGION": "nobody asked",
    }
    assert config.storage_options(2, {}) == {"AWS_ENDPOINT_URL": "http://a", "AWS_REGION": "r"}
    assert config.storage_options(2, environment) == {
        "AWS_ENDPOINT_URL": "http://a",
        "AWS_REGION": "from the environment",
    }
    assert config.storage_options("cluster", environment) == {"K": "v", "AWS_REGION": "eu"}
    assert config.storage_options(3, environment) == {}


def test_storage_options_of_one_of_several_cluster_roots():
    config = Config.from_properties(
        "storage.cluster.aws_region=eu\nstorage.cluster.k=v\nstorage.cluster@my-bucket.x.aws_region=us\n"
        "storage.cluster@other.aws_region=af"
    )
    environment = {
        "LAKELOG_STORAGE_CLUSTER_K": "of all",
        "LAKELOG_STORAGE_CLUSTER__MY_BUCKET_X__AWS_KEY": "mine",
        "LAKELOG_STORAGE_CLUSTER__OTHER__AWS_KEY": "another's",
    }
    assert config.storage_options("cluster", environment) == {"AWS_REGION": "eu", "K": "of all"}
    mine = {"AWS_REGION": "us", "K": "of all", "AWS_KEY": "mine"}
    assert config.storage_options("cluster", environment, "my-bucket.x") == mine
    assert config.storage_options("cluster", {}, "third") == {"AWS_REGION": "eu", "K": "v"}


def test_only_cluster_roots_have_options_by_bucket():
    assert "unknown key storage.2@bucket.aws_region" in " ".join(problems_of("storage.2@bucket.aws_region=eu"))


def test_storage_options_of_the_process(monkeypatch):
    monkeypatch.setenv("LAKELOG_STORAGE_5_AWS_REGION", "eu")
    assert Config().storage_options(5) == {"AWS_REGION": "eu"}


def test_secrets_are_not_shown():
    assert "hunter2" not in repr(Config.from_properties("storage.2.aws_secret_access_key=hunter2"))
    assert "hunter2" not in "".join(problems_of("storag.2.aws_secret_access_key=hunter2"))


def test_a_config_does_not_change():
    with pytest.raises(FrozenInstanceError):
        Config().broker_id = 3
    assert hash(Config()) == hash(Config())


def test_topic_configs():
    assert topic_configs({"min.insync.replicas": 2}) == {"min.insync.replicas": "2"}
    assert topic_configs({}) == {}
    with pytest.raises(InvalidConfigurationException, match=r"topic flights: unknown key min\.insync.*did you mean"):
        topic_configs({"min.insync.replica": 2}, "topic flights")
    with pytest.raises(InvalidConfigurationException, match=r"unknown key num\.partitions"):
        topic_configs({"num.partitions": 2})


def test_a_topic_overrides_its_broker():
    broker = Config(min_insync_replicas=2, log_retention_ms=5)
    kept = TopicConfig(
        min_insync_replicas=2, unclean_leader_election_enable=False, max_message_bytes=1048588, retention_ms=5,
        retention_bytes=-1, cleanup_policy="delete", min_cleanable_dirty_ratio=0.5, min_compaction_lag_ms=0,
        max_compaction_lag_ms=2**63 - 1, delete_retention_ms=86_400_000, leader_replication_throttled_replicas="",
        follower_replication_throttled_replicas="", value_schema=None, value_schema_type="DDL",
        value_schema_compatibility="BACKWARD", value_schema_validation=False, value_schema_id=-1,
        value_schema_history=None,
    )  # fmt: skip
    assert broker.topic({}) == kept
    own = {"min.insync.replicas": "3", "unclean.leader.election.enable": "true", "retention.ms": "-1"}
    assert broker.topic(own) == replace(
        kept, min_insync_replicas=3, unclean_leader_election_enable=True, retention_ms=-1
    )


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("cleanup.policy", "compress", "delete, compact, compact,delete or none"),
        ("cleanup.policy", "compact,none", "delete, compact, compact,delete or none"),
        ("cleanup.policy", "", "delete, compact, compact,delete or none"),
        ("min.cleanable.dirty.ratio", "1.5", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "-0", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("min.compaction.lag.ms", "-1", "an integer from 0"),
        ("max.compaction.lag.ms", "0", "an integer from 1"),
        ("delete.retention.ms", "1 day", "an integer from 0"),
        ("retention.ms", "-2", "an integer from -1"),
        ("log.retention.ms", "5", "unknown key"),
        ("max.message.bytes", "-1", "an integer from 0"),
        ("message.max.bytes", "5", r"did you mean max\.message\.bytes"),
        ("leader.replication.throttled.replicas", "0:1;0:2", r"\* or partition:broker"),
        ("follower.replication.throttled.replicas", "all", r"\* or partition:broker"),
        ("leader.replication.throttled.rate", "5", "unknown key"),
        ("value.schema", "a\ud800 INT", "any text in UTF-8"),
        ("value.schema.type", "ddl", "it must be DDL or JSON or AVRO"),
        ("value.schema.compatibility", "BACK", "NONE or BACKWARD or BACKWARD_TRANSITIVE or FORWARD or"),
        ("value.schema.validation", "yes", "true or false"),
        ("value.schema.id", "7a", "an integer from -1 to 2147483647"),
    ],
)
def test_th_02_dr_01_what_a_topics_settings_may_be(key, value, allowed):
    with pytest.raises(InvalidConfigurationException, match=allowed):
        topic_configs({key: value})


def test_every_topic_key_has_a_field():
    assert [member.name.replace("_", ".") for member in fields(TopicConfig)] == list(TOPIC_KEYS)


def test_what_the_controller_must_see_is_no_setting_of_a_file():
    assert Config.from_properties("cordoned.log.dirs=").cordoned_log_dirs == ""
    (problem,) = problems_of("cordoned.log.dirs=*")
    assert problem == (
        "server.properties, line 1: cordoned.log.dirs is no setting of a file, where no controller sees it; "
        "`lakelog configs --entity-type brokers --alter` sets it"
    )


def test_what_the_cluster_shares():
    shared = {"num.replica.fetchers": "3", "transactional.id.expiration.ms": "604800000"}
    assert Config(num_replica_fetchers=3).cluster_configs() == shared
    assert Config(broker_id=2).in_cluster({"num.replica.fetchers": "3"}) == Config(broker_id=2, num_replica_fetchers=3)
    with pytest.raises(InvalidConfigurationException, match=r"num\.replica\.fetchers is '0'"):
        Config().in_cluster({"num.replica.fetchers": "0"})
    assert list(CLUSTER_KEYS) == list(shared)


RATE = "leader.replication.throttled.rate"


@pytest.mark.parametrize(
    ("read", "configs", "expected", "of"),
    [
        (Config().topic, {"x.of.topics": "1", "retention.ms": "5"}, Config(log_retention_ms=5).topic({}), "topic"),
        (Config().dynamic, {"x.of.brokers": "1", RATE: "5"}, Config(leader_replication_throttled_rate=5), "broker"),
        (Config().dynamic, {"log.cleaner.backoff.ms": "1"}, Config(), "broker"),
        (Config().in_cluster, {"x.of.all": "", "num.replica.fetchers": "3"}, Config(num_replica_fetchers=3), "cluster"),
        (Config().in_cluster, {"broker.id": "3"}, Config(), "cluster"),
    ],
    ids=["a topic", "a broker", "a broker, fixed here", "the cluster", "the cluster, not shared here"],
)
def test_a_setting_in_a_table_that_a_newer_version_has_added_is_ignored_with_one_warning(
    caplog, read, configs, expected, of
):
    assert [read(configs) for _ in range(3)] == [expected] * 3
    (line,) = caplog.records
    name = next(iter(configs))
    assert line.levelname == "WARNING"
    assert line.message == f"{of} setting {name} is ignored: this version of Lakelog does not know it"


def test_the_warning_of_a_setting_is_one_line_that_can_be_written(caplog):
    Config().dynamic({"x\nERROR y\ud800": "1"})
    (line,) = caplog.records
    assert line.message == "broker setting x\\nERROR y\\ud800 is ignored: this version of Lakelog does not know it"


def test_a_dynamic_setting_with_a_value_that_a_newer_version_allows_is_left_out_with_one_error(caplog):
    configs = {"cordoned.log.dirs": "/a,/b", RATE: "5"}
    expected = Config(leader_replication_throttled_rate=5)
    assert [Config().dynamic(configs) for _ in range(3)] == [expected] * 3
    (line,) = caplog.records
    assert (line.levelname, line.message) == (
        "ERROR",
        "a dynamic setting is left out: broker: cordoned.log.dirs is '/a,/b', it must be * for the root of the "
        "broker, or empty",
    )


@pytest.mark.parametrize(
    ("configs", "policy"),
    [
        ({"cleanup.policy": "compress"}, "none"),
        ({"cleanup.policy": "compact"}, "compact"),
        ({"cleanup.policy": "delete, compact"}, "compact,delete"),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "-1"}, "none"),
        ({"cleanup.policy": "compact", "max.compaction.lag.ms": "soon"}, "none"),
        ({"cleanup.policy": "compact", "delete.retention.ms": ""}, "none"),
        ({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "2"}, "none"),
        ({"cleanup.policy": "delete", "retention.ms": "7 days"}, "none"),
        ({"retention.bytes": "-2"}, "none"),
        ({"x.retention": "5"}, "delete"),
        ({"min.insync.replicas": "0"}, "delete"),
        ({"retention.ms": "5"}, "delete"),
    ],
)
def test_dr_01_retention_deletes_nothing_of_a_topic_with_a_setting_of_retention_that_is_not_understood(configs, policy):
    assert Config().topic_as_far_as_known(configs)[0].cleanup_policy == policy


def test_le_02_a_topic_whose_choice_of_elections_is_not_understood_has_no_unclean_ones():
    process = Config(unclean_leader_election_enable=True)
    configs = {"unclean.leader.election.enable": "by hand"}
    assert process.topic({}).unclean_leader_election_enable
    assert not process.topic(configs).unclean_leader_election_enable


def test_a_properties_file_is_read_in_utf_8(tmp_path):
    path = tmp_path / "broker.properties"
    path.write_text("broker.rack=zürich", encoding="utf-8")
    assert Config.from_properties(read_properties(path)).broker_rack == "zürich"


def test_an_unknown_key_is_named_with_its_file_and_line():
    with pytest.raises(InvalidConfigurationException, match=r"broker\.properties, line 1: unknown key nope"):
        Config.from_properties("nope=1", "broker.properties")


@pytest.mark.parametrize("content", [None, b"broker.rack=\xff"])
def test_a_properties_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "broker.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfigurationException, match=r"broker\.properties cannot be read"):
        read_properties(path)


def test_server_properties_shows_every_key_with_its_default():
    text = SERVER_PROPERTIES.read_text(encoding="utf-8")
    shown = dict(re.findall(r"^#([a-z.]+)=(.*)$", text, re.MULTILINE))
    assert shown == {key.name: text_of(key.default) for key in KEYS.values()}


def test_server_properties_gives_a_reason_above_every_key():
    lines = SERVER_PROPERTIES.read_text(encoding="utf-8").splitlines()
    above = [lines[number - 1] for number, line in enumerate(lines) if re.match(r"#[a-z]", line)]
    assert len(above) == len(KEYS) + 1
    assert all(re.match(r"# .{10,}", line) for line in above)


def test_server_properties_is_valid_as_it_is_and_with_every_line_in_force():
    text = SERVER_PROPERTIES.read_text(encoding="utf-8")
    assert Config.from_properties(text) == Config()
    in_force = Config.from_properties(re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE))
    assert in_force.storage_options(2, {}) == {"AWS_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com"}
