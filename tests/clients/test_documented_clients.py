"""Runs the Python of docs/python-clients.md, in its order, on a cluster whose leader publishes all records at once."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.world import World
from tests.storage.logs import P0, P1, values

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-clients.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world, is_over = World(str(tmp_path)), threading.Event()

    def publish() -> None:
        published: dict[object, int] = {}
        while not is_over.wait(0.01):
            state = world.logs[1].refresh()
            for partition in (P0, P1):
                end = state.partition(partition).log_end_offset
                if published.get(partition) != end:
                    published[partition] = end
                    world.say(end, partition)

    thread = threading.Thread(target=publish)
    thread.start()
    yield world
    is_over.set()
    thread.join()


def test_the_snippets_of_the_page_on_python_clients_run_in_their_order(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {"cluster_uri": world.uri}
    for snippet in SNIPPETS:
        exec(compile(snippet, PAGE.name, "exec"), names)
    assert len(SNIPPETS) == 4
    out = capsys.readouterr().out
    assert re.search(r"^flights \d \d+ \(1, \d+\) b'delay 2'$", out, re.M), out
    sent = values(world.logs[1], P0) + values(world.logs[1], P1)
    assert sorted(sent) == sorted([b"late", b"on time", b"delay 0", b"delay 1", b"delay 2", b"0", b"1", b"2"])
    assert sum(world.consumer("delays").committed("flights").values()) == 5
