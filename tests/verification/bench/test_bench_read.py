"""`bench read`: all ways of reading give the same rows; no time is asserted here."""

from typing import TYPE_CHECKING

from lakelog.verification.bench.read import (
    COMMITTED,
    CONSUMER,
    PLAIN,
    PLAIN_STREAM,
    SOURCE,
    STREAM,
    TAIL,
    Reads,
    read_figures,
    read_rows,
)

if TYPE_CHECKING:
    pass

SECONDS = {
    PLAIN: [1.0, 0.5, 0.8], COMMITTED: [0.8, 0.8, 1.0], SOURCE: [1.6, 1.6, 1.0], TAIL: [0.2, 0.3, 0.1],
    CONSUMER: [2.0, 4.0, 1.0], PLAIN_STREAM: [0.5], STREAM: [0.6],
}  # fmt: skip


def test_the_figures_are_medians() -> None:
    found = read_figures(Reads(SECONDS, 3_000, 500.0, rows_equal=True))
    assert {name: value for name, value in found.items() if isinstance(value, float | int) and name != "cores"} == {
        "rows_equal": True,
        "records": 3_000,
        "read_vs_plain_delta": 1.0,
        "tail_s": 0.2,
        "source_batch_vs_plain_delta": 2.0,
        "source_stream_vs_plain_stream": 1.2,
        "consumer_mb_per_s": 250.0,
    }
    rows = {row["read"]: row for row in read_rows(Reads(SECONDS, 3_000, 500.0, rows_equal=True))}
    assert (rows[SOURCE]["median_ms"], rows[SOURCE]["times_plain"], rows[PLAIN]["times_plain"]) == (1600, "2.0", "")


def test_other_rows_have_no_figures() -> None:
    found = read_figures(Reads(SECONDS, 3_000, 500.0))
    assert found["rows_equal"] is False
    assert "tail_s" not in found
