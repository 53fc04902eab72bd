"""The verb: its process, its signals, its address, and what it says without the extra."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lakelog.jobs import ui
from lakelog.jobs.launch import installed
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
