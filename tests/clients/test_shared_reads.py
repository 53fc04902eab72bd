"""Sends that look at the same time share what they read."""

from lakelog.replication.clients.accumulator import StepSharing
from lakelog.replication.protocol.rounds.pipeline_round import StepOf
from lakelog.replication.protocol.rounds.send_round import ReadLeaderLogs, ReadLeaderships
from tests.storage.logs import P0, TOPIC


class Owner:
    """Notes the steps that it carries out."""

    def __init__(self):
        self.steps = []

    def carry_out(self, step):
        self.steps.append(step)
        return len(self.steps)


def test_ap_07_a_log_that_was_read_before_a_row_is_read_again():
    """The row may name records that the log did not have then."""
    reads, owner = StepSharing(), Owner()
    row, other_row, logs = ReadLeaderships(TOPIC, (0,)), ReadLeaderships(TOPIC, (1,)), ReadLeaderLogs(1, (P0,))
    answers = [reads.step(StepOf(owner, step)) for step in (row, logs, row, logs, other_row, logs, logs, row)]
    assert owner.steps == [row, logs, other_row, logs]
    assert answers == [1, 2, 1, 2, 3, 4, 4, 1]


def test_ap_07_what_was_read_is_read_again_after_a_write_and_when_it_is_forgotten():
    reads, owner = StepSharing(), Owner()
    row, write = ReadLeaderships(TOPIC, (0,)), object()
    answers = [reads.step(StepOf(owner, step)) for step in (row, write, row, write)]
    assert (answers, owner.steps) == ([1, 2, 3, 4], [row, write, row, write])
    reads.step(StepOf(owner, row))
    reads.clear()
    assert (reads.step(StepOf(owner, row)), reads.step(StepOf(owner, row))) == (6, 6)
