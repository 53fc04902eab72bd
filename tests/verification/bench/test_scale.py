"""`bench scale`: each action is timed at each size, on real tables. No time is asserted."""

import json
from pathlib import Path

import pytest

from lakelog.replication.errors import LakelogException
from lakelog.verification.bench import scale
from lakelog.verification.bench.scale import (
    BROKERS,
    PARTITIONS,
    QUICK_SCALE,
    Growth,
    ScaleBroker,
    ScaleCluster,
    ScalePlan,
    broker_times,
    measure_scale,
    scale_figures,
    scale_tables,
)
from lakelog.verification.verbs.bench import main

GROWTH = Growth(PARTITIONS, "leader: polls", {10: 0.001, 100: 0.002, 1_000: 0.0085})


def test_growth_is_the_time_at_the_largest_size_by_that_at_the_smallest() -> None:
    (found,) = scale_figures([GROWTH])["growth"]
    assert found == {
        "by": "partitions",
        "action": "leader: polls",
        "ms": {"10": 1.0, "100": 2.0, "1000": 8.5},
        "growth": 8.5,
    }


def test_what_grows_has_a_table_of_its_own() -> None:
    one, other = scale_tables([GROWTH, GROWTH, Growth(BROKERS, "x", {3: 0.1, 30: 0.2})])
    assert len(one) == 2
    assert other == [{"action": "x", "3 brokers, ms": 100.0, "30 brokers, ms": 200.0, "growth": 2.0}]


def test_a_smaller_plan_keeps_two_sizes_of_each() -> None:
    assert ScalePlan().up_to(100).sizes[PARTITIONS] == (10, 100)
    assert ScalePlan().up_to(10).sizes == {by: sizes[:2] for by, sizes in ScalePlan().sizes.items()}


def test_every_action_is_timed_at_every_size(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    assert main(["scale", "--quick", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["growth"]
    for growth in found:
        assert growth["ms"].keys() == {str(size) for size in QUICK_SCALE.sizes[growth["by"]]}
        assert growth["growth"] > 0
    assert {growth["by"] for growth in found} == set(QUICK_SCALE.sizes)
    actions = {growth["action"] for growth in found if growth["by"] == PARTITIONS}
    assert {"follower: fetches a record", "controller: decides on a lost broker"} <= actions
    assert {action for action in actions if action.startswith("exporter: ")} == {
        "exporter: starts, and serves a page",
        "exporter: serves a page, nothing new",
        "exporter: serves a page, all rows are new",
    }


def test_a_follower_without_the_record_leaves_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScaleBroker, "fetch", lambda *_: None)
    with pytest.raises(LakelogException, match=r"5 records were sent, the logs end at \[0, 5\], the HW is 0"):
        list(broker_times(ScaleCluster(str(tmp_path), 4)))


def test_a_page_without_all_replicas_leaves_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScaleCluster, "size", (4, 13))
    with pytest.raises(LakelogException, match="a page of the exporter has 12 of 13 replicas"):
        list(broker_times(ScaleCluster(str(tmp_path), 4)))


def test_topics_and_brokers_share_the_partitions(tmp_path: Path) -> None:
    cluster = ScaleCluster(str(tmp_path), 12, topics=3, brokers=5)
    registrations = cluster.cluster.metadata.partitions.values()
    assert len(registrations) == 12
    assert len({r.topic_id for r in registrations}) == 3
    assert {r.leader for r in registrations} == {1}
    assert {broker for r in registrations for broker in r.replicas} == {1, 2, 3, 4, 5}
    assert {len(set(r.replicas)) for r in registrations} == {3}


def test_the_error_of_one_size_is_the_error_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise LakelogException("the logs differ")

    monkeypatch.setattr(scale, "broker_times", fails)
    with pytest.raises(LakelogException, match="the logs differ"):
        measure_scale(QUICK_SCALE)
    assert main(["scale", "--quick"]) == 1
