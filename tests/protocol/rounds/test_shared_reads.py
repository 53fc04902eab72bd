"""Sends that look at the same time share what they read."""

from collections import deque

from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, SendInFlight, StepOf
from lakelog.replication.protocol.rounds.send_round import Pause, ReadLeaderLogs, ReadLeaderships
from tests.storage.logs import P0, TOPIC

ROW, OTHER_ROW = ReadLeaderships(TOPIC, (0,)), ReadLeaderships(TOPIC, (1,))
LOGS, WRITE, PAUSE = ReadLeaderLogs(1, (P0,)), object(), Pause(9.0)


def carried_out(*sends, wakes=()):
    """The steps that were carried out, and what each send got for its steps: the number of the step that read it. A
    send begins when it ends the pause of those before it early, or with them."""
    waiting, executed, answers, woken = deque(sends), [], [], deque(wakes)

    def work(steps, got):
        for step in steps:
            answer = yield step
            if step is not PAUSE:
                got.append(answer)

    def begin():
        if not waiting or waiting[0] is None:
            return None
        answers.append([])
        return SendInFlight(work(waiting.popleft(), answers[-1]), 9.0, execute, lambda *_: None)

    def execute(step):
        executed.append(step)
        return len(executed)

    def pause(_):
        if woken and woken.popleft():
            waiting.popleft()
            return True
        return False

    carry_out(PipelineRound(begin, 9, lambda: 0.0, 1.0).run(), {StepOf: StepOf.answer, Pause: pause})
    return executed, answers


def test_ap_07_a_log_that_was_read_before_a_row_is_read_again():
    """The row may name records that the log did not have then."""
    executed, answers = carried_out([ROW, LOGS], [ROW, LOGS, OTHER_ROW, LOGS], [LOGS, ROW])
    assert executed == [ROW, LOGS, OTHER_ROW, LOGS]
    assert answers == [[1, 2], [1, 2, 3, 4], [4, 1]]


def test_ap_07_what_was_read_is_read_again_after_a_write():
    executed, answers = carried_out([ROW, WRITE], [ROW, WRITE, ROW], [ROW])
    assert (executed, answers) == ([ROW, WRITE, ROW, WRITE, ROW], [[1, 2], [3, 4, 5], [5]])


def test_ap_07_what_was_read_is_read_again_after_a_pause():
    executed, answers = carried_out([ROW, PAUSE, ROW], [ROW, PAUSE, ROW])
    assert (executed, answers) == ([ROW, ROW], [[1, 2], [1, 2]])


def test_ap_07_a_send_that_ends_a_pause_early_reads_for_itself():
    executed, answers = carried_out([ROW, PAUSE, ROW], None, [ROW], wakes=[True])
    assert (executed, answers) == ([ROW] * 3, [[1, 3], [2]])
