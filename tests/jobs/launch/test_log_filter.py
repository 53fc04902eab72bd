"""Which of Spark's messages reach the terminal: those that someone can act on."""

import re
from pathlib import Path

import pytest

CONF = Path(__file__).parents[3] / "conf" / "log4j2.properties"

HIDDEN = [
    "Unable to load native-hadoop library for your platform... using builtin-java classes where applicable",
    "spark.sql.adaptive.enabled is not supported in streaming DataFrames/Datasets and will be disabled.",
    "Query ReplicaFetcherThread-0-1 [id = 1, runId = 2] terminated with error",
    # The root of a follower is gone while Spark writes to the checkpoint there.
    "Encountered error while writing batch 0 to commit log",
    "Encountered error while writing batch 12 to offset log",
    "Got exception during async write to commit log for batch 0",
    "A fatal error has occurred.",
]
SHOWN = [
    "Query orders [id = 1, runId = 2] has been running for 20 s",
    "Lost task 0.0 in stage 1.0 (TID 7) (10.0.0.3 executor 1): ExecutorLostFailure",
    "Exception in task 0.0 in stage 1.0 (TID 7)",
    "Could not write the batch",
]


def known() -> str:
    """The regular expression of the filter, its lines joined as Java joins them."""
    text = re.sub(r"\\\n\s*", "", CONF.read_text("utf-8"))
    (found,) = re.findall(r"^appender\.stderr\.filter\.known\.regex = (.*)$", text, re.MULTILINE)
    return found.replace("\\\\", "\\")


@pytest.mark.parametrize("message", HIDDEN)
def test_a_message_that_means_nothing_here_is_hidden(message):
    assert re.fullmatch(known(), message)


@pytest.mark.parametrize("message", SHOWN)
def test_any_other_message_is_shown(message):
    assert not re.fullmatch(known(), message)
