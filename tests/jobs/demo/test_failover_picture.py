"""The picture of a failover: an SVG file that a browser reads alone, with what the run has measured."""

from xml.etree import ElementTree

import pytest

from lakelog.jobs import quickstart
from lakelog.jobs.demo.failover_picture import FailoverRun
from lakelog.jobs.web.metadata_timeline import PartitionChange

NAME = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('x')</script>&\""


def change(at: float, partition: int, leader: int | None, *isr: int) -> PartitionChange:
    return PartitionChange(at, 1, "id", partition, leader, 0, isr, (1, 2, 3), False)


# Two sends a half second, but none from second 5 to 11.
RUN = FailoverRun(
    100.0, 120.0, [100 + n / 4 for n in range(80) if not 20 <= n < 44], [(105.0, "broker 2 is killed"), (111.0, EVIL)],
    [change(90.0, 0, 2, 1, 2, 3), change(90.0, 1, 1, 1, 2, 3), change(110.5, 0, 3, 1, 3), change(110.5, 1, 1, 1, 3)],
)  # fmt: skip


def test_the_picture_has_the_sends_the_marks_and_the_leaders() -> None:
    drawn = ElementTree.fromstring(RUN.svg("A title", f"A sentence {EVIL}"))
    texts = [each.text for each in drawn.iter(f"{NAME}text")]
    assert {"A title", f"A sentence {EVIL}", "5.0 s: broker 2 is killed", f"11.0 s: {EVIL}"} <= set(texts)
    assert {"partition 0", "partition 1", "broker 1", "broker 2", "broker 3", "0 s", "20 s", "4"} <= set(texts)
    assert drawn.find(f".//{NAME}script") is None
    told = [each.text or "" for each in drawn.iter(f"{NAME}title")]
    rates = [words for words in told if "sends a second" in words]
    assert rates[0] == "4 sends a second were acknowledged from 0 s on"
    assert len(rates) == 40 - 12, "no bar while nothing was acknowledged"
    led = [words for words in told if words.startswith("Partition 0")]
    assert [words.split(": ")[1].split(" under")[0] for words in led] == ["broker 2 leads", "broker 3 leads"]


def test_the_picture_needs_no_other_file() -> None:
    """It stands in a README, where browsers load nothing for it."""
    drawn = RUN.svg("t", "s")
    assert drawn.count("http") == drawn.count('xmlns="http') == 1
    for word in ("url(", "href", "@import", "<image"):
        assert word not in drawn
    assert "prefers-color-scheme: dark" in drawn


def test_a_run_without_an_acknowledgement_is_drawn() -> None:
    ElementTree.fromstring(RUN._replace(acknowledged=[], changes=[]).svg("t", "s"))


def test_a_picture_of_some_flights_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert quickstart.main(["--picture", "failover.svg", "--limit", "10"]) == 2
    assert "--limit: with --picture the time decides how many flights are sent" in capsys.readouterr().err
