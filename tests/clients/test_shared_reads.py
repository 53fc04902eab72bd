"""Sends that look at the same time share what they read."""

from lakelog.replication.clients.send_executor import StepSharing
from lakelog.replication.protocol.rounds.pipeline_round import StepOf
from lakelog.replication.protocol.rounds.send_round import ReadLeaderLogs, ReadLeaderships
from tests.storage.logs import P0, TOPIC


class Executed(list):
    """The steps that were carried out."""

    def execute(self, step):
        self.append(step)
        return len(self)


def test_ap_07_a_log_that_was_read_before_a_row_is_read_again():
    """The row may name records that the log did not have then."""
    reads, executed = StepSharing(), Executed()
    row, other_row, logs = ReadLeaderships(TOPIC, (0,)), ReadLeaderships(TOPIC, (1,)), ReadLeaderLogs(1, (P0,))
    answers = [
        reads.step(StepOf(executed.execute, step)) for step in (row, logs, row, logs, other_row, logs, logs, row)
    ]
    assert executed == [row, logs, other_row, logs]
    assert answers == [1, 2, 1, 2, 3, 4, 4, 1]


def test_ap_07_what_was_read_is_read_again_after_a_write_and_when_it_is_forgotten():
    reads, executed = StepSharing(), Executed()
    row, write = ReadLeaderships(TOPIC, (0,)), object()
    answers = [reads.step(StepOf(executed.execute, step)) for step in (row, write, row, write)]
    assert (answers, executed) == ([1, 2, 3, 4], [row, write, row, write])
    reads.step(StepOf(executed.execute, row))
    reads.seen.clear()
    assert (reads.step(StepOf(executed.execute, row)), reads.step(StepOf(executed.execute, row))) == (6, 6)
