"""What the console changes: each change whole, what is refused, and what becomes of one that somebody else crosses.

The brokers do not run. A controller decides the requests.
"""

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from lakelog.jobs.cli.console import OK
from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.web.change_desk import ChangeDesk
from lakelog.jobs.web.change_pages import ChangePages
from lakelog.jobs.web.changes import CHANGES
from lakelog.jobs.web.page_kit import Console, url
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.jobs.web.sign_in import SignIn, Token
from lakelog.jobs.web.verb_answers import VerbAnswer, VerbRunner
from lakelog.jobs.web.web_app import web_app
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from tests.clients.world import World, filled_world
from tests.controllers import controller_of
from tests.jobs.metrics.scraped import LONG
from tests.jobs.web.conftest import EVIL, opened
from tests.jobs.web.html_page import HtmlPage
from tests.processes import wait_until
from tests.storage.logs import TOPIC, TOPIC_ID

TOKEN = "0123456789abcdef" * 4
HOST = "127.0.0.1:8080"
ORIGIN = f"http://{HOST}"
GROUP = "billing"
THROTTLED = "leader.replication.throttled.replicas"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Browser:
    """A browser at a console that allows changes."""

    def __init__(
        self, uri: str, runner: Any = None, own_origin: str | None = None, wait: float = 40.0, counts_for: float = 0.0
    ) -> None:  # fmt: skip
        self.clock = Clock()
        readings = ConsoleReadings(uri, LONG, counts_for)
        invocation = Invocation("lakelog", uri)
        self.desk = ChangeDesk(readings, invocation, runner or VerbRunner(uri), wait, self.clock)
        self.pages = ChangePages(self.desk, SignIn(Token(TOKEN), dict, self.clock), own_origin)
        self.app = web_app(Console(readings, invocation), {"127.0.0.1", "lake.example.com"}, self.pages)
        self.client = self.another()

    def another(self) -> TestClient:
        """Another browser at the same console."""
        return TestClient(
            self.app, base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False,
            headers={"origin": ORIGIN},
        )  # fmt: skip

    def signed_in(self, client: TestClient | None = None) -> "Browser":
        answer = (client or self.client).post("/sign-in", data={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        return self

    def cookie(self) -> str:
        """The value of the session's cookie."""
        return str(self.client.cookies[self.pages.cookie])

    def csrf(self, client: TestClient | None = None) -> str:
        """The word of the session's forms."""
        page = HtmlPage((client or self.client).get("/change/create-topic").text)
        found = {given["value"] for given in page.of("input") if given.get("name") == "csrf"}
        assert len(found) == 1
        return found.pop()

    def post(self, path: str, **values: str) -> Any:
        return self.client.post(path, data={"csrf": self.csrf(), **values})

    def tried(self, change: str, **values: str) -> str:
        """The page of a trial that has succeeded."""
        answer = self.post(f"/change/{change}", **values)
        assert answer.status_code == 303, HtmlPage(answer.text).text
        return str(answer.headers["location"])

    def refused(self, change: str, status: int, **values: str) -> HtmlPage:
        """The page of a trial that was refused."""
        return page_of(self.post(f"/change/{change}", **values), status)

    def done(self, path: str, **values: str) -> HtmlPage:
        """The page of a change that was confirmed."""
        answer = self.post(path, **values)
        assert (answer.status_code, answer.headers.get("location")) == (303, path), HtmlPage(answer.text).text
        return opened(self.client, path)


def page_of(answer: Any, status: int) -> HtmlPage:
    page = HtmlPage(answer.text)
    assert (answer.status_code, page.faults) == (status, []), page.text
    return page


def filled(page: HtmlPage, name: str) -> str:
    """What a field of a page has."""
    (found,) = [given for given in page.of("input") if given.get("name") == name]
    return found["value"]


class Place(NamedTuple):
    """A cluster with a controller, and a browser that has signed in."""

    world: World
    admin: AdminClient
    browser: Browser


def place(folder: str) -> World:
    world = filled_world(folder)
    world.say(3, broker=2, lag=0)
    world.cluster.groups.commit(
        [CommittedOffset(GROUP, TOPIC, TOPIC_ID, 0, 1), CommittedOffset(GROUP, TOPIC, TOPIC_ID, 1, 2)]
    )
    return world


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    world = place(str(tmp_path_factory.mktemp("changes")))
    with controller_of(world.uri, config=Config(broker_session_timeout_ms=3_600_000)) as controller:
        wait_until(lambda: controller.is_active, "the controller is active")
        yield Place(world, AdminClient(world.uri), Browser(world.uri).signed_in())


def state(there: Place) -> object:
    """All that the console can change."""
    groups = there.world.cluster.groups.read()
    return there.admin.describe_topics(), there.admin.describe_broker_configs(), sorted(groups), len(requests_of(there))


def requests_of(there: Place) -> list[Any]:
    return there.admin.list_requests()


# Each change, from its form to its effect.


def test_a_topic_is_created_changed_and_deleted(there: Place) -> None:
    browser = there.browser
    before = state(there)
    given = {"topic": "new", "partitions": "2", "replication_factor": "2", "settings": "retention.ms=1\r\n\r\n"}
    path = browser.tried("create-topic", **given)
    page = opened(browser.client, path)
    assert "Nothing was written. This is what would be done." in page.text
    command = "--create --topic new --partitions 2 --replication-factor 2 --config retention.ms=1"
    assert f"lakelog topics --cluster {there.world.uri} {command}" in page.text
    assert state(there) == before
    page = browser.done(path)
    assert "Done. Created topic new." in page.text
    assert "/topics/new" in page.links()
    assert there.admin.describe_topic("new").topic.configs == {"retention.ms": "1"}
    assert len(there.admin.describe_topic("new").partitions) == 2
    (asked,) = [each for each in requests_of(there) if each.arguments.get("topic") == "new"]
    assert asked.requested_by.startswith("lakelog console on ")
    assert asked.requested_by.endswith(", for testclient")

    given = {"topic": "new", "set": f"{THROTTLED}=0:1,1:2\nretention.bytes=5", "remove": "retention.ms"}
    path = browser.tried("topic-settings", **given)
    assert f"--add-config '{THROTTLED}=[0:1,1:2],retention.bytes=5'" in opened(browser.client, path).text
    assert "Done." in browser.done(path).text
    configs = {THROTTLED: "0:1,1:2", "retention.bytes": "5"}
    assert there.admin.describe_topic("new").topic.configs == configs

    path = browser.tried("delete-topic", topic="new")
    assert "new: 0 committed records are lost" in opened(browser.client, path).text
    for typed in ("", "NEW", "new "):
        page = page_of(browser.post(path, typed=typed), 400)
        assert page.problem() == f"'{typed}' is not 'new': type the name of the topic again."
    assert not there.admin.describe_topic("new").topic.deleting
    assert "Done." in browser.done(path, typed="new").text
    assert "new" not in there.admin.list_topics() or there.admin.describe_topic("new").topic.deleting


def test_leaders_are_elected_and_a_broker_is_cordoned(there: Place) -> None:
    browser = there.browser
    path = browser.tried("elect-leaders", which="one", topic=TOPIC, partition="0")
    assert f"Valid replica already elected for partitions {TOPIC}-0" in browser.done(path).text
    path = browser.tried("elect-leaders", which="all")
    assert "--election-type preferred --all-topic-partitions" in opened(browser.client, path).text
    assert "No partition needs an election" in browser.done(path).text

    assert "Done. 2: cordoned.log.dirs=*" in browser.done(browser.tried("cordon", broker="2", do="cordon")).text
    assert there.admin.cordoned_brokers() == {2}
    assert opened(browser.client, "/brokers/2").row("cordoned.log.dirs")[1] == "*"
    assert "Done." in browser.done(browser.tried("cordon", broker="2", do="uncordon")).text
    assert there.admin.cordoned_brokers() == frozenset()


def offsets(there: Place) -> dict[tuple[str, str, int], int]:
    rows = there.world.cluster.groups.read()
    return {(row.group_id, row.topic, row.partition): row.committed_offset for row in rows}


@pytest.mark.parametrize(
    ("given", "words", "new"),
    [
        ({"rule": "to-earliest"}, "--all-topics --to-earliest --execute", (0, 0)),
        ({"rule": "to-latest", "topics": f"{TOPIC}:0"}, f"--topic {TOPIC}:0 --to-latest --execute", (3, 2)),
        ({"rule": "to-offset", "value": "9"}, "--to-offset 9 --execute", (3, 2)),
        ({"rule": "shift-by", "value": "-1"}, "--shift-by=-1 --execute", (0, 1)),
        ({"rule": "to-datetime", "value": "1999-01-01T00:00:00"}, "--to-datetime 1999-01-01T00:00:00", (0, 0)),
    ],
)
def test_offsets_of_a_group_are_reset(there: Place, given: dict[str, str], words: str, new: tuple[int, int]) -> None:
    browser, group = there.browser, f"reset-{given['rule']}"
    rows = [CommittedOffset(group, TOPIC, TOPIC_ID, 0, 1), CommittedOffset(group, TOPIC, TOPIC_ID, 1, 2)]
    there.world.cluster.groups.commit(rows)
    path = browser.tried("reset-offsets", group=group, **given)
    page = opened(browser.client, path)
    assert words in page.text
    assert "NEW-OFFSET" in page.text
    assert offsets(there)[group, TOPIC, 0] == 1
    assert "Done." in browser.done(path).text
    assert (offsets(there)[group, TOPIC, 0], offsets(there)[group, TOPIC, 1]) == new


def test_offsets_and_groups_are_deleted(there: Place) -> None:
    browser, group = there.browser, EVIL
    rows = [CommittedOffset(group, TOPIC, TOPIC_ID, 0, 1), CommittedOffset(group, TOPIC, TOPIC_ID, 1, 2)]
    there.world.cluster.groups.commit(rows)
    path = browser.tried("delete-offsets", group=group, topics=f"{TOPIC}:1")
    assert "This is what would be deleted." in opened(browser.client, path).text
    assert "The offsets of 1 partitions were deleted" in browser.done(path).text
    assert (group, TOPIC, 0) in offsets(there)
    assert (group, TOPIC, 1) not in offsets(there)
    path = browser.tried("delete-group", group=group)
    assert EVIL in opened(browser.client, path).text
    assert "Done." in browser.done(path, typed=group).text
    assert (group, TOPIC, 0) not in offsets(there)


# What is refused.

REFUSED = [
    ("create-topic", {"topic": ""}, 400, "--topic is empty: give it a value, or leave it out."),
    ("create-topic", {"topic": "t", "partitions": "0"}, 400, "--partitions: '0' is not a whole number from 1"),
    ("create-topic", {"topic": "t", "partitions": "x"}, 400, "--partitions: 'x' is not a whole number"),
    ("create-topic", {"topic": "t", "settings": "a"}, 400, "--config: 'a' is not of the form key=value."),
    ("create-topic", {"topic": "t", "settings": "a=1\na=2"}, 400, "--config: a is given twice."),
    ("create-topic", {"topic": "t", "settings": "a=1"}, 400, "InvalidConfigurationException: "),
    ("create-topic", {"topic": "a/b"}, 400, "InvalidTopicException: "),
    ("create-topic", {"topic": "--help", "replication_factor": "9"}, 400, "InvalidReplicationFactorException: "),
    ("create-topic", {"topic": TOPIC, "replication_factor": "2"}, 400, "TopicExistsException: "),
    ("create-topic", {"topic": EVIL, "replication_factor": "2"}, 400, f"InvalidTopicException: topic name {EVIL!r}"),
    ("create-topic", {"topic": "\x00\n", "replication_factor": "2"}, 400, "InvalidTopicException: "),
    ("delete-topic", {"topic": "none"}, 400, "UnknownTopicOrPartitionException: no topic none"),
    ("topic-settings", {"topic": TOPIC}, 400, "--alter needs --add-config or --delete-config."),
    ("topic-settings", {"topic": TOPIC, "set": "x=1", "remove": "x"}, 400, "--delete-config x: --add-config sets it."),
    ("topic-settings", {"topic": TOPIC, "set": "<b>'x'</b>"}, 400, '--add-config: "<b>\'x\'</b>" is not'),
    ("topic-settings", {"topic": TOPIC, "set": EVIL}, 400, "InvalidConfigurationException: topic flights: unknown key"),
    ("topic-settings", {"topic": TOPIC, "set": "x=1"}, 400, "InvalidConfigurationException: "),
    ("topic-settings", {"topic": "none", "set": "retention.ms=1"}, 400, "UnknownTopicOrPartitionException: "),
    ("elect-leaders", {"which": "one", "topic": TOPIC}, 400, "--partition is empty"),
    ("elect-leaders", {"which": "one", "topic": "none", "partition": "3"}, 400, "UnknownTopicOrPartitionException"),
    ("elect-leaders", {"which": "all", "topic": TOPIC}, 400, "All partitions are chosen: leave the topic"),
    ("cordon", {"broker": "x", "do": "cordon"}, 400, "--entity-name 'x' is not the id of a broker."),
    ("cordon", {"broker": "9", "do": "cordon"}, 400, "BrokerNotAvailableException: "),
    ("reset-offsets", {"group": "", "rule": "to-latest"}, 400, "--group is empty"),
    ("reset-offsets", {"group": GROUP, "rule": "to-offset"}, 400, "--to-offset is empty"),
    ("reset-offsets", {"group": GROUP, "rule": "to-latest", "value": "1"}, 400, "--to-latest takes no value"),
    ("reset-offsets", {"group": GROUP, "rule": "to-datetime", "value": EVIL}, 400, "--to-datetime: "),
    ("reset-offsets", {"group": "none", "rule": "to-latest"}, 400, "InvalidRequestException: group none has committed"),
    ("reset-offsets", {"group": GROUP, "rule": "to-latest", "topics": "t:x"}, 400, "--topic: 'x' is not"),
    ("delete-offsets", {"group": GROUP}, 400, "--delete-offsets needs --topic."),
    ("delete-offsets", {"group": GROUP, "topics": f"{TOPIC}:7"}, 400, "UnknownTopicOrPartitionException: flights-7"),
    ("delete-group", {"group": EVIL + EVIL}, 400, "GroupIdNotFoundException: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "given", "status", "sentence"), REFUSED, ids=[f"{each[0]}-{n}" for n, each in enumerate(REFUSED)]
)
def test_a_wrong_value_is_the_sentence_of_the_verb_and_the_form_is_kept(
    there: Place, change: str, given: dict[str, str], status: int, sentence: str
) -> None:
    before = state(there)
    page = there.browser.refused(change, status, **given)
    assert page.problem().startswith(" ".join(sentence.split()))
    assert "Traceback" not in page.text
    for field in CHANGES[change].fields:
        if field.kind == "line" and not field.choices:
            assert filled(page, field.name) == given.get(field.name, "")
        elif not field.choices:
            assert " ".join(given.get(field.name, "").split()) in page.text
    assert state(there) == before


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"topic": "t", "more": "1"}, 400, "'more' is no parameter of this page: allowed are csrf, topic, partitions"),
        ({"topic": "t" * 1001}, 400, "parameter topic has 1001 characters: at most 1000 are allowed"),
        ({"topic": "t", "settings": "a" * 20_001}, 400, "parameter settings has 20001 characters"),
        ({"topic": "t", "settings": "a" * 70_000}, 413, "a form of this console has at most 65536 bytes"),
        ({f"f{n}": "1" for n in range(21)}, 400, "This is no form: it has at most 20 values"),
    ],
)
def test_a_form_that_no_page_has_is_refused(there: Place, values: dict[str, str], status: int, words: str) -> None:
    problem = page_of(there.browser.post("/change/create-topic", **values), status).problem()
    assert words.lower() in problem.lower()


# Forms that do not come whole, and those that wait when the console ends.

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Sent:
    """A form that a test sends part by part, and its answer."""

    def __init__(self, browser: Browser, path: str, receive: Receive) -> None:
        cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
        headers = {
            "host": HOST, "origin": ORIGIN, "cookie": cookies, "content-type": "application/x-www-form-urlencoded",
        }  # fmt: skip
        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        self.messages: list[Any] = []
        self.task = asyncio.ensure_future(browser.app(scope, receive, self._send))

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def test_a_browser_that_goes_away_while_it_sends_a_form_is_no_error(
    there: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def sent() -> None:
        parts = [{"type": "http.request", "body": b"topic=", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> dict[str, Any]:
            return parts.pop(0)

        await Sent(there.browser, "/change/create-topic", receive).task

    asyncio.run(sent())
    assert caplog.text == ""


def test_a_form_that_does_not_come_whole_ends(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakelog.jobs.web.web_app._BODY_SECONDS", 0.05)

    async def sent() -> Sent:
        found = Sent(there.browser, "/sign-in", never)
        await found.task
        return found

    found = asyncio.run(sent())
    assert found.status == 408
    assert HtmlPage(found.text).problem() == "The form has not come whole within 0.05 s."


def test_a_change_that_is_under_way_when_the_console_ends_may_still_be_carried_out(
    alone: World, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Held(is_held=True)
    browser = Browser(alone.uri, runner).signed_in()
    path, csrf = browser.tried("cordon", broker="1"), browser.csrf()

    async def sent() -> Sent:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": f"csrf={csrf}".encode(), "more_body": False}

        found = Sent(browser, path, receive)
        await asyncio.to_thread(wait_until, lambda: runner.carried_out == 1, "the change has begun")
        found.task.cancel()
        await found.task
        runner.may_go_on.set()
        return found

    found = asyncio.run(sent())
    assert (found.status, found.text) == (503, "The console ends: what was asked for may still be carried out.\n")
    assert "Traceback" not in caplog.text


# Who may change anything.


def test_without_changes_there_is_no_form_and_no_route(console: TestClient) -> None:
    paths = [*(change.path for change in CHANGES.values()), "/sign-in", "/sign-out", "/changes/x"]
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert console.request(method, path, headers={"origin": ORIGIN}).status_code == 404
    for path in ("/", "/topics", "/topics/flights", "/topics/flights/settings", "/brokers", "/brokers/1", "/groups"):
        page = opened(console, path)
        assert [given for given in page.of("form") if given["method"] != "get"] == []
        assert not [link for link in page.links() if link.startswith(("/change", "/sign-in"))]


def test_with_changes_pages_lead_to_forms_that_are_filled_in(there: Place) -> None:
    links = [
        link
        for path in ("/topics", f"/topics/{TOPIC}", f"/topics/{TOPIC}/settings", "/brokers", "/brokers/1",
                     f"/groups/{GROUP}")
        for link in opened(there.browser.client, path).links()
        if link.startswith("/change")
    ]  # fmt: skip
    assert {link.partition("?")[0] for link in links} == {change.path for change in CHANGES.values()}
    for link in links:
        opened(there.browser.client, link)
    assert filled(opened(there.browser.client, url("change", "delete-topic", topic=EVIL)), "topic") == EVIL
    assert there.browser.client.get("/change/none").status_code == 404
    assert there.browser.client.get("/change/delete-topic?x=1").status_code == 400
    assert there.browser.client.get("/changes/none").status_code == 404


def test_what_changes_anything_is_a_post(there: Place) -> None:
    before = state(there)
    path = there.browser.tried("delete-topic", topic=TOPIC)
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
        for target in ("/sign-out", *(f"/change/{name}" for name in CHANGES), path):
            answer = there.browser.client.request(method, target, params={"typed": TOPIC})
            is_read = method in ("GET", "HEAD") and target != "/sign-out"
            assert answer.status_code == (400 if is_read else 405)
    for target, allowed in (
        ("/sign-out", "POST"),
        ("/change/delete-topic", "GET, HEAD, POST"),
        ("/topics", "GET, HEAD"),
    ):
        answer = there.browser.client.put(target)
        assert ", ".join(sorted(answer.headers["allow"].split(", "))) == allowed
        assert (
            page_of(answer, 405).problem() == f"PUT is not allowed: this page takes {allowed.replace(', ', ' and ')}."
        )
    assert state(there) == before
    there.browser.csrf()  # the session goes on


FOREIGN = [
    "https://evil.example",
    "http://127.0.0.1",
    f"https://{HOST}",
    "null",
    "",
    f"{ORIGIN}/",
    "http://localhost:8080",
]


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", "/change/delete-topic", "/changes/x"])
@pytest.mark.parametrize("origin", [*FOREIGN, None])
def test_a_form_of_another_site_is_refused(there: Place, path: str, origin: str | None) -> None:
    browser = there.browser
    values = {"csrf": browser.csrf(), "topic": TOPIC, "token": TOKEN}
    client = browser.another()
    client.cookies = browser.client.cookies
    client.headers.pop("origin")
    answer = client.post(path, data=values, headers={} if origin is None else {"origin": origin})
    assert "The" in page_of(answer, 403).problem()
    assert f"this console takes forms of {ORIGIN} only; behind a proxy, give its address with --origin." in answer.text
    assert "set-cookie" not in answer.headers
    browser.csrf()


def test_a_form_needs_the_word_of_its_own_session(there: Place) -> None:
    browser = there.browser
    other = browser.another()
    browser.signed_in(other)
    path = browser.tried("delete-topic", topic=TOPIC)
    for target, values in (
        ("/change/delete-topic", {"topic": TOPIC}),
        (path, {"typed": TOPIC}),
        ("/sign-out", {"typed": ""}),
    ):
        for csrf in ({}, {"csrf": ""}, {"csrf": browser.csrf(other)}, {"csrf": browser.csrf() + "x"}):
            answer = browser.client.post(target, data={**values, **csrf})
            assert page_of(answer, 403).problem() == "This form is not one of this session: open it again."
    answer = other.post(path, data={"typed": TOPIC, "csrf": browser.csrf(other)})
    assert page_of(answer, 404).problem().startswith("This session knows no such change")
    assert other.get(path).status_code == 404
    assert not there.admin.describe_topic(TOPIC).topic.deleting
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x", ""):
        answer = browser.client.post("/change/delete-topic", content="{}", headers={"content-type": kind})
        page_of(answer, 415)


def test_a_change_needs_a_sign_in_that_leads_back_to_the_form(there: Place) -> None:
    client = there.browser.another()
    link = url("change", "delete-topic", topic=EVIL)
    page = page_of(client.get(link), 401)
    assert page.problem() == "Changes are for those who have signed in."
    assert page_of(client.post("/change/delete-topic", data={"topic": EVIL}), 401).problem() == page.problem()
    assert page_of(client.post("/changes/x", data={"typed": ""}), 401).problem() == page.problem()
    assert page_of(client.get("/changes/x"), 401).problem() == page.problem()
    answer = client.post("/sign-in", data={"token": TOKEN, "next": filled(page, "next")})
    assert answer.status_code == 303
    assert filled(opened(client, answer.headers["location"]), "topic") == EVIL


def test_a_session_ends_after_a_time_and_by_signing_out(there: Place) -> None:
    browser = Browser(there.world.uri).signed_in()
    csrf, old = browser.csrf(), browser.cookie()
    browser.clock.now += 3599
    browser.csrf()
    browser.clock.now += 1
    assert browser.client.post("/change/delete-topic", data={"csrf": csrf, "topic": TOPIC}).status_code == 401
    browser.signed_in()
    assert "Sign out" in opened(browser.client, "/").text
    csrf, cookie = browser.csrf(), browser.cookie()
    assert cookie != old
    answer = browser.client.post("/sign-out", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert answer.headers["set-cookie"].startswith(f'{browser.pages.cookie}=""; ')
    client = browser.another()
    client.cookies.set(browser.pages.cookie, cookie)
    assert client.get("/change/create-topic").status_code == 401
    assert "Sign in" in opened(browser.client, "/").text


@pytest.mark.parametrize(
    ("own_origin", "is_secure"), [(None, False), ("http://lake.example.com", False), ("https://lake.example.com", True)]
)
def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    there: Place, own_origin: str | None, is_secure: bool
) -> None:
    browser = Browser(there.world.uri, own_origin=own_origin)
    headers = {"origin": own_origin or ORIGIN, "host": "lake.example.com" if own_origin else HOST}
    answer = browser.client.post("/sign-in", data={"token": TOKEN}, headers=headers)
    cookie = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/", "max-age=3600"} <= cookie
    assert ("secure" in cookie) == is_secure == answer.headers["set-cookie"].startswith("__Host-")
    assert not [part for part in cookie if part.startswith("domain")]
    if own_origin:
        answer = browser.client.post("/sign-in", data={"token": TOKEN}, headers={"origin": ORIGIN})
        assert page_of(answer, 403).problem().endswith(f"this console takes forms of {own_origin} only.")


@pytest.mark.parametrize("given", ["", "a guess", TOKEN[:-1], TOKEN + "0", TOKEN.upper(), f" {TOKEN}", "ä" * 64, EVIL])
def test_a_wrong_token_signs_nobody_in(there: Place, given: str, caplog: pytest.LogCaptureFixture) -> None:
    browser = Browser(there.world.uri)
    answer = browser.client.post("/sign-in", data={"token": given})
    assert page_of(answer, 401).problem().startswith("The token is wrong")
    assert "set-cookie" not in answer.headers
    assert "not signed in: the token is wrong" in caplog.text
    assert not given or given not in caplog.text + answer.text


def test_the_tries_are_few_and_even_the_right_token_waits_then(there: Place) -> None:
    browser = Browser(there.world.uri)
    for _ in range(5):
        page_of(browser.client.post("/sign-in", data={"token": "wrong"}), 401)
        browser.clock.now += 10
    answer = browser.client.post("/sign-in", data={"token": TOKEN})
    problem = "5 wrong tokens have come from testclient: the next try counts in 250 s."
    assert (page_of(answer, 429).problem(), answer.headers["retry-after"]) == (problem, "251")
    browser.clock.now += 250
    browser.signed_in()


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("/topics/a?page=2", "/topics/a?page=2"), ("/groups?id=%2F%0A", "/groups?id=%2F%0A"), ("", "/"),
        ("//evil.example", "/"), ("/\\evil.example", "/"), ("https://evil.example", "/"), ("/a\r\nset-cookie: x", "/"),
        ("javascript:alert(1)", "/"), (EVIL, "/"),
    ],
)  # fmt: skip
def test_a_sign_in_leads_to_pages_of_the_console_only(there: Place, path: str, leads_to: str) -> None:
    client = Browser(there.world.uri).client
    page = page_of(client.get("/sign-in", params={"next": path}), 200)
    assert filled(page, "next") == leads_to
    assert client.post("/sign-in", data={"token": TOKEN, "next": path}).headers["location"] == leads_to


def test_the_log_has_who_and_what_and_no_token(there: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    browser = Browser(there.world.uri).signed_in()
    csrf, cookie = browser.csrf(), browser.cookie()
    browser.done(browser.tried("cordon", broker="1", do="cordon"))
    browser.done(browser.tried("cordon", broker="1", do="uncordon"))
    browser.post("/sign-out")
    lines = [message for message in caplog.messages if message.startswith("console, testclient: ")]
    command = f"lakelog configs --cluster {there.world.uri} --alter --entity-type brokers --entity-name 1"
    assert lines[0] == "console, testclient: signed in"
    assert lines[1].startswith(f"console, testclient: begins {command} --add-config 'cordoned.log.dirs=*'")
    assert lines[2].startswith(f"console, testclient: done: {command} --add-config 'cordoned.log.dirs=*': 1: cordoned")
    assert lines[-1] == "console, testclient: signed out"
    for secret in (TOKEN, cookie, csrf):
        assert secret not in caplog.text


# What happens between a trial and its confirmation.


def test_a_topic_that_somebody_deletes_before_the_confirmation(there: Place) -> None:
    there.admin.create_topic("passing", 1, 2)
    path = there.browser.tried("topic-settings", topic="passing", set="retention.ms=1")
    there.admin.delete_topic("passing")
    page = there.browser.done(path)
    assert page.problem().startswith("UnknownTopicOrPartitionException: ")
    assert "passing" in page.problem()


@pytest.mark.parametrize(
    ("change", "given", "typed"),
    [
        ("delete-topic", {"topic": TOPIC}, {"typed": TOPIC}),
        ("reset-offsets", {"group": GROUP, "topics": f"{TOPIC}:0", "rule": "to-earliest"}, {}),
        ("delete-offsets", {"group": GROUP, "topics": f"none\n{TOPIC}"}, {}),
    ],
)
def test_a_topic_that_was_made_again_is_not_the_one_that_was_tried(
    tmp_path: Path, change: str, given: dict[str, str], typed: dict[str, str]
) -> None:
    """Whatever the pages have read before."""
    world = place(str(tmp_path))
    runner = Held()
    browser = Browser(world.uri, runner, counts_for=3600.0).signed_in()
    opened(browser.client, f"/topics/{TOPIC}")
    path = browser.tried(change, **given)
    world.make_again(1)
    answer = browser.post(path, **typed)
    words = f"Topic {TOPIC} was deleted and made again since: try the change again."
    assert page_of(answer, 409).problem() == words
    assert runner.carried_out == 0


class Held:
    """Verbs whose changes wait until a test lets them go on."""

    def __init__(self, is_held: bool = False) -> None:
        self.may_go_on = threading.Event()
        if not is_held:
            self.may_go_on.set()
        self.carried_out = 0

    def answer(self, call: Any, is_trial: bool, who: str) -> VerbAnswer:
        if not is_trial:
            self.carried_out += 1
            self.may_go_on.wait(60)
        return VerbAnswer(OK, ("would" if is_trial else "it is so",))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A cluster without a controller."""
    return place(str(tmp_path_factory.mktemp("alone")))


def test_a_change_is_carried_out_once_however_often_it_is_confirmed(alone: World) -> None:
    runner = Held(is_held=True)
    browser = Browser(alone.uri, runner).signed_in()
    path, csrf = browser.tried("cordon", broker="1"), browser.csrf()
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(browser.client.post(path, data={"csrf": csrf})))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: runner.carried_out == 1, "the change has begun")
    runner.may_go_on.set()
    for thread in threads:
        thread.join(60)
    assert [(each.status_code, each.headers["location"]) for each in answers] == [(303, path)] * 4
    assert "Done. it is so" in opened(browser.client, path).text
    assert browser.client.post(path, data={"csrf": csrf}).status_code == 303
    assert runner.carried_out == 1


def test_a_change_without_an_answer_may_still_be_carried_out(alone: World) -> None:
    runner = Held(is_held=True)
    browser = Browser(alone.uri, runner, wait=0.05).signed_in()
    path = browser.tried("cordon", broker="1")
    wait_until(lambda: "Confirm" in opened(browser.client, path).text, "the trial has ended")
    page = browser.done(path)
    assert "There is no answer yet: the change may still be carried out." in page.text
    assert browser.desk.under_way == 1
    runner.may_go_on.set()
    wait_until(lambda: "Done. it is so" in opened(browser.client, path).text, "the change has ended")
    assert browser.desk.under_way == 0


def test_no_page_waits_for_a_change_when_the_console_ends(alone: World) -> None:
    runner = Held(is_held=True)
    browser = Browser(alone.uri, runner, wait=600.0).signed_in()
    path, csrf = browser.tried("cordon", broker="1"), browser.csrf()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(browser.client.post(path, data={"csrf": csrf})))
    thread.start()
    wait_until(lambda: browser.desk.under_way == 1, "the change has begun")
    wait_until(lambda: browser.desk.let_go() or bool(answers), "the page has waited no longer")
    thread.join(60)
    assert [answer.status_code for answer in answers] == [303]
    assert "the change may still be carried out" in opened(browser.client, path).text
    runner.may_go_on.set()


def test_few_changes_are_under_way_at_a_time(alone: World) -> None:
    runner = Held(is_held=True)
    browser = Browser(alone.uri, runner, wait=0.0).signed_in()
    csrf, paths = browser.csrf(), []
    for _ in range(8):
        path = browser.tried("cordon", broker="1")
        wait_until(lambda path=path: "Confirm" in opened(browser.client, path).text, "the trial has ended")
        paths.append(path)
        browser.client.post(path, data={"csrf": csrf})
    page = browser.refused("cordon", 503, broker="1")
    assert page.problem() == "8 changes and trials are under way: try again once one has ended."
    runner.may_go_on.set()
    wait_until(lambda: browser.desk.under_way == 0, "all have ended")
    browser.tried("cordon", broker="1")


def test_a_change_that_gets_no_thread_takes_no_turn(alone: World, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, start = Browser(alone.uri, Held()).signed_in(), threading.Thread.start
    path = browser.tried("cordon", broker="1")

    def start_all_but_changes(thread: threading.Thread) -> None:
        if thread.name == "change":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_all_but_changes)
        problems = [browser.refused("cordon", 503, broker="1").problem() for _ in range(9)]
        problems.append(page_of(browser.post(path), 503).problem())
    assert set(problems) == {"The console can start no thread now, so nothing was begun: try again."}
    assert browser.desk.under_way == 0
    assert "Done." in browser.done(path).text


def test_a_trial_counts_for_a_time(alone: World) -> None:
    runner = Held()
    browser = Browser(alone.uri, runner).signed_in()
    path = browser.tried("cordon", broker="1")
    browser.clock.now += 601
    page = page_of(browser.post(path), 409)
    assert page.problem() == "The trial is older than 10 minutes: try the change again."
    assert runner.carried_out == 0


def test_without_a_controller_one_sentence_says_so(alone: World) -> None:
    page = Browser(alone.uri).signed_in().refused("create-topic", 503, topic="new")
    assert page.problem().startswith("ControllerNotAvailableException: no controller is active, and none ever was")
    assert filled(page, "topic") == "new"


def test_a_cluster_that_goes_away_is_one_sentence_and_the_form_is_kept(tmp_path: Path) -> None:
    world = place(str(tmp_path))
    browser = Browser(world.uri).signed_in()
    path = browser.tried("delete-group", group=GROUP)
    shutil.move(world.uri, f"{world.uri}-away")
    page = page_of(browser.post(path, typed=GROUP), 503)
    assert world.uri in page.problem()
    page = browser.refused("delete-group", 503, group=GROUP)
    assert world.uri in page.problem()
    assert filled(page, "group") == GROUP
    shutil.move(f"{world.uri}-away", world.uri)
    assert "Done." in browser.done(path, typed=GROUP).text


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_error_of_the_console_itself_tells_nothing(
    alone: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def broken(*_: object) -> Callable[[], None]:
        raise error("a secret of the code")

    monkeypatch.setattr("lakelog.jobs.consumer_groups.GroupsView", broken)
    page = Browser(alone.uri).signed_in().refused("delete-group", 400, group=GROUP)
    assert page.problem() == "The console has failed: its log on stderr says why."
    assert "secret" not in page.text
    assert "a secret of the code" in caplog.text
