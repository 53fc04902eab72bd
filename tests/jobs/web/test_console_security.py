"""What keeps the console from being misused: headers, names of hosts, methods, and errors that tell no more than one
sentence."""

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lakelog.jobs.ui import make_parser
from lakelog.jobs.web import web_app as web
from lakelog.jobs.web.web_app import HEADERS, PAGES
from tests.clients.world import World
from tests.jobs.web.conftest import client_of, opened

STATIC = Path(web.__file__).parent / "static"
ANSWERS = [
    ("/", 200), ("/topics/flights/messages", 200), ("/nothing", 404), ("/topics?page=x", 400), ("/healthz", 200),
    ("/static/console.js", 200), ("/static/console.css", 200), ("/static/none.js", 404),
    ("/static/..%2f..%2fweb_app.py", 404),
]  # fmt: skip


@pytest.mark.parametrize(("path", "status"), ANSWERS)
def test_every_answer_has_each_header(console: TestClient, path: str, status: int) -> None:
    console.get("/")
    answer = console.get(path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"


def test_the_policy_allows_what_the_pages_have(console: TestClient) -> None:
    script, style = (console.get(f"/static/console.{kind}") for kind in ("js", "css"))
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    for text in (script.text, style.text):
        assert "http" not in text, "nothing is loaded from elsewhere"
        assert "innerHTML" not in text
        assert "eval(" not in text
        assert "@import" not in text
        assert "url(" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_allowed(console: TestClient, method: str) -> None:
    for path, _ in PAGES:
        answer = console.request(method, path.replace("{name}", "1"))
        assert answer.status_code == 405
        assert {*answer.headers["allow"].split(", ")} == {"GET", "HEAD"}
        assert HEADERS.items() <= dict(answer.headers).items()


def test_head_has_no_content(console: TestClient) -> None:
    answer = console.head("/")
    assert (answer.status_code, answer.text) == (200, "")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200), ("localhost", 200), ("LOCALHOST:8080", 200), ("[::1]:8080", 200), ("[::1]", 200),
        ("evil.example", 421), ("evil.example:8080", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("localhost:8080@evil.example", 421), ("localhost.", 421), ("::1", 421),
    ],
)  # fmt: skip
def test_a_page_of_another_site_cannot_read_the_console(furnished_world: World, host: str, status: int) -> None:
    with client_of(furnished_world.uri, hosts={"localhost", "127.0.0.1", "[::1]"}) as client:
        answer = client.get("/healthz", headers={"host": host})
    assert answer.status_code == (503 if status == 200 else status), "it has not read the cluster yet"
    assert HEADERS.items() <= dict(answer.headers).items()
    if status == 421:
        assert answer.text.startswith("The header Host is ")
        assert "127.0.0.1, [::1], localhost only" in answer.text


def test_a_cluster_that_is_away_is_one_sentence_and_comes_back(changing_world: World) -> None:
    away = f"{changing_world.uri}-away"
    with client_of(changing_world.uri) as client:
        opened(client, "/")
        assert client.get("/healthz").status_code == 200
        shutil.move(changing_world.uri, away)
        for path in ("/", "/brokers", "/topics/flights", "/topics/flights/messages", "/what-if?kill=1", "/history"):
            page = opened(client, path, 503)
            assert changing_world.uri in page.problem()
            assert "Traceback" not in page.text
        assert client.get("/healthz").status_code == 503
        shutil.move(away, changing_world.uri)
        for path in ("/", "/brokers", "/topics/flights", "/topics/flights/messages", "/what-if?kill=1", "/history"):
            opened(client, path)
        assert client.get("/healthz").status_code == 200


def test_the_root_of_a_broker_that_is_away_hides_no_other(changing_world: World) -> None:
    shutil.move(changing_world.roots[1].uri, f"{changing_world.roots[1].uri}-away")
    with client_of(changing_world.uri) as client:
        page = opened(client, "/")
        assert "the root of broker 1 cannot be read here" in page.text
        assert opened(client, "/topics/flights").row("0")[5] == "–"
        assert "Partition 0 cannot be read" in opened(client, "/topics/flights/messages").text
        opened(client, "/brokers/1")


def test_an_error_of_the_console_itself_tells_nothing(furnished_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the code")

    monkeypatch.setattr(web, "PAGES", (("/", broken),))
    with client_of(furnished_world.uri) as client:
        page = opened(client, "/", 500)
        assert HEADERS.items() <= dict(client.get("/").headers).items()
    assert page.problem() == "The console has failed to build this page: its log on stderr says why."
    assert "secret" not in page.text


def test_the_files_are_those_that_are_served(console: TestClient) -> None:
    assert {path.name for path in STATIC.iterdir()} == {"console.css", "console.js"}
    for path in STATIC.iterdir():
        assert console.get(f"/static/{path.name}").text == path.read_text("utf-8")


def test_the_default_is_this_machine_alone() -> None:
    args = make_parser().parse_args(["--cluster", "/lake/cluster"])
    assert (args.host, args.port) == ("127.0.0.1", 8080)
