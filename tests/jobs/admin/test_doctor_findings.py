"""The rules of `lakelog doctor`: from facts to a line, with what to do."""

from dataclasses import replace
from typing import Any

import pytest

from lakelog.jobs.admin.doctor_findings import (
    ANY_ROLE,
    BROKER_KIND,
    CLUSTER_KIND,
    NEEDS,
    OKAY,
    OWN_KIND,
    ROLES,
    WARNING,
    WRONG,
    ClusterSize,
    Executor,
    Finding,
    Limits,
    clock_finding,
    cost_finding,
    disk_finding,
    dollars_a_month,
    executor_findings,
    format_finding,
    idle_requests,
    jar_finding,
    java_finding,
    not_checked,
    package_findings,
    root_findings,
    status_finding,
)
from lakelog.replication.config import Config
from lakelog.replication.storage.delta.object_headers import ObjectRules
from lakelog.replication.storage.store_probe import (
    CONDITIONAL_PUT,
    DELETE,
    LIST,
    LIST_AFTER_WRITE,
    OPERATIONS,
    PROMISES,
    READ,
    READ_AFTER_DELETE,
    SYNC,
    WRITE,
    Disk,
    StoreFacts,
)

GIB = 2**30
ROOMY = Disk(500 * GIB, 1000 * GIB, 10**7, 10**8)
ON_DISK, IN_A_STORE = (Limits.of(Config().with_sessions(is_local)) for is_local in (True, False))
TIMES = dict.fromkeys(("PUT", "GET", "LIST", "HEAD", "DELETE"), 20.0)
NO_RULES = ObjectRules()
GOOD = StoreFacts(
    "s3://b/c", False, set(OPERATIONS), kept=set(PROMISES) - {SYNC}, milliseconds=TIMES, clock_ahead=0.4,
    clock_doubt=1.0, step="",
)  # fmt: skip
REFUSED = "the store refuses access"


def found_in(facts: StoreFacts, role: str = ANY_ROLE, kind: str = CLUSTER_KIND) -> list[Finding]:
    return root_findings("r", facts, NEEDS[role][kind], role != ANY_ROLE, IN_A_STORE, 30)


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.check, each.result) for each in findings if each.result != OKAY]


def facts(**changes: Any) -> StoreFacts:
    return replace(GOOD, **changes)


READ_ONLY = facts(may={LIST, READ}, refused={WRITE: REFUSED, DELETE: REFUSED}, kept=set(), milliseconds={})
BAD = {
    "it hangs": (facts(step="LIST", may=set(), kept=set()), [("access", WRONG)]),
    "it hangs midway": (facts(step="PUT"), [("access", WRONG)]),
    "no bucket": (facts(may=set(), refused={LIST: "NoSuchBucket"}, kept=set()), [("access", WRONG)]),
    "read only": (READ_ONLY, [("access", WRONG)]),
    "no deletes": (
        facts(may={LIST, READ, WRITE}, refused={DELETE: REFUSED}, kept=set(), milliseconds={}, left="s3://b/c/x"),
        [("access", WRONG), ("files of the probe", WARNING)],
    ),
    "second put": (facts(broken={CONDITIONAL_PUT: "takes both"}, kept=GOOD.kept - {CONDITIONAL_PUT}),
                   [("conditional put", WRONG)]),
    "late": (
        facts(broken={LIST_AFTER_WRITE: "a", READ_AFTER_DELETE: "b"}, kept=set(PROMISES) - {LIST_AFTER_WRITE}),
        [("consistency", WRONG)],
    ),
    "slow": (facts(milliseconds={**TIMES, "PUT": 1600.0}), [("latency", WARNING)]),
    "clock": (facts(clock_ahead=-3600.0), [("clock", WARNING)]),
    "a rule": (facts(rules={"s3://b/c/x": NO_RULES, "s3://b/c/y": NO_RULES._replace(expires="2026-12-31")}),
               [("lifecycle rules", WRONG)]),
    "no answer": (facts(unanswered="timed out"), [("lifecycle rules", WARNING)]),
    "no answer after one": (facts(unanswered="timed out", rules={"s3://b/c/x": NO_RULES}),
                            [("lifecycle rules", WARNING)]),
    "not told": (facts(rules={"s3://b/c/x": NO_RULES._replace(unknown="NotImplemented")}),
                 [("lifecycle rules", WARNING)]),
    "archived": (facts(rules={"s3://b/c/x": NO_RULES._replace(archived="GLACIER")}), [("storage class", WRONG)]),
    "dear": (facts(rules={"s3://b/c/x": NO_RULES._replace(storage_class="NEARLINE")}), [("storage class", WARNING)]),
    "locked": (facts(rules={"s3://b/c/x": NO_RULES._replace(lock="until 2026-12-31 (governance)")}),
               [("object lock", WARNING)]),
    "full": (facts(disk=ROOMY._replace(free_bytes=GIB // 4)), [("disk", WRONG)]),
}  # fmt: skip


@pytest.mark.parametrize(("of", "expected"), BAD.values(), ids=BAD)
def test_each_fault_of_a_root_is_one_line(of: StoreFacts, expected: list[tuple[str, str]]) -> None:
    findings = found_in(of)
    assert bad(findings) == expected
    assert all(each.do for each in findings if each.result != OKAY)


def test_a_good_root_has_a_line_a_check() -> None:
    lines = [(each.check, each.result) for each in found_in(replace(GOOD, disk=ROOMY))]
    checks = ("access", "conditional put", "consistency", "content", "latency", "clock", "disk")
    assert lines == [(check, OKAY) for check in checks]
    assert "fsync" in [each.check for each in found_in(facts(kept=set(PROMISES)))]


def test_what_a_store_tells_of_its_bucket_is_a_line_each() -> None:
    paths = [f"s3://b/c/{name}" for name in "xyz"]
    rules = [NO_RULES, ObjectRules(expires="2026-12-31", rule="r"), ObjectRules(expires="2026-12-03", rule="a 'first'")]
    (line,) = [each for each in found_in(facts(rules=dict(zip(paths, rules, strict=True)))) if each.result != OKAY]
    assert line.found == (
        "the lifecycle rule \"a 'first'\" deletes objects of this root: s3://b/c/z on 2026-12-03 "
        "(2 of the 3 objects that were looked at)"
    )
    versioned = found_in(facts(rules={"s3://b/c/x": ObjectRules(version="1")}))
    lines = {each.check: each.found for each in versioned}
    assert lines["lifecycle rules"] == "the store tells of no rule that deletes its objects; looked at: 1"
    assert lines["versioning"].startswith("the bucket keeps versions")
    in_azure = found_in(facts(uri="az://b/c", rules={"az://b/c/x": ObjectRules(version="1")}))
    assert "lifecycle rules" not in [each.check for each in in_azure]


def test_what_is_not_checked_depends_on_the_stores() -> None:
    def of(*uris: str, **changes: Any) -> list[str]:
        return not_checked((uri, facts(uri=uri, is_local=uri.startswith("/"), **changes)) for uri in uris)

    assert of("/disk") == []
    (s3,) = of("s3://b/1", "s3a://b/2", "/disk")
    assert "s3:GetObjectRetention" in s3
    s3, google, azure = of("az://c/1", "gs://b/1", "s3://b/1", "abfss://c@a/2")
    assert [each.partition(":")[0] for each in (s3, google, azure)] == ["in S3", "in Google Cloud Storage", "in Azure"]
    _, unsigned = of("az://c/1", unsigned="a SAS signs nothing")
    assert unsigned.startswith("in az://c/1: all lifecycle rules, versioning")
    assert unsigned.endswith(": a SAS signs nothing")


APPENDS = facts(may={LIST, READ, WRITE}, refused={DELETE: REFUSED}, kept=set(), milliseconds={})
ROLE_CASES = [
    ("reader", CLUSTER_KIND, READ_ONLY, []),
    ("reader", BROKER_KIND, GOOD, [("access", WARNING)]),
    ("producer", BROKER_KIND, READ_ONLY, [("access", WRONG)]),
    ("producer", BROKER_KIND, APPENDS, []),
    ("producer", BROKER_KIND, GOOD, []),
    ("producer", CLUSTER_KIND, GOOD, [("access", WARNING)]),
    ("broker", BROKER_KIND, READ_ONLY, []),
    ("broker", OWN_KIND, APPENDS, [("access", WRONG)]),
    ("controller", BROKER_KIND, APPENDS, [("access", WRONG)]),
    ("admin", CLUSTER_KIND, READ_ONLY, [("access", WRONG)]),
]


@pytest.mark.parametrize(("role", "kind", "of", "expected"), ROLE_CASES)
def test_rights_are_judged_by_the_role(
    role: str, kind: str, of: StoreFacts, expected: list[tuple[str, str]]
) -> None:  # fmt: skip
    assert bad(found_in(of, role, kind)) == expected


def test_a_right_that_is_missing_is_named_with_the_reason_once() -> None:
    (line,) = [each for each in found_in(READ_ONLY) if each.result == WRONG]
    assert line.found == f"this process may list and read, and not write or delete: {REFUSED}"
    assert line.do.startswith("allow it to write and delete, or say with --role what this process is for")
    (line,) = [each for each in found_in(GOOD, "reader") if each.result == WARNING]
    assert line.do.startswith("give it credentials that may not write or delete")


def test_every_role_reads_every_root_and_all_needs_everything() -> None:
    assert ROLES[0] == ANY_ROLE
    for needs in NEEDS.values():
        for operations in needs.values():
            assert {LIST, READ} <= operations
            assert operations <= NEEDS[ANY_ROLE][CLUSTER_KIND]


@pytest.mark.parametrize(
    ("ahead", "limits", "result", "words"),
    [
        (0.4, ON_DISK, OKAY, "agrees"),
        (2.5, ON_DISK, OKAY, "is 2.5 s ahead of"),
        (3.5, ON_DISK, WARNING, "is 4 s ahead of that of this machine"),
        (-3.5, IN_A_STORE, OKAY, "is 3.5 s behind"),
        (-7200.0, IN_A_STORE, WARNING, "is 120 min behind that of this machine"),
    ],
)
def test_a_clock_may_be_wrong_by_a_third_of_a_session(ahead: float, limits: Limits, result: str, words: str) -> None:
    line = clock_finding("r", "of the store", ahead, 1.0, limits)
    assert (line.result, words in line.found) == (result, True), line


def test_limits_follow_the_settings() -> None:
    assert (ON_DISK.clock, IN_A_STORE.clock) == (2.0, 6.0)
    assert (ON_DISK.commit, IN_A_STORE.commit) == (0.5, 1.5)
    small = Config.from_properties({"broker.session.timeout.ms": 90_000, "log.cleaner.max.bytes": 1}).with_sessions(
        True
    )
    assert Limits.of(small).free_bytes == 1 + small.replica_fetch_response_max_bytes


@pytest.mark.parametrize(
    ("disk", "result", "words"),
    [
        (ROOMY, OKAY, "500 GiB of 1000 GiB are free, and 10 % of the inodes"),
        (ROOMY._replace(free_bytes=50 * GIB), WARNING, "50.0 GiB of"),
        (ROOMY._replace(free_inodes=10**6), WARNING, "1 % of the inodes"),
        (ROOMY._replace(free_inodes=9_999), WRONG, "0 % of the inodes"),
        (ROOMY._replace(free_inodes=0, inodes=0), OKAY, "are free"),
        (ROOMY._replace(free_bytes=400 << 20), WRONG, "400 MiB of 1000 GiB"),
        (Disk(0, 0, 0, 0), OKAY, "does not say"),
    ],
)
def test_free_space_and_inodes(disk: Disk, result: str, words: str) -> None:
    line = disk_finding("r", disk, ON_DISK)
    assert (line.result, words in line.found) == (result, True), line


PINS = {"pyarrow": "26.0.1", "obstore": "0.12.1", "pyspark": "4.2.0"}
OPTIONAL = frozenset({"pyspark"})


@pytest.mark.parametrize(
    ("installed", "result", "words"),
    [
        (PINS, OKAY, "pyarrow 26.0.1, obstore 0.12.1, pyspark 4.2.0"),
        ({**PINS, "pyspark": None}, OKAY, "pyspark is missing, which only brokers need"),
        ({**PINS, "obstore": None}, WRONG, "obstore is missing"),
        ({**PINS, "pyarrow": "25.0.0"}, WARNING, "pyarrow is 25.0.0 and not 26.0.1"),
    ],
)
def test_packages_against_their_pins(installed: dict[str, str | None], result: str, words: str) -> None:
    (line,) = package_findings("here", PINS, installed, OPTIONAL)
    assert (line.result, words in line.found) == (result, True), line
    assert (result == OKAY) == (line.do == "")
    assert result == OKAY or line.do.startswith("pip install ")


def test_jars_and_java() -> None:
    assert jar_finding("here", "d-1.jar", ["d-1.jar"]) == Finding("here", "Delta's jar", OKAY, "d-1.jar")
    assert "fetches d-1.jar" in jar_finding("here", "d-1.jar", []).found
    assert jar_finding("here", "d-1.jar", ["d-0.jar", "d-1.jar"]).result == WARNING
    assert java_finding("here", None, "/jvm").found == "there is one that Spark runs with in /jvm"
    assert java_finding("here", "Spark needs Java 17 or 21", None).result == WARNING


def test_executors_against_the_driver() -> None:
    driver = Executor("d", "3.11.7", tuple(PINS.items()))
    same, other = (
        Executor("a", "3.11.9", driver.packages),
        Executor("b", "3.12.1", (*driver.packages[:2], ("pyspark", None))),
    )
    lines = executor_findings("Spark", driver, [same, same, other], PINS, OPTIONAL)
    assert [(each.subject, each.check, each.result) for each in lines] == [
        ("Spark, executor on a", "Python", OKAY),
        ("Spark, executor on a", "packages", OKAY),
        ("Spark, executor on b", "Python", WRONG),
        ("Spark, executor on b", "packages", OKAY),
    ]


THREE = ClusterSize(3, 3, 2, 1, 6.0, 0.05)


def test_an_idle_cluster_costs_what_the_benchmark_has_counted() -> None:
    """docs/benchmarks.md: three brokers and two controllers in one process, 5.0 requests a second, $15 a month; with
    three cluster roots 10.8 and $29."""
    one = idle_requests(THREE, 1)
    assert {kind: round(count, 1) for kind, count in one.items()} == {"HEAD": 0.9, "GET": 3.1, "LIST": 0.1, "PUT": 0.7}
    assert 4.5 < sum(one.values()) < 5.5
    assert 13 < dollars_a_month(one) < 16
    three_roots = idle_requests(THREE._replace(remote_cluster_roots=3), 1)
    assert 9 < sum(three_roots.values()) < 13
    assert 22 < dollars_a_month(three_roots) < 32


def test_the_cost_is_a_line() -> None:
    line = cost_finding("c", THREE)
    assert line.found.startswith("about 5 requests a second and $14 a month while idle if 3 brokers and 2 controllers")
    assert "cost no requests" in cost_finding("c", ClusterSize(3, 0, 2, 0, 2.0, 0.05)).found
    rare = idle_requests(THREE._replace(poll_seconds=60.0), 1)
    assert rare["GET"] < idle_requests(THREE, 1)["GET"]


def test_the_cluster_itself() -> None:
    line = format_finding("c", 5, 6, 4)
    assert line == Finding("c", "format", OKAY, "format 5; this version of Lakelog knows 4 to 6")
    assert status_finding("c", [], 0, "`s`").found == "`status` says that nothing is wrong"
    assert status_finding("c", [], 2, "`s`").found.endswith("and has 2 notes")
    line = status_finding("c", ["broker 1 is dead", "x"], 1, "`lakelog status`")
    assert line == Finding("c", "status", WRONG, "broker 1 is dead and 1 more", "`lakelog status` says what to do")
