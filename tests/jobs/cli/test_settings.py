"""A properties file is read once, because a pipe has nothing left for a second reader; an empty path is none."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import broker, configs, topics
from lakelog.jobs import format as format_verb
from lakelog.jobs.cli.settings import broker_settings, given_settings, properties_file, settings
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster
from tests.hanging import ends, in_background

Run = Any  # what a verb has answered: (status, stdout, stderr)
TEXT = "num.replica.fetchers=3\nmin.insync.replicas=2\nstorage.1.secret=hidden\n"


@pytest.fixture
def pipe() -> Iterator[Callable[[], str]]:
    """The path of a pipe that holds the settings, such as a shell gives for `<(echo …)`."""
    opened: list[int] = []

    def make() -> str:
        reader, writer = os.pipe()
        opened.append(reader)
        os.write(writer, TEXT.encode())
        os.close(writer)
        return f"/dev/fd/{reader}"

    yield make
    for reader in opened:
        os.close(reader)


def test_a_cluster_gets_its_settings_from_a_pipe(lakelog: Run, tmp_path: Path, pipe: Callable[[], str]) -> None:
    assert lakelog(format_verb, "--cluster", tmp_path / "c", "--command-config", pipe())[0] == 0
    assert Cluster.open(str(tmp_path / "c")).config.num_replica_fetchers == 3


def test_the_settings_of_brokers_are_shown_from_a_pipe(lakelog: Run, cluster: str, pipe: Callable[[], str]) -> None:
    words = ("--describe", "--all", "--entity-type", "brokers", "--entity-name", 1, "-o", "json")
    status, out, err = lakelog(configs, "--cluster", cluster, *words, "--command-config", pipe())
    found = {row["key"]: row["source"] for row in json.loads(out)}
    assert (status, err, found["min.insync.replicas"]) == (0, "", "STATIC_BROKER_CONFIG")


def test_the_settings_of_a_broker_come_from_a_pipe(pipe: Callable[[], str]) -> None:
    path = pipe()
    file = broker.make_parser().parse_args(
        ["--cluster", "c", "--root", "b", "--command-config", path]
    ).command_config  # fmt: skip
    found = broker_settings(file, 1, "r")
    assert (found.num_replica_fetchers, found.broker_id, found.broker_rack) == (3, 1, "r")
    assert (str(file), "hidden" in repr(file)) == (path, False)


def test_a_fifo_of_settings_is_read_once(tmp_path: Path) -> None:
    """A second one would wait for ever."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = in_background(lambda: fifo.write_text(TEXT))
    found: list[int] = []

    def read() -> None:
        file = properties_file(str(fifo))
        found.extend((settings(file).num_replica_fetchers, len(given_settings(file))))

    assert ends(in_background(read))
    assert ends(writer)
    assert found == [3, 3]


@pytest.mark.parametrize("empty", [["--command-config", "", "--rack", ""], ["--command-config=", "--rack="]])
def test_an_empty_file_name_and_an_empty_rack_are_not_given(empty: list[str]) -> None:
    """As from a variable of a unit file that is not set."""
    args = broker.make_parser().parse_args(["--cluster", "c", "--root", "b", *empty])
    assert args.command_config is None
    assert broker_settings(args.command_config, 1, args.rack) == Config(broker_id=1)


def test_other_empty_values_are_refused(lakelog: Run, cluster: str) -> None:
    assert lakelog(topics, "--cluster", cluster, "--list", "--command-config", "") == (0, "", "")
    status, _, err = lakelog(broker, "--cluster", cluster, "--root", "", "--rack", "")
    assert (status, "--root is empty: give it a value, or leave it out" in err) == (2, True)
