"""Each page of the console: what it shows is what the tables say, and every page is sound HTML."""

import dataclasses
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from lakelog.jobs.web import metadata_timeline, shared_readings
from lakelog.jobs.web.history_pages import _lines
from lakelog.jobs.web.leader_lanes import Window
from lakelog.jobs.web.metadata_timeline import DatedVersion, MetadataTimeline
from lakelog.jobs.web.page_kit import Query, group_url
from lakelog.jobs.web.web_app import PAGES
from lakelog.replication.protocol.avro_schema import parse_avro
from lakelog.replication.protocol.topic import Entity, Topic
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from tests.clients.world import World
from tests.jobs.metrics.scraped import fall_silent
from tests.jobs.web.conftest import EVIL, EVIL_GROUPS, RECORDS, Open, client_of, opened
from tests.processes import wait_until
from tests.storage.logs import P0

END = 3 + len(RECORDS)
PATHS = [
    *(path.replace("{name}", {"/brokers": "1", "/groups": "billing"}.get(path.rpartition("/")[0], "flights"))
      for path, _ in PAGES),
    "/what-if?kill=1", "/what-if?kill=1,2", "/what-if?stop=2", "/events?kind=PartitionCreated",
    "/topics?search=li", "/topics?search=^fl&by=regexp", "/topics?search=nothing", "/history?show=not+whole",
    "/topics/flights/messages?start=oldest&limit=500",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_sound_and_says_what_gives_the_same(open_page: Open, path: str) -> None:
    page = open_page(path)
    assert "As of 20" in page.text
    assert "lakelog " in page.text or "SELECT" in page.text


def test_every_link_of_every_page_leads_to_a_page(console: TestClient) -> None:
    seen, left = set[str](), ["/"]
    while left:
        path = left.pop()
        page = opened(console, path)
        for link in page.links():
            plain = link.partition("#")[0]
            if plain and plain not in seen and len(seen) < 150:
                seen.add(plain)
                left.append(plain)
    assert {"/brokers/1", "/topics/flights", "/topics/flights/messages?partition=0"} <= seen


def test_the_overview_has_figures_and_says_what_to_do(open_page: Open) -> None:
    page = open_page("/")
    assert "Nothing is wrong." in page.text
    assert "2 / 2 brokers online" in page.text
    assert "1 topics" in page.text
    assert "4 / 4 replicas in sync" in page.text
    assert "active c, epoch 1" in page.text
    assert "flights-0, flights-1" in page.text, "events of one commit stand together"


def test_problems_are_those_of_status(changing_world: World) -> None:
    changing_world.change(P0, leader=-1, isr=(2,), partition_epoch=1)
    fall_silent(changing_world, "brokers/2")
    with client_of(changing_world.uri) as client:
        page = opened(client, "/")
        assert "broker 2 is dead" in page.text
        assert "To do: start it again: lakelog broker" in page.text
        assert "1 partition is offline: flights-0" in page.text
        assert opened(client, "/brokers").row("2")[1] == "✕ dead"
        assert opened(client, "/topics").row("flights")[3:5] == ["1", "1"]


def test_a_cordon_is_told_at_the_next_reading_of_notes(changing_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cordon = {Entity("brokers", "2"): {"cordoned.log.dirs": "*"}}
    with client_of(changing_world.uri) as client:
        assert "cordoned" not in opened(client, "/").text
        changing_world.cluster.configs.change(cordon, {"who": "test"})
        assert "cordoned" not in opened(client, "/").text, "notes are read every 10 s"
        monkeypatch.setattr(shared_readings, "_NOTES_SECONDS", 0.0)
        assert "broker 2 is cordoned" in opened(client, "/").text


def test_brokers_have_their_figures(open_page: Open) -> None:
    row = open_page("/brokers").row("1")
    assert row[1] == "● alive"
    assert row[4:11] == ["1", "2", "+100 %", "2", "0", "0", "0"]
    page = open_page("/brokers/1")
    assert page.row("flights-0")[4:8] == ["0", str(END), str(END + 1), "0"]
    assert page.row("broker.id")[1:] == ["1", "broker registration"]
    assert "Nothing goes offline" in page.text
    assert "2 with a new leader" in page.text


def test_the_lag_of_a_broker_is_that_of_the_replicas_which_it_is_to_have(changing_world: World) -> None:
    changing_world.say(3, broker=2, lag=7)
    with client_of(changing_world.uri) as client:
        assert opened(client, "/brokers").row("2")[9] == "7"
        topic = Topic("flights", "flights-id", 2, deleting=True)
        changing_world.cluster.topics.change([topic], (), {"who": "test"})
        assert opened(client, "/brokers").row("2")[9] == "0", "its row is there until it deletes the log"


def test_sizes_are_those_of_the_logs(console: TestClient) -> None:
    wait_until(lambda: "KiB" in opened(console, "/topics").row("flights")[6], "the sizes are read")
    assert "KiB" in opened(console, "/topics/flights").row("0")[9]
    assert "KiB" in opened(console, "/brokers").row("2")[11]


def test_a_topic_has_its_partitions_with_offsets_and_chains(open_page: Open) -> None:
    page = open_page("/topics/flights")
    row = page.row("0")
    assert row[1] == "1"
    assert row[3:8] == ["0", "0", str(END), str(END + 1), str(END)]
    assert row[8:] == ["2: 0", row[9], "○ not compared"], "the leader has one more record"
    assert page.row("1")[-1] == "● equal"
    assert open_page("/topics").row("flights")[5] == str(END + 2)


def test_replicas_with_other_records_are_told(changing_world: World) -> None:
    changing_world.say(3, P0, broker=2, lag=0, chain="another")
    with client_of(changing_world.uri) as client:
        assert opened(client, "/topics/flights").row("0")[-1] == "✕ differ"


def test_the_settings_of_a_topic_have_their_sources(changing_world: World) -> None:
    schema = '{"type":"record","name":"Sale","fields":[{"name":"item","type":"string"}]}'
    history = f'[{{"schema": {schema}, "ids": [7]}}]'
    configs = {"retention.ms": "86400000", "value.schema.history": history}
    topic = Topic("flights", "flights-id", 2, configs)
    changing_world.cluster.topics.change([topic], (), {"who": "test"})
    with client_of(changing_world.uri) as client:
        page = opened(client, "/topics/flights/settings")
        assert page.row("retention.ms")[1:] == ["86400000", "dynamic topic config"]
        assert page.row("value.schema.history")[1] == f"1 schema: {parse_avro(schema).fingerprint.hex()} id 7"
        assert page.row("cleanup.policy")[1:] == ["delete", "default"]
        assert opened(client, "/topics").row("flights")[8] == "24 h"


def test_groups_have_their_lag_in_records_and_in_time(open_page: Open) -> None:
    assert open_page("/groups").row("billing")[1:] == ["○ Empty", "0", "", "0", "flights", "2", str(END - 1)]
    page = open_page("/groups/billing")
    assert page.row("flights-0")[1:4] == ["1", str(END), str(END - 1)]
    assert page.row("flights-0")[4] == "60 min"
    assert page.row("flights-1")[1:5] == ["2", "2", "0", "0 ms"]
    assert open_page("/topics/flights/consumers").row("billing")[3:] == ["2", str(END - 1)]


@pytest.mark.parametrize("group", EVIL_GROUPS)
def test_a_group_may_have_any_name(open_page: Open, group: str) -> None:
    assert group_url(group) in open_page("/groups").links()
    page = open_page(group_url(group))
    assert page.row("flights-0")[1] == "1"
    assert f"Group {' '.join(group.split())}" in page.text


def test_a_reassignment_shows_how_far_it_has_come(changing_world: World) -> None:
    changing_world.change(P0, replicas=(1, 2), adding_replicas=(2,), removing_replicas=(), isr=(1,), partition_epoch=1)
    changing_world.say(3, broker=2, lag=1, log_end_offset=2)
    with client_of(changing_world.uri) as client:
        row = opened(client, "/reassignments").row("flights-0")
    assert row[1:3] == ["1", "1, 2"]
    assert "broker 2: 66.7 %, lacks 1 records" in row[4]


def test_what_if_answers_as_the_verb(open_page: Open) -> None:
    page = open_page("/what-if?kill=1&kill=2")
    assert page.row("flights-0")[1:6] == ["✕ offline", "1", "–", "1, 2", "2"]
    assert "2 offline" in page.text
    assert "lakelog what-if --cluster" in page.text
    assert "--kill 1,2" in page.text
    checked = [each["id"] for each in page.of("input") if "checked" in each]
    assert checked == ["kill-1", "kill-2"]


def test_all_values_of_one_name_stay_in_the_links_of_a_page() -> None:
    query = Query([("kill", "1"), ("kill", "2"), ("page", "1"), ("rack", "")])
    assert query.changed(page=2) == "kill=1&kill=2&page=2"
    assert query.changed(page="") == "kill=1&kill=2"


def test_events_are_filtered_by_kind(changing_world: World) -> None:
    changing_world.change(P0, isr=(1,), partition_epoch=1)
    with client_of(changing_world.uri) as client:
        assert len(opened(client, "/events").rows) == 1 + 3
        (row,) = opened(client, "/events?kind=IsrShrunk").rows[1:]
    assert row[1:4] == ["▲ IsrShrunk", "flights-0", "without 2"]


def test_history_is_that_of_the_metadata(changing_world: World) -> None:
    for epoch, fields in enumerate(
        ({"isr": (1,)}, {"leader": 2, "isr": (2,), "leader_epoch": 1}, {"isr": (1, 2)}, {"leader": -1, "isr": (2,)}), 1
    ):
        changing_world.change(P0, partition_epoch=epoch, **fields)
    with client_of(changing_world.uri) as client:
        seen, link = [], "/topics/flights/history"
        while link:
            page = opened(client, link)
            (at,) = [int(each["value"]) for each in page.of("input") if each.get("type") == "range"]
            then = MetadataTable.as_of(changing_world.cluster.root, at / 1000)[0].partitions[P0]
            row = page.row("0")
            leader = "✕ no leader" if then.leader < 0 else str(then.leader)
            isr = ", ".join(map(str, then.isr)) + ("" if len(then.isr) == 2 else f" ▲ {len(then.isr)} of 2")
            assert row[1:5] == [leader, str(then.leader_epoch), isr, "1, 2"]
            (of_cluster,) = [row for row in opened(client, f"/history?at={at}").rows if row[:1] == ["flights-0"]]
            assert of_cluster[1:4] == [leader, str(then.leader_epoch), isr]
            seen.append(then.partition_epoch)
            link = next((each["href"] for each in page.of("a") if each.get("rel") == "prev"), None)
    assert seen == [4, 3, 2, 1, 0]


def test_an_event_leads_to_the_state_after_it(changing_world: World) -> None:
    changing_world.change(P0, leader=2, leader_epoch=1, partition_epoch=1)
    changing_world.change(P0, leader=1, leader_epoch=2, partition_epoch=2)
    with client_of(changing_world.uri) as client:
        for path in ("/", "/events"):
            links = [link for link in opened(client, path).links() if "/history?at=" in link]
            found = [opened(client, link).row("0")[1:3] for link in links]
            assert found[:3] == [["1", "2"], ["2", "1"], ["1", "0"]]


def test_history_goes_forward_too_and_draws_what_has_changed(changing_world: World) -> None:
    changing_world.change(P0, leader=2, isr=(2,), leader_epoch=1, partition_epoch=1)
    with client_of(changing_world.uri) as client:
        now = opened(client, "/topics/flights/history")
        before = next(each["href"] for each in now.of("a") if each.get("rel") == "prev")
        then = opened(client, before)
        after = next(each["href"] for each in then.of("a") if each.get("rel") == "next")
        assert opened(client, after).row("0")[1] == "2"
    drawn = [given.get("class") for given in now.of("rect")]
    assert drawn.count("short") == 1, "the time without broker 1"
    assert "Leaders of flights" in now.text


def test_the_chart_of_many_commits_is_no_longer() -> None:
    drawn = []
    for count in (20_000, 40_000):
        versions = [DatedVersion(n, 1000.0 + n / count, 1, None, None, 9, n % 3, 0) for n in range(count)]
        drawn.append(_lines(versions, Window(1000.0, 1001.0)))
    assert max(len(str(each["offline"])) for each in drawn) < 15_000, "at most 900 places"
    assert drawn[0]["short"] == "M90 128.0H990.0"


def test_the_oldest_history_goes_if_there_are_too_many_changes(
    changing_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_timeline, "_MOST_ROWS", 3)
    timeline = MetadataTimeline(changing_world.cluster.root, "id")
    for epoch in range(1, 6):
        changing_world.change(P0, isr=(1, 2)[: 1 + epoch % 2], partition_epoch=epoch)
        if epoch in (1, 5):
            seen = timeline.read_on()
            assert sum(version.changed for version in seen.versions) == 3
            versions = [change.version for change in seen.topic("flights").changes([0, 1])]
            assert {*versions} == {version.version for version in seen.versions if version.changed}


def test_a_topic_that_was_deleted_has_a_history_and_no_page(changing_world: World) -> None:
    with client_of(changing_world.uri) as client:
        opened(client, "/topics/flights")
        topic = Topic("flights", "flights-id", 2)
        changing_world.cluster.topics.change([dataclasses.replace(topic, deleting=True)], (), {"who": "test"})
        for part in ("", "/messages", "/consumers", "/settings"):
            problem = opened(client, f"/topics/flights{part}", 404).problem()
            assert problem == "There is no topic flights: it was deleted, or never created."
        assert "flights, deleted" in opened(client, "/topics/flights/history").text
        assert "There is no topic yet." in opened(client, "/topics").text


def test_lists_have_pages(changing_world: World) -> None:
    topics = [Topic(f"topic-{number:03}", f"id-{number}", 1) for number in range(250)]
    changing_world.cluster.topics.change(topics, (), {"who": "test"})
    with client_of(changing_world.uri) as client:
        found, link = list[str](), "/topics?search=topic"
        while link:
            page = opened(client, link)
            found += [row[0] for row in page.rows[1:]]
            links = [unquote(each["href"]) for each in page.of("a") if each.get("rel") == "next"]
            link = links[0] if links else ""
        assert found == [topic.topic for topic in topics]
        assert "There is no page 4: the last one is 3." in opened(client, "/topics?search=topic&page=4", 404).text
        assert len(opened(client, "/topics?search=^topic-00.$&by=regexp").rows) == 1 + 10


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/brokers/9", "No broker 9 has registered; there are: 1, 2."),
        ("/brokers/x", "No broker x has registered; there are: 1, 2."),
        ("/topics/none", "There is no topic none: it was deleted, or never created."),
        ("/topics/none/messages", "There is no topic none: it was deleted, or never created."),
        ("/topics/none/history", "History has no topic none."),
        ("/topics/flights/messages?partition=2", "Topic flights has no partition 2: it has 0 to 1."),
        ("/groups/none", "There is no consumer group none: it has no offsets and no members."),
        ("/topics?page=2", "There is no page 2: the last one is 1."),
        ("/nothing", "There is no page /nothing: the pages are linked above."),
        (f"/topics/{EVIL.replace('/', '')}", f"There is no topic {EVIL.replace('/', '')}: it was deleted, or never"),
        ("/history?at=1000", "History does not reach back to 1970-01-01T00:00:01+00:00: it begins at 20"),
    ],
)
def test_what_is_not_there_is_one_sentence(open_page: Open, path: str, words: str) -> None:
    assert open_page(path.replace("#", "%23").replace("?x", "%3Fx"), 404).problem().startswith(words)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/topics?page=0", "Parameter page: '0' is not a whole number from 1 to 1000000."),
        ("/topics?page=x", "Parameter page: 'x' is not a whole number from 1 to 1000000."),
        ("/topics?by=magic", "Parameter by is 'magic': allowed are 'substring', 'regexp'."),
        ("/topics?search=(&by=regexp", "Parameter search is '(': this is no regular expression of RE2: missing ): (."),
        (f"/topics?search={'x' * 301}", "Parameter search has 301 characters: at most 300 are allowed."),
        ("/topics?sort=x", "'sort' is no parameter of this page: allowed are search, by, page."),
        ("/brokers?x=1", "'x' is no parameter of this page: this page takes none."),
        ("/events?kind=x", "Parameter kind is 'x': allowed are PartitionCreated."),
        ("/history?at=x", "Parameter at: 'x' is neither a time such as 2025-01-31T12:00:00 nor milliseconds since"),
        ("/history?at=9999-01-01", "Parameter at: '9999-01-01' lies in the future."),
        ("/history?span=x", "Parameter span is 'x': allowed are 'all', '7 days', 'a day', 'an hour', '10 minutes'."),
        ("/what-if?kill=x", "Parameter kill: 'x' is not a whole number from 0 to 2147483647."),
        ("/what-if?kill=9", "Parameter kill: broker 9 has not registered; there are: 1, 2."),
        ("/what-if?rack=r", "Parameter rack: no broker is in rack r; there are: none."),
        ("/what-if?kill=1&stop=1", "Broker 1 is both killed and stopped: it can only be one of the two."),
        ("/what-if?root=lake", "Parameter root: 'lake' is no URI and no absolute path."),
        ("/what-if?root=/nowhere", "Parameter root: no root lies in /nowhere; there are: "),
        ("/what-if?cluster_root=/nowhere", "Parameter cluster_root: /nowhere is no root of the cluster; there are: "),
    ],
)
def test_a_wrong_value_is_one_sentence_that_says_what_is_allowed(open_page: Open, path: str, words: str) -> None:
    assert open_page(path, 400).problem().startswith(words)


def test_an_expression_that_would_never_end_elsewhere_is_no_burden(changing_world: World) -> None:
    name = "a" * 200
    changing_world.cluster.topics.change([Topic(name, "a-id", 1)], (), {"who": "test"})
    with client_of(changing_world.uri) as client:
        assert "No topic has such a name." in opened(client, "/topics?search=(a%2B)%2Bb&by=regexp").text
        problem = opened(client, "/topics?search=((a{1,999}){1,999}){1,999}&by=regexp", 400).problem()
    assert "this is no regular expression of RE2" in problem


def test_partition_1_is_shown_while_partition_0_has_no_leader(changing_world: World) -> None:
    changing_world.change(P0, leader=-1, isr=(2,), partition_epoch=1)
    with client_of(changing_world.uri) as client:
        page = opened(client, "/topics/flights/messages")
        assert "Partition 0 cannot be read: LeaderNotAvailableException" in page.text
        assert [row[0] for row in page.rows[1:]] == ["1", "1"]
        assert opened(client, "/topics/flights").row("0")[1] == "✕ no leader"
