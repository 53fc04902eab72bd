"""Bad input to every verb: one clear sentence, the right exit status, no stack trace, nothing half done."""

import importlib
import json
import os
import shlex
from pathlib import Path

import pytest

from lakelog.jobs.launch.launcher import VERBS, launch
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot

CASES = [line for line in (Path(__file__).parent / "bad_input.txt").read_text().splitlines() if line[:1] in ("1", "2")]
UNANSWERED = [
    "topics --create --topic a/b",
    "topics --create --topic t --replica-assignment 1",
    "configs --alter --entity-type topics --entity-name t --delete-config x",
    "configs --alter --entity-type topics --entity-name t --add-config min.insync.replicas=0",
    "configs --alter --entity-type brokers --entity-name 9 --add-config x=1",
    "reassign-partitions --execute --reassignment-json-file big.json",
    "leader-election --election-type preferred --topic none --partition 3",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster in `c` with a broker's root in `b1`, and files of all kinds of wrong content."""
    folder = tmp_path_factory.mktemp("bad")
    format_cluster(StorageRoot.of(str(folder / "c")), Config())
    cluster_id = Cluster.open(str(folder / "c")).cluster_id
    format_broker(StorageRoot.of(str(folder / "b1")), cluster_id, 1)
    (folder / "dir").mkdir()
    big = {"partitions": [{"topic": "t", "partition": 10**30, "replicas": [1]}]}
    negative = {"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}
    replicas = {"partitions": [{"topic": "t", "partition": 0, "replicas": "1,2"}]}
    contents = {
        "file": "x", "empty.json": "", "deep.json": "[" * 100_000, "list.json": "[]", "bad.yaml": "a: [\n",
        "big.json": json.dumps(big), "replicas.json": json.dumps(replicas), "bad.properties": "num.partitions=x\n",
        "short.properties": "request.timeout.ms=1\n", "one.properties": "broker.id=1\n",
        "negative.json": json.dumps(negative),
        "mark.json": "\ufeff" + json.dumps({"partitions": [{"topic": "t", "partition": 0, "offset": 1}]}),
        "twice.json": json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 1]}]}),
        "none.json": json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}),
        "mark.properties": "\ufeffrequest.timeout.ms=1000\n",
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_text(content)
    tokens = {
        "open.token": "a" * 32,
        "short.token": "a" * 31 + "\n",
        "two.token": "a" * 32 + "\n" + "b" * 32,
        "long.token": "a" * 1001,
    }
    for name, token in {**tokens, "good.token": "a" * 32 + "\n"}.items():
        (folder / name).write_text(token)
        (folder / name).chmod(0o644 if name == "open.token" else 0o600)
    for name in ("utf.json", "utf.properties"):
        (folder / name).write_bytes(b"\xff\xfe\x00")
    return folder


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("LAKELOG_CLUSTER", raising=False)
    return folder


def status_of(words: list[str]) -> int:
    """As `launch`, but a verb that needs Spark takes no process over: it is to refuse before it starts any."""
    verb = VERBS.get(words[0]) if words else None
    if verb and verb.starts_spark(words[1:]):
        return importlib.import_module(verb.module).main(words[1:])
    return launch(words)


def lie_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence_and_changes_nothing(
    there: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, words, fault = (part.strip() for part in case.split("|"))
    before = lie_in(there)
    assert status_of(shlex.split(words)) == int(status)
    out, err = capsys.readouterr()
    assert fault in err + out
    assert "Traceback" not in err
    assert "[Errno " not in err
    told = [line for line in (out + err).splitlines() if "Exception: " in line or line.startswith("lakelog")]
    assert len(told) == 1
    assert lie_in(there) == before


def test_there_are_many_cases_and_some_of_each_verb() -> None:
    assert len(CASES) + len(UNANSWERED) >= 100
    assert {shlex.split(case.split("|")[1])[0] for case in CASES} >= set(VERBS)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("case", UNANSWERED)
def test_a_request_without_an_active_controller_is_withdrawn(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run would leave no row."""
    words = [*shlex.split(case), "--cluster", "c", "--command-config", "short.properties"]
    assert status_of(words) == 1
    first, last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lakelog: ")]
    assert first.startswith("lakelog: no controller is active, and none ever was")
    assert last.endswith("it is withdrawn, and nothing of it was done")
    requests = Cluster.open("c").admin.requests
    assert {outcome.error for request in requests for outcome in request.outcomes.values()} == {"TimeoutException"}


@pytest.mark.usefixtures("there")
def test_a_relative_root_in_a_folder_that_was_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture goes back
    gone.rmdir()
    assert status_of(["topics", "--cluster", "c", "--list"]) == 2
    assert "--cluster: storage root c: this process stands in a folder that was deleted" in capsys.readouterr().err


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("name", ["caf\udce9", "a\nb", "a\x1b[31mb"])
def test_a_path_with_unprintable_characters_is_refused_on_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file name in Latin-1 is to Python a text with surrogates."""
    for words, option in [
        (["topics", "--list", "--cluster", name], "--cluster"),
        (["format", "--cluster", "c", "--broker-id", "7", "--root", name], "--root"),
        (["topics", "--list", "--cluster", "c", "--command-config", name], "--command-config"),
        (
            ["leader-election", "--cluster", "c", "--election-type", "preferred", "--path-to-json-file", name],
            "json-file",
        ),
    ]:
        assert status_of(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert option in line


@pytest.mark.usefixtures("there")
def test_a_properties_file_may_have_a_byte_order_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["topics", "--list", "--cluster", "c", "--command-config", "mark.properties"]) == 0
    assert capsys.readouterr().err == ""
