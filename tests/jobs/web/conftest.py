"""For tests of the console: a cluster of tables without processes, and a client of its pages."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.web.page_kit import Console
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.jobs.web.web_app import web_app
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from tests.clients.world import World
from tests.jobs.metrics.scraped import LONG, live_world
from tests.jobs.web.html_page import HtmlPage
from tests.storage.logs import COLUMNS, NOON, P0, TOPIC, TOPIC_ID, replicate, request, send

Open = Callable[..., HtmlPage]

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
EVIL_GROUPS = (EVIL, "a/b", "..", "x?y=z#t", "100%", "späti 🍞", "-x", "\u202ea\nb\x00")
BIG = b"0123456789" * 20_000
DOCUMENT = {"order": 7, "items": [{"sku": "A-1"}], "note": EVIL}
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"k", EVIL.encode(), [(EVIL, EVIL.encode()), ("none", None)]),
    (EVIL.encode(), b"plain", []),
    (None, None, []),
    (b"json", json.dumps(DOCUMENT).encode(), [("trace", b"\x00\xff")]),
    (b"\x00\x01\xfe", bytes(range(256)) * 2, []),
    (b"big", BIG, [(f"h{n}", b"v") for n in range(30)]),
]


def table(rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> pa.Table:
    """Records as a producer sends them, a second apart."""
    return pa.Table.from_pylist(
        [
            {
                "key": key, "value": value, "timestamp": NOON + dt.timedelta(hours=1, seconds=second),
                "headers": [{"key": name, "value": content} for name, content in headers],
            }
            for second, (key, value, headers) in enumerate(rows)
        ],
        COLUMNS,
    )  # fmt: skip


def furnished(folder: str) -> World:
    """flights-0 has 3 numbered records, then RECORDS, all committed, and one more above the HW; flights-1 has 2. Groups
    with odd names have committed offset 1 of flights-0."""
    world = live_world(folder)
    new = request(P0, len(RECORDS), 3)
    send(world.logs[1], new, tables={P0: table(RECORDS)})
    replicate(world.logs[1], world.logs[2], P0)
    send(world.logs[1], request(P0, 1, 3 + len(RECORDS)), tables={P0: table([(b"k", b"uncommitted", [])])})
    end = 3 + len(RECORDS)
    world.say(end)
    world.say(end, broker=2, lag=0)
    offsets = [CommittedOffset(group, TOPIC, TOPIC_ID, 0, 1) for group in (*EVIL_GROUPS, "billing")]
    world.cluster.groups.commit([*offsets, CommittedOffset("billing", TOPIC, TOPIC_ID, 1, 2)])
    return world


def client_of(uri: str, hosts: set[str] | None = None, seconds: float = 0.0) -> TestClient:
    """A client of a console that reads anew for each request, unless `seconds` are given."""
    readings = ConsoleReadings(uri, LONG, seconds, loss_patience=60.0)
    app = web_app(Console(readings, Invocation("lakelog", uri)), hosts)
    return TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def furnished_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A cluster that no test of the module changes."""
    return furnished(str(tmp_path_factory.mktemp("furnished")))


@pytest.fixture(scope="module")
def console(furnished_world: World) -> Iterator[TestClient]:
    with client_of(furnished_world.uri) as client:
        yield client


@pytest.fixture(scope="module")
def open_page(console: TestClient) -> Open:
    """Opens a page, which has to have a status and no fault."""
    return lambda path, status=200: opened(console, path, status)


def opened(client: TestClient, path: str, status: int = 200) -> HtmlPage:
    answer = client.get(path)
    assert answer.status_code == status, (path, answer.status_code, HtmlPage(answer.text).text)
    page = HtmlPage(answer.text)
    assert page.faults == [], path
    return page


@pytest.fixture
def changing_world(tmp_path: Path) -> World:
    """A cluster of the test's own."""
    return live_world(str(tmp_path))
