"""The figures of `bench controller`: as JSON for scripts, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.jobs.cli.console import Row
from lakelog.verification.bench.controller import TimedStep
from lakelog.verification.bench.report import circumstances


def controller_figures(steps: Sequence[TimedStep], partitions: int, brokers: int) -> dict[str, object]:
    """All figures. If a result is wrong, the times mean nothing and are left out."""
    about = {"partitions": partitions, "brokers": brokers, **circumstances()}
    wrong = {step.name: step.wrong for step in steps if step.wrong}
    if wrong:
        return {"outcome_is_right": False, "wrong": wrong, **about}
    return {
        "outcome_is_right": True,
        "longest_seconds": round(max(step.seconds for step in steps), 3),
        "commits": sum(step.commits for step in steps),
        "steps": [
            {
                "step": step.name,
                "seconds": round(step.seconds, 3),
                "cpu_seconds": round(step.cpu_seconds, 3),
                "commits": step.commits,
                "changed": step.changed,
                "leaders": {str(broker): count for broker, count in step.leaders.items()},
            }
            for step in steps
        ],
        **about,
    }


def controller_rows(steps: Sequence[TimedStep]) -> list[Row]:
    """One row a step."""
    return [
        {
            "step": step.name,
            "partitions_changed": step.changed,
            "leaders": ", ".join(f"broker {broker}: {count:,}" for broker, count in step.leaders.items()),
            "commits": step.commits,
            "seconds": round(step.seconds, 2),
            "cpu_seconds": round(step.cpu_seconds, 2),
        }
        for step in steps
    ]
