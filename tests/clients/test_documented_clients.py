"""Runs the Python of the pages that need no Spark, in its order, on a cluster whose leader publishes all records at
once."""

import ast
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.world import World
from tests.pages import blocks
from tests.storage.logs import P0, P1, values

PAGES = {"python-clients.md": 4, "serializers.md": 5, "dataframes.md": 7}  # and their numbers of snippets


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


@pytest.fixture
def printed(world: World, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Runs the snippets of a page, and returns what they print."""

    def run(page: str) -> str:
        names: dict[str, object] = {"cluster_uri": world.uri}
        snippets = [text for text, _ in blocks(page, "python")]
        assert len(snippets) == PAGES[page]
        for snippet in snippets:
            exec(compile(snippet.replace("/lake/broker-1", world.roots[1].uri), page, "exec"), names)
        return capsys.readouterr().out

    return run


def test_the_snippets_on_serializers_run_in_their_order(printed: Callable[[str], str]) -> None:
    assert printed("serializers.md").splitlines() == [
        "[b'sp\\xc3\\xa4ti'] [b'\\x00\\xff'] [None]", "[12]", "['B7']", "['B7']", "[0, 1, 2]"
    ]  # fmt: skip


def test_the_snippets_on_dataframes_run_in_their_order(printed: Callable[[str], str]) -> None:
    lines = printed("dataframes.md").splitlines()
    assert lines[0].startswith("12 ['key', 'value', 'topic', 'partition', 'offset',")
    sums = {"N0": 18, "N1": 22, "N2": 26}
    assert lines[1] == "12"
    assert [ast.literal_eval(line) for line in lines[2:5]] == [sums, sums, sums]
    assert lines[5:] == ["24", "24"]


def test_the_snippets_of_the_page_on_python_clients_run_in_their_order(
    world: World, printed: Callable[[str], str]
) -> None:
    out = printed("python-clients.md")
    assert re.search(r"^flights \d \d+ \(1, \d+\) b'delay 2'$", out, re.M), out
    sent = values(world.logs[1], P0) + values(world.logs[1], P1)
    assert sorted(sent) == sorted([b"late", b"on time", b"delay 0", b"delay 1", b"delay 2", b"0", b"1", b"2"])
    assert sum(world.consumer("delays").committed("flights").values()) == 5
