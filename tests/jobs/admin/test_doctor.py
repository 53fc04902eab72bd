"""`lakelog doctor` on real folders and on an object store with faults: each fault is one line, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import doctor
from lakelog.jobs.admin import doctor_probes
from lakelog.jobs.launch.launcher import starts_spark
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.conditional_put import PROBE
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.s3.server import Response, error
from tests.clients.world import World
from tests.jobs.admin.seen import living_world, written
from tests.processes import wait_until
from tests.storage import faulty_store as faults
from tests.storage.faulty_store import KEYS, FaultyStore, faulty_store

Run = Any  # what a verb has answered: (status, stdout, stderr)
Bad = list[tuple[str, str, str]]


@pytest.fixture
def world(tmp_path: Path, waits: list[float]) -> World:
    assert waits == []
    return living_world(tmp_path)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    with faulty_store(tmp_path_factory.mktemp("faulty")) as store:
        format_cluster(StorageRoot.of("s3://faulty/cluster", store.options), Config())
        yield store


@pytest.fixture
def store(running: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    for name, value in running.options.items():
        monkeypatch.setenv(name, value)
    yield running
    running.fault = None


def findings(out: str, subject: str = "") -> list[dict[str, str]]:
    return [each for each in json.loads(out)["findings"] if subject in each["subject"]]


def bad(out: str, subject: str = "") -> list[tuple[str, str]]:
    return [(each["check"], each["result"]) for each in findings(out, subject) if each["result"] != "ok"]


def tree(folder: str | Path) -> list[str]:
    return sorted(map(str, Path(folder).rglob("*")))


def test_a_healthy_cluster_is_status_0_and_its_roots_stay_as_they_are(
    lakelog: Run, world: World, tmp_path: Path
) -> None:  # fmt: skip
    before = tree(tmp_path)
    code, out, err = lakelog(doctor, "--cluster", world.uri)
    assert (code, err) == (0, "")
    assert tree(tmp_path) == before
    lines = [line.rstrip() for line in out.splitlines()]
    for subject in (f"{world.uri} (cluster)", f"{world.roots[1].uri} (broker 1)", "the cluster", "this machine"):
        assert subject in lines
    assert "  ok       access           this process may list, read, write and delete" in lines
    assert "  ok       status           `status` says that nothing is wrong" in lines
    assert "Nothing is wrong." in lines
    assert "Not checked" not in out


def test_json_has_each_finding_with_what_to_do(lakelog: Run, world: World) -> None:
    written(f"{world.uri}/brokers/1", 60.0)
    code, out, _ = lakelog(doctor, "--cluster", world.uri, "-o", "json")
    found = json.loads(out)
    assert (code, found["ok"], found["not_checked"]) == (1, False, [])
    assert bad(out) == [("status", "wrong")]
    (status,) = [each for each in found["findings"] if each["check"] == "status"]
    assert status == {
        "subject": "the cluster", "check": "status", "result": "wrong",
        "found": "broker 1 is dead: its last heartbeat was 60 s ago",
        "do": f"`lakelog status --cluster {world.uri}` says what to do",
    }  # fmt: skip


def test_a_root_that_is_gone_is_a_line_and_is_not_made_again(lakelog: Run, world: World) -> None:
    gone = world.roots[2].uri
    os.rename(gone, f"{gone}.gone")
    code, out, _ = lakelog(doctor, "--cluster", world.uri)
    assert code == 1
    assert f"{gone} (broker 2)\n  WRONG    access           there is no such folder\n" in out
    assert f"- {gone} (broker 2): access: there is no such folder\n  To do: mount it, " in out
    assert not Path(gone).exists()


def test_a_cluster_that_cannot_be_opened_is_a_line_beside_those_of_its_root(lakelog: Run, tmp_path: Path) -> None:
    code, out, _ = lakelog(doctor, "--cluster", tmp_path, "-o", "json")
    assert code == 1
    assert bad(out) == [("tables", "wrong")]
    assert [each["check"] for each in findings(out, f"{tmp_path} (cluster)")][:2] == ["access", "conditional put"]
    (tables,) = [each for each in findings(out) if each["check"] == "tables"]
    assert "there is no cluster at" in tables["found"]


def test_roots_are_checked_before_a_cluster_is_made_of_them(
    lakelog: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_CLUSTER", str(tmp_path / "another"))
    for name in ("a,b", "c", "d"):
        (tmp_path / name).mkdir()
    code, out, _ = lakelog(doctor, "--roots", f"{tmp_path}/a,b,{tmp_path}/c", f"1={tmp_path}/d", "-o", "json")
    assert (code, bad(out)) == (0, [])
    subjects = {each["subject"] for each in findings(out)}
    assert {f"{tmp_path}/a,b", f"{tmp_path}/c", f"{tmp_path}/d (broker 1)"} <= subjects
    assert "the cluster" not in subjects
    assert tree(tmp_path) == [f"{tmp_path}/{name}" for name in ("a,b", "c", "d")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1="], "'1=': a URI comes after the id of the broker, such as 1=s3://bucket/b1"),
        ([" , "], "' , ' names no root"),
        (["/a, 1=/b", "1=/c,"], "broker 1 has two roots, /b and /c"),
        (["/a,", "/b,/a"], "/a is there twice"),
    ],
)
def test_roots_that_cannot_be_meant_are_refused(
    lakelog: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.delenv("LAKELOG_CLUSTER", raising=False)
    code, out, err = lakelog(doctor, "--roots", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"lakelog doctor: --roots: {said}; ")


FAULTS: dict[str, tuple[Any, Bad]] = {
    "none": (lambda _: None, []),
    "it ignores conditional puts": (lambda _: faults.ignores_conditions, [("conditional put", "wrong")]),
    "it lists late": (lambda _: faults.lists_late(), [("consistency", "wrong")]),
    "its clock is an hour off": (faults.an_hour_ahead, [("clock", "warning")]),
    "it may not be written": (lambda _: faults.refuses("PUT", "POST", "DELETE"), [("access", "wrong")]),
    "wrong credentials": (lambda _: faults.with_other_keys, [("access", "wrong")]),
    "a lifecycle rule": (lambda _: faults.expires(), [("lifecycle rules", "wrong")]),
    "a lifecycle rule for others": (lambda _: faults.expires(prefix="newer/"), []),
    "it does not tell rules": (
        lambda _: faults.with_headers(x_amz_expiration="NotImplemented"),
        [("lifecycle rules", "warning")],
    ),
    "it refuses signed URLs": (lambda _: faults.refuses_signed_urls, [("lifecycle rules", "warning")]),
    "versions": (lambda _: faults.with_headers(x_amz_version_id="3"), []),
    "an archive": (lambda _: faults.with_headers(x_amz_storage_class="GLACIER"), [("storage class", "wrong")]),
    "a lock": (lambda _: faults.with_headers(x_amz_object_lock_mode="GOVERNANCE"), [("object lock", "warning")]),
}


@pytest.mark.parametrize(("fault", "expected"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_a_store_is_one_line_and_nothing_is_left(
    lakelog: Run, store: FaultyStore, fault: Any, expected: Bad
) -> None:
    before = store.objects()
    store.fault = fault(store)
    code, out, err = lakelog(doctor, "--roots", "s3://faulty/new", "-o", "json")
    assert (bad(out), err) == (expected, "")
    assert code == any(result == "wrong" for *_, result in expected)
    assert all(each["do"] for each in findings(out) if each["result"] != "ok")
    assert store.objects() == before
    (not_checked,) = json.loads(out)["not_checked"]
    assert not_checked.startswith("in S3: lifecycle rules for other objects than those that were looked at")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in out


def test_a_lifecycle_rule_is_named_with_what_it_deletes_and_when(lakelog: Run, store: FaultyStore) -> None:
    store.fault = faults.expires(prefix="cluster/metadata/")
    code, out, _ = lakelog(doctor, "--cluster", "s3://faulty/cluster", "-o", "json")
    (line,) = [each for each in findings(out, "s3://faulty") if each["check"] == "lifecycle rules"]
    first = "s3://faulty/cluster/metadata/_delta_log/00000000000000000000.json"
    assert (code, line["result"]) == (1, "wrong")
    assert line["found"].startswith(
        f"the lifecycle rule 'old files' deletes objects of this root: {first} on 2026-12-31 (1 of the "
    )


ASKED = {
    "it answers": lambda *_: None,
    "it refuses": lambda *_: error(403, "AccessDenied"),
    "it fails": lambda *_: error(503, "SlowDown"),
    "it sends the client to another address": lambda url: Response(302, b"", {"Location": url.replace("new", "other")}),
    "it sends nonsense": lambda *_: Response(200, b"", {"x-amz-expiration": "\x1b[31m", "Bad Header": "\t"}),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_signature_of_a_url_is_a_secret(
    lakelog: Run, store: FaultyStore, caplog: pytest.LogCaptureFixture, asked: Any
) -> None:  # fmt: skip
    signatures = list[str]()

    def noting(answer: Any, method: str, url: str, *rest: Any) -> Response:
        found = answer(method, url, *rest)
        if faults.SIGNATURE not in url:
            return found
        signatures.append(url.partition(faults.SIGNATURE)[2].partition("&")[0])
        return asked(url) or found

    store.fault = noting
    _, out, err = lakelog(doctor, "--roots", "s3://faulty/new", "-o", "json")
    assert signatures, "no URL was signed"
    for secret in (*signatures, faults.SIGNATURE, KEYS["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in out + err + caplog.text
    assert "\x1b" not in out
    assert (err, findings(out, "new")[0]["result"]) == ("", "ok")


def test_a_store_that_refuses_deletes_keeps_one_file_which_is_named_and_removed_later(
    lakelog: Run, store: FaultyStore
) -> None:
    before = store.objects()
    store.fault = faults.refuses("DELETE")
    code, out, _ = lakelog(doctor, "--roots", "s3://faulty/new", "-o", "json")
    assert (code, bad(out)) == (1, [("access", "wrong"), ("files of the probe", "warning")])
    (left,) = set(store.objects()) - set(before)
    assert f"s3://faulty/{left}" in findings(out, "new")[-1]["do"]
    store.fault = None
    os.utime(store.folder / left, (1, 1))
    _, out, _ = lakelog(doctor, "--roots", "s3://faulty/new", "-o", "json")
    assert findings(out, "new")[0]["found"].endswith("; what 1 killed probe had left was removed")
    assert store.objects() == before


def test_a_root_that_hangs_is_one_line_and_holds_up_no_other(lakelog: Run, store: FaultyStore, tmp_path: Path) -> None:
    """Its own time-out would come later."""
    (tmp_path / "patient.properties").write_text("lakelog.storage.timeout.ms=120000\n")
    (tmp_path / "root").mkdir()
    let_go = threading.Event()
    store.fault = faults.hangs(let_go)
    words = ("--timeout", "2", "--command-config", tmp_path / "patient.properties", "-o", "json")
    try:
        code, out, _ = lakelog(doctor, "--roots", "s3://faulty/hanging", tmp_path / "root", *words)
    finally:
        let_go.set()
    (line,) = findings(out, "hanging")
    assert (code, line["check"], line["result"]) == (1, "access", "wrong")
    assert line["found"] == "it does not answer to a LIST within 2 s"
    assert bad(out, str(tmp_path / "root")) == []


def test_a_missing_bucket_and_the_cluster_in_it(lakelog: Run, store: FaultyStore) -> None:
    before = store.objects()
    code, out, _ = lakelog(doctor, "--cluster", "s3://nowhere/cluster", "-o", "json")
    assert (code, bad(out)) == (1, [("access", "wrong"), ("tables", "wrong")])
    assert "NoSuchBucket" in findings(out, "s3://nowhere")[0]["found"]
    assert store.objects() == before


def test_a_cluster_in_a_store_has_the_cost_of_its_polls(lakelog: Run, store: FaultyStore) -> None:
    before = store.objects()
    _, out, _ = lakelog(doctor, "--cluster", "s3://faulty/cluster", "--role", "reader", "-o", "json")
    assert bad(out) == [("access", "warning"), ("status", "wrong")]  # it may write, and no controller was elected
    (cost,) = [each for each in findings(out) if each["check"] == "idle cost"]
    assert "requests a second and $" in cost["found"]
    assert store.objects() == before


def test_the_clock_of_a_broker_is_compared_with_that_of_this_machine(
    lakelog: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.refresh_brokers()
    clocks = doctor_probes.writer_clocks(world.cluster)
    assert clocks.keys() == {"broker 1", "broker 2", "the controller"}
    ahead = {
        name: clock._replace(ahead=ahead) for (name, clock), ahead in zip(clocks.items(), (0.0, 90.0, 0.1), strict=True)
    }
    now = {name: clock._replace(written_at=os.stat(world.uri).st_mtime) for name, clock in ahead.items()}
    monkeypatch.setattr(doctor_probes, "writer_clocks", lambda _: now)
    _, out, _ = lakelog(doctor, "--cluster", world.uri, "-o", "json")
    assert bad(out, "the cluster") == [("clock", "warning")]
    (line,) = [each for each in findings(out, "the cluster") if each["result"] == "warning"]
    assert line["found"].startswith("the clock of broker 2 is 9")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_nothing_is_left(store: FaultyStore, number: signal.Signals, status: int) -> None:
    before, wrote, let_go = store.objects(), threading.Event(), threading.Event()

    def slow_after_the_first_file(answer: Any, method: str, url: str, *rest: Any) -> Any:
        found = answer(method, url, *rest)
        if method == "PUT" and PROBE in url:
            wrote.set()
            let_go.wait()
        return found

    store.fault = slow_after_the_first_file
    words = [sys.executable, "-m", "lakelog.jobs", "doctor", "--roots", "s3://faulty/new"]
    verb = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(wrote.is_set, "the probe has written")
        verb.send_signal(number)
        let_go.set()
        out, err = verb.communicate(timeout=60)
    finally:
        let_go.set()
        verb.kill()
    assert (verb.returncode, out, err) == (status, "", "")
    assert store.objects() == before


def test_only_spark_starts_spark() -> None:
    assert starts_spark(["doctor", "--cluster", "c", "--spark"])
    assert not starts_spark(["doctor", "--cluster", "c"])
    assert not starts_spark(["doctor", "--spark", "--help"])
