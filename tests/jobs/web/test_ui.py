"""The verb: its process, its signals, its address, and what it says without the extra."""

import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lakelog.jobs import ui
from lakelog.jobs.launch import installed
from lakelog.jobs.web.sign_in import origin, token_file
from tests.clients.world import World
from tests.jobs.web.html_page import HtmlPage


@pytest.fixture
def properties(tmp_path: Path) -> str:
    file = tmp_path / "console.properties"
    file.write_text("broker.session.timeout.ms=3600000\ncontroller.session.timeout.ms=3600000\n")
    return str(file)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_in_order(furnished_world: World, number: signal.Signals, properties: str) -> None:
    words = ["ui", "--cluster", furnished_world.uri, "--port", "0", "--command-config", properties]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.jobs", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = int(line.strip().removesuffix("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = HtmlPage(answer.read().decode())
        assert (answer.status, page.faults) == (200, [])
        assert "Nothing is wrong." in page.text
        assert answer.getheader("server") is None
        connection.request("GET", "/", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 421
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, ""), line
    assert line == f"Serving the console of {furnished_world.uri} at http://127.0.0.1:{port}/\n"


def test_changes_are_for_those_who_have_the_token(furnished_world: World, properties: str, tmp_path: Path) -> None:
    """Of a process, whose token is in no line of its log."""
    file = tmp_path / "console.token"
    file.touch(0o600)
    token = "0123456789abcdef" * 4
    file.write_text(f"{token}\n")
    words = ["ui", "--cluster", furnished_world.uri, "--port", "0", "--command-config", properties, "--allow-changes"]
    words += ["--token-file", str(file), "--origin", "https://lake.example.com"]
    process = subprocess.Popen([sys.executable, "-m", "lakelog.jobs", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().strip().removesuffix("/").rpartition(":")[2])
        words_of_changes = process.stderr.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        own = {**kind, "Host": "lake.example.com", "Origin": "https://lake.example.com"}
        statuses = {}
        for name, path, headers, given in (
            ("of another site", "/sign-in", {**kind, "Origin": f"http://127.0.0.1:{port}"}, token),
            ("with a wrong token", "/sign-in", own, "0" * 64),
            ("with the token", "/sign-in", own, token),
            ("without a session", "/change/create-topic", own, token),
        ):
            connection.request("POST", path, f"token={given}" if path == "/sign-in" else "topic=t", headers)
            answer = connection.getresponse()
            answer.read()
            statuses[name] = answer.status
            if answer.status == 303:
                assert "; Secure" in (answer.getheader("set-cookie") or "")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert statuses == {
        "of another site": 403, "with a wrong token": 401, "with the token": 303, "without a session": 401,
    }  # fmt: skip
    assert words_of_changes == "Whoever signs in with the token of --token-file can change the cluster.\n"
    assert [line.partition("console, ")[2] for line in err.splitlines()] == [
        "127.0.0.1: not signed in: the token is wrong: it is the content of the file that --token-file names",
        "127.0.0.1: signed in",
    ]
    assert token not in err
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("mode", "owner", "is_taken"),
    [(0o600, 1, True), (0o400, 1, True), (0o640, 1, False), (0o604, 1, False), (0o660, 0, False), (0o640, 0, True)],
)
def test_a_token_is_read_by_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, is_taken: bool
) -> None:
    file = tmp_path / "token"
    file.write_text("a" * 32)
    file.chmod(mode)
    found = os.stat(file)
    monkeypatch.setattr(
        "lakelog.jobs.web.sign_in.os.fstat", lambda _: os.stat_result([found.st_mode, *found[1:4], owner, *found[5:]])
    )
    if is_taken:
        assert token_file(str(file)).equals("a" * 32)
    else:
        with pytest.raises(argparse.ArgumentTypeError, match=f"has the mode {mode:03o}"):
            token_file(str(file))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://Lake.Example.com/", "https://lake.example.com"), ("https://x:443", "https://x"),
        ("http://x:80", "http://x"), ("http://x:8080", "http://x:8080"), ("https://[::1]:9", "https://[::1]:9"),
        ("https://x?y", None), ("https://x#y", None), ("https://u:p@x", None), ("https://", None), ("//x", None),
        ("https://x:99999", None), ("https://x y", None), ("", None),
    ],
)  # fmt: skip
def test_an_origin_is_what_browsers_send(text: str, found: str | None) -> None:
    if found is not None:
        assert origin(text) == found
        return
    with pytest.raises(argparse.ArgumentTypeError, match="is not the address of a console in a browser"):
        origin(text)


def test_a_port_in_use_is_one_error(furnished_world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert ui.main(["--cluster", furnished_world.uri, "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    words = f"--host and --port 127.0.0.1:{port}: Address already in use"
    assert line == f"lakelog: InvalidConfigurationException: {words}"


def test_a_host_that_can_be_none_is_one_error(furnished_world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert ui.main(["--cluster", furnished_world.uri, "--host", "ä" * 70]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lakelog: InvalidConfigurationException: --host and --port {'ä' * 70}:8080: ")


def test_a_host_that_others_reach_is_told(
    furnished_world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "stop_signals", lambda: lambda: True)
    assert ui.main(["--cluster", furnished_world.uri, "--host", "0.0.0.0", "--port", "0"]) == 0
    warning, serving = capsys.readouterr().err.splitlines()
    assert warning.startswith("lakelog: warning: --host 0.0.0.0 is no loopback address: whoever reaches 0.0.0.0:")
    assert "can read all records, topics, groups and settings" in warning
    assert serving.startswith(f"Serving the console of {furnished_world.uri} at http://0.0.0.0:")


def test_without_the_extra_it_says_how_to_install_it(
    furnished_world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "starlette" else object())
    assert ui.main(["--cluster", furnished_world.uri]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("lakelog ui: starlette is not installed: pip install 'lakelog[ui]'")
