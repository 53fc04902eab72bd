"""A failed history is shrunk and described in words."""

import pytest

from lakelog.verification.simulation.history import run_events, run_seed
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.shrink import shrink
from lakelog.verification.simulation.tiers import Found

NAME = "high_watermark_is_the_log_end"


def test_a_failing_history_is_shrunk_to_what_matters() -> None:
    rules = SABOTAGES[NAME].rules
    failed = run_seed(3, rules)
    shortest = shrink(failed, rules)
    assert failed.violation is not None
    assert shortest.violation is not None
    assert shortest.violation.invariant == failed.violation.invariant
    assert len(shortest.events) < len(failed.events) / 2
    assert set(shortest.events) <= set(failed.events)
    again = run_events(shortest.setting, shortest.events, shortest.is_calm_at_the_end, rules)
    assert again.fingerprint == shortest.fingerprint


def test_a_shrunk_history_is_told_line_by_line() -> None:
    rules = SABOTAGES["appends_are_not_fenced"].rules
    lines = Found(1, shrink(run_seed(1, rules), rules)).lines()
    assert lines[0].startswith("seed 1: records_begin_under_an_open_epoch: ")
    assert any("producer-" in line and "commits" in line for line in lines)


def test_a_history_without_a_violation_has_nothing_to_shrink() -> None:
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(run_seed(1))
