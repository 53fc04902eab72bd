"""Settings in the tables that this version does not know: verbs, clients and the console go on, and show them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import (
    backup,
    brokers,
    configs,
    consumer_groups,
    delete_records,
    get_offsets,
    reassign_partitions,
    status,
    topics,
    what_if,
)
from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import Labels
from lakelog.replication.clients.producer import Producer
from lakelog.replication.protocol.topic import Entity, Topic
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import CLUSTER
from tests.clients.world import World
from tests.jobs.admin.seen import living_world
from tests.jobs.metrics.scraped import LONG, scrape
from tests.jobs.web.conftest import client_of, opened
from tests.storage.logs import TOPIC, TOPIC_ID

Run = Any  # what a verb has answered: (status, stdout, stderr)

NEW = "x.of.a.newer.version"
ONE_TOPIC = ("--entity-type", "topics", "--entity-name", TOPIC)
ONE_BROKER = ("--entity-type", "brokers", "--entity-name", "1")


@pytest.fixture
def world(tmp_path: Path, waits: list[float]) -> World:
    """A topic, a broker, all brokers and the cluster have the setting, and a client, which has none here."""
    assert waits == []
    world = living_world(tmp_path)
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {NEW: "a"})], (), {"who": "test"})
    entities = Entity("brokers", "1"), Entity("brokers", "<default>"), Entity("clients", "1")
    world.cluster.configs.change({entity: {NEW: entity.entity_name} for entity in entities}, {"who": "test"})

    def shared(rows: list[Row]) -> list[Row]:
        return [{**rows[0], "configs": [*rows[0]["configs"], (NEW, "b")]}]

    StateTable.open_at(world.cluster.root.child(CLUSTER.name), CLUSTER).update({"who": "test"}, shared)
    return world


@pytest.fixture
def show(lakelog: Run, world: World) -> Run:
    """Runs a verb on the cluster."""
    return lambda verb, *words: lakelog(verb, "--cluster", world.uri, *words)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (status, ()),
        (brokers, ()),
        (topics, ("--describe",)),
        (topics, ("--describe", "--at-min-isr-partitions")),
        (configs, ("--describe", "--entity-type", "brokers")),
        (what_if, ("--kill", "2")),
        (reassign_partitions, ("--rebalance",)),
        (get_offsets, ("--topic", TOPIC)),
        (delete_records, ("--topic", TOPIC, "--partition", "0", "--before-offset", "0")),
        (consumer_groups, ("--list",)),
        (backup, ("--out", "backup.tar.gz")),
    ],
)
def test_verbs_go_on(show: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Any, words: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert show(verb, *words)[0] == 0


def test_clients_and_the_exporter_go_on(world: World) -> None:
    with Producer(world.uri, acks=1) as producer:
        assert producer.send(TOPIC, [{"value": b"1", "partition": 0}])[0].error is None
    world.say(1)
    assert world.consumer().fetch(TOPIC, {0: 0})[0].records["value"].to_pylist() == [b"1"]
    page = scrape(ClusterScrapes(world.uri, LONG, Labels({})))
    assert page.of("kafka_topic_partitions", topic=TOPIC) == [2.0]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (ONE_TOPIC, [f"{NEW}=a"]),
        (ONE_BROKER, [f"{NEW}=1"]),
        (("--entity-type", "brokers"), [f"{NEW}=1", f"{NEW}=<default>"]),
        ((*ONE_TOPIC, "--all"), [f"{NEW}=a source=DYNAMIC_TOPIC_CONFIG"]),
        ((*ONE_BROKER, "--all"), [f"{NEW}=1 source=DYNAMIC_BROKER_CONFIG"]),
        ((*ONE_BROKER[:3], "2", "--all"), [f"{NEW}=<default> source=DYNAMIC_DEFAULT_BROKER_CONFIG"]),
    ],
)
def test_configs_shows_the_setting(show: Run, words: Any, shown: list[str]) -> None:
    out = show(configs, "--describe", *words)[1]
    assert [line.strip() for line in out.splitlines() if NEW in line] == shown


def test_status_and_the_console_note_the_setting_and_say_what_to_do(show: Run, world: World) -> None:
    notes = json.loads(show(status, "-o", "json")[1])["notes"]
    assert notes == [
        {
            "what": f"{kind} have settings that this version of Lakelog does not know, and ignores",
            "names": [NEW],
            "do": "a newer version has set them: upgrade, or remove them with --alter --delete-config; "
            f"`lakelog configs --cluster {world.uri} --entity-type {kind} --describe` shows whose",
        }
        for kind in ("topics", "brokers")
    ]
    with client_of(world.uri) as client:
        said = f"topics have settings that this version of Lakelog does not know, and ignores: {NEW}"
        assert said in opened(client, "/").text
        assert opened(client, f"/topics/{TOPIC}/settings").row(NEW)[1:] == ["a", "dynamic topic config"]
        assert opened(client, "/brokers/1").row(NEW)[1:] == ["1", "dynamic broker config"]
