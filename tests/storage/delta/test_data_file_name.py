"""Names of data files: their parts, and names that are not segments."""

import pytest

from lakelog.replication.storage.delta.data_file_name import (
    digest_of,
    is_data_file,
    is_snapshot,
    leader_of,
    may_be_deleted,
    named_digest,
    segment_name,
    snapshot_name,
)

DIGEST = digest_of(b"content")
UNIQUE = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "leader", "digest"),
    [
        (segment_name(0, DIGEST), 0, DIGEST),
        (segment_name(12, DIGEST), 12, DIGEST),
        (segment_name(None, DIGEST), None, DIGEST),
        (snapshot_name(DIGEST), None, DIGEST),
        (f"leader-1-{UNIQUE}.parquet", None, None),
        (f"leader-x-{UNIQUE}-{DIGEST}.parquet", None, None),
        (f"../leader-1-{UNIQUE}-{DIGEST}.parquet", None, None),
        (f"leader-1-{UNIQUE}-{DIGEST}.parquet\n", None, None),
        ("part-00000-abc.parquet", None, None),
    ],
    ids=["leader", "two digits", "compacted", "snapshot", "no digest", "no number", "a path", "a line", "Spark's"],
)
def test_a_name_tells_who_led_and_the_digest_of_the_bytes(name, leader, digest):
    assert (leader_of(name), named_digest(name)) == (leader, digest)


def test_a_name_is_never_given_twice():
    assert segment_name(1, DIGEST) != segment_name(1, DIGEST)
    assert snapshot_name(DIGEST) != snapshot_name(DIGEST)


def test_a_digest_is_of_all_bytes():
    assert len(DIGEST) == 32
    assert len({DIGEST, digest_of(b"contenu"), digest_of(b"content\0"), digest_of(b"")}) == 4


def test_snapshots_are_told_from_segments():
    assert [is_snapshot(name) for name in (snapshot_name(DIGEST), segment_name(None, DIGEST))] == [True, False]


@pytest.mark.parametrize(
    "made",
    [segment_name(1, DIGEST), segment_name(None, DIGEST), snapshot_name(DIGEST)],
    ids=["leader", "compacted", "snapshot"],
)
def test_names_that_are_given_are_taken(made):
    assert is_data_file(made)
    assert may_be_deleted(made)


@pytest.mark.parametrize(
    "name",
    [
        "../metadata/a.parquet", "/etc/a.parquet", "sub/a.parquet", "..%2Fa.parquet", "%2Fetc%2Fa.parquet",
        "file:///a.parquet", "s3://bucket/a.parquet", "a\\b.parquet", "a b.parquet", "a?b.parquet", ".a.parquet",
        "a.parquet\n", "a.json", "_delta_log", "", ".parquet", "-a.parquet", "a" * 201 + ".parquet", "\u0661.parquet",
    ],
)  # fmt: skip
def test_a_name_that_is_no_bare_one_is_not_taken(name):
    assert not is_data_file(name)
    assert not may_be_deleted(name)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        (f".a.parquet.{UNIQUE}.tmp", True),
        (f".../a.parquet.{UNIQUE}.tmp", False),
        (".a.parquet.tmp", False),
        (f".a.json.{UNIQUE}.tmp", False),
        ("storage-probe", False),
    ],
)
def test_what_a_crashed_writer_has_left_may_go(name, may):
    assert may_be_deleted(name) is may
