"""What a probe finds in folders and in stores, and that it leaves nothing there."""

import os
import threading
import time
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.conditional_put import PROBE
from lakelog.replication.storage.delta.object_headers import ObjectRules
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_requests import PART_BYTES
from lakelog.replication.storage.store_probe import (
    CONDITIONAL_PUT,
    CONTENT,
    DELETE,
    LIST,
    LIST_AFTER_DELETE,
    LIST_AFTER_WRITE,
    OPERATIONS,
    PROMISES,
    READ,
    READ_AFTER_DELETE,
    READ_AFTER_WRITE,
    SYNC,
    WRITE,
    StoreFacts,
    StoreProbe,
)
from tests.storage import faulty_store as faults
from tests.storage.faulty_store import FaultyStore, faulty_store
from tests.storage.logs import P0, new_log, request, send


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with faulty_store(tmp_path_factory.mktemp("faulty")) as store:
        format_cluster(StorageRoot.of("s3://faulty/cluster", store.options), Config())
        yield store


@pytest.fixture
def store(running: FaultyStore):
    yield running
    running.fault = None


def probed(root: StorageRoot) -> StoreFacts:
    probe = StoreProbe(root)
    probe.run()
    return probe.facts


def root_in(store: FaultyStore, bucket: str = "faulty", timeout_ms: int = 10_000) -> StorageRoot:
    return StorageRoot.of(f"s3://{bucket}/cluster", store.options, timeout_ms=timeout_ms)


@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_good_root_keeps_all_promises_and_nothing_is_left_there(store, root, place):
    where = StorageRoot.of(root) if place == "disk" else root_in(store)
    before = where.list()
    facts = probed(where)
    assert (facts.may, facts.refused, facts.broken, facts.left, facts.step) == (set(OPERATIONS), {}, {}, "", "")
    assert facts.kept == set(PROMISES) - (set() if place == "disk" else {SYNC})
    assert {"PUT", "GET", "LIST", "HEAD", "DELETE"} <= facts.milliseconds.keys()
    assert facts.clock_ahead is not None
    assert abs(facts.clock_ahead) <= facts.clock_doubt
    assert (facts.disk is not None) == (place == "disk")
    assert where.list() == before


BROKEN = {
    "ignores conditions": (lambda _: faults.ignores_conditions, {CONDITIONAL_PUT}, "takes a second put"),
    "answers conditions wrongly": (
        lambda _: faults.answers_conditions_wrongly,
        {CONDITIONAL_PUT},
        "no such file fails",
    ),
    "overwrites what it refuses": (
        lambda _: faults.overwrites_what_it_refuses,
        {CONDITIONAL_PUT},
        "keeps the one that it has refused",
    ),
    "lists late": (lambda _: faults.lists_late(), {LIST_AFTER_WRITE, LIST_AFTER_DELETE}, "listing"),
    "reads late": (lambda _: faults.reads_late(), {READ_AFTER_WRITE, READ_AFTER_DELETE}, "just deleted is still read"),
    "changes content": (lambda _: faults.changes_content, {READ_AFTER_WRITE, CONTENT}, "byte for byte"),
}


@pytest.mark.parametrize(("fault", "promises", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found_and_nothing_is_left(store, fault, promises, words):
    before = store.objects()
    store.fault = fault(store)
    facts = probed(root_in(store))
    assert words in " ".join(facts.broken.values())
    assert set(facts.broken) == promises
    assert store.objects() == before


REFUSED = {
    "deletes": (("DELETE",), {LIST, READ, WRITE}, {DELETE}),
    "writes": (("PUT", "POST", "DELETE"), {LIST, READ}, {WRITE, DELETE}),
    "writes but no deletes": (("PUT", "POST"), {LIST, READ, DELETE}, {WRITE}),
    "reads": (("GET",), {LIST, WRITE, DELETE}, {READ}),
    "listings": (("LIST",), {READ, WRITE, DELETE}, {LIST}),
}


@pytest.mark.parametrize(("methods", "may", "refused"), REFUSED.values(), ids=REFUSED)
def test_what_a_process_may_not_do_is_told(store, methods, may, refused):
    before = store.objects()
    store.fault = faults.refuses(*methods)
    facts = probed(root_in(store))
    assert (facts.may, facts.refused.keys(), facts.broken) == (may, refused, {})
    assert set(facts.refused.values()) == {"the store refuses access (403 Forbidden, AccessDenied)"}
    left = sorted(set(store.objects()) - set(before))
    assert [f"s3://faulty/{key}" for key in left] == ([facts.left] if facts.left else [])
    store.fault = None
    for key in left:
        (store.folder / key).unlink()
    assert len(left) == (refused == {DELETE})


def test_wrong_credentials_and_a_missing_bucket_end_the_probe_at_once(store):
    before = store.objects()
    assert "NoSuchBucket" in probed(root_in(store, "nowhere")).refused[LIST]
    store.fault = faults.with_other_keys
    facts = probed(root_in(store))
    assert facts.may == set()
    assert "InvalidAccessKeyId" in facts.refused[LIST]
    assert store.objects() == before


def test_a_folder_that_is_missing_is_not_made(root):
    facts = probed(StorageRoot.of(f"{root}/none"))
    assert (facts.refused, facts.may) == ({LIST: "there is no such folder"}, set())
    assert os.listdir(root) == []
    Path(root, "file").touch()
    assert probed(StorageRoot.of(f"{root}/file")).refused == {LIST: "it is no folder"}


def test_a_clock_that_is_an_hour_ahead_is_measured(store):
    store.fault = faults.an_hour_ahead(store)
    facts = probed(root_in(store))
    assert facts.clock_ahead is not None
    assert abs(facts.clock_ahead - 3600) <= facts.clock_doubt
    assert facts.broken == {}


def test_the_rules_of_a_part_of_a_root_are_found_at_its_tables_and_segments(store):
    where = StorageRoot.of("s3://faulty/b1", store.options)
    log = new_log(where.child("log"), P0)
    send(log, request(P0, 3))
    store.fault = faults.expires(prefix="b1/log/leader-")
    rules = probed(where).rules
    (segment,) = [path for path, each in rules.items() if each.expires]
    assert segment in [f"s3://faulty/{key}" for key in store.objects()]
    assert (rules[segment].expires, rules[segment].rule) == ("2026-12-31", "old files")
    assert "s3://faulty/b1/log/_delta_log/00000000000000000000.json" in rules


def test_small_and_large_objects_of_a_new_root_are_looked_at(store):
    facts = probed(StorageRoot.of("s3://faulty/none", store.options))
    assert [path.rpartition("/")[2] for path in facts.rules] == ["first", f"content-{PART_BYTES + 1}"]
    assert set(facts.rules.values()) == {ObjectRules()}


def test_a_store_is_not_asked_again_for_rules_that_it_does_not_tell(store):
    asked = []

    def refused(answer, method, url, headers, body):
        asked.extend([url] * (faults.SIGNATURE in url))
        return faults.refuses_signed_urls(answer, method, url, headers, body)

    store.fault = refused
    facts = probed(root_in(store))
    assert (len(asked), facts.unanswered, facts.rules) == (1, "the store refuses access (403 Forbidden)", {})
    assert facts.may == set(OPERATIONS)


def test_a_store_that_hangs_ends_the_probe_with_an_error_by_its_time_out(store):
    let_go = threading.Event()
    store.fault = faults.hangs(let_go)
    try:
        facts = probed(root_in(store, timeout_ms=1000))
    finally:
        let_go.set()
    assert (facts.may, facts.refused.keys()) == (set(), {LIST})


def test_a_probe_that_is_stopped_removes_its_folder(store):
    before = store.objects()
    probe = StoreProbe(root_in(store))

    def stop_after_the_first_put(answer, method, url, headers, body):
        if method == "PUT":
            probe.stopping.set()
        return answer(method, url, headers, body)

    store.fault = stop_after_the_first_put
    probe.run()
    assert probe.facts.step != "", "it has not come to its end"
    assert store.objects() == before


@pytest.mark.parametrize("place", ["disk", "store"])
def test_what_a_killed_probe_has_left_is_removed_once_it_is_old(store, root, place):
    where = StorageRoot.of(root) if place == "disk" else root_in(store)
    folder = Path(root) if place == "disk" else store.folder / "cluster"
    before = where.list()
    for name in ("old/first", "young/first", "file"):
        path = folder / f"{PROBE}{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left")
    old = time.time() - 4000
    for name in ("old/first", "file"):
        os.utime(folder / f"{PROBE}{name}", (old, old))
    assert probed(where).removed == 2
    assert sorted(set(where.list()) - set(before)) == [f"{PROBE}young"]
    where.child(f"{PROBE}young").delete_folder()


def test_an_empty_root_with_what_a_killed_probe_has_left_is_formatted(root):
    where = StorageRoot.of(root)
    where.child(f"{PROBE}left").write("first", b"")
    format_cluster(where, Config())
    assert probed(where).may == set(OPERATIONS)


def test_a_signature_in_a_url_is_not_told(root, monkeypatch):
    from lakelog.replication.errors import KafkaStorageException
    from lakelog.replication.storage.delta.local_root import LocalRoot
    from tests.hanging import raises

    words = f"{root}: cannot be read: error for url (https://account.blob.core/x?sv=1&sig=secret): it is away"
    monkeypatch.setattr(LocalRoot, "list", raises(KafkaStorageException(words)))
    facts = probed(StorageRoot.of(root))
    assert facts.refused[LIST] == "error for url (https://account.blob.core/x): it is away"
