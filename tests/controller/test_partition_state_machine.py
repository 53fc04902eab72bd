"""State changes of partitions: which are allowed, who is elected, and when."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.partition_state_machine import Strategy, handle_state_changes
from lakelog.replication.protocol.partition_states import VALID_PREVIOUS_STATES, PartitionState
from tests.controller.contexts import NOBODY, Active, changed, check, context, partition, tp

NON_EXISTENT, NEW = PartitionState.NON_EXISTENT, PartitionState.NEW
ONLINE, OFFLINE = PartitionState.ONLINE, PartitionState.OFFLINE
STAYS = "nobody may lead"


def decision_of(registration, state, **given):
    return Decision(replace(context(registration, **given), partition_states={tp(): state}), "a test")


@pytest.mark.parametrize(("before", "after"), list(itertools.product(VALID_PREVIOUS_STATES, repeat=2)))
def test_ps_01_ps_02_an_invalid_move_of_a_partition_is_logged_and_left_out(before, after):
    """The partition could be led by all strategies, so that only the table decides."""
    decision = decision_of(partition(), before)
    assert handle_state_changes(decision, [tp()], after) == []
    is_valid = before in VALID_PREVIOUS_STATES[after]
    assert decision.partition_state(tp()) == (after if is_valid else before)
    moves = [(change.what, change.before, change.after, change.is_valid) for change in decision.state_changes]
    assert moves == ([] if is_valid and before == after else [("flights-0", before, after, is_valid)])


@pytest.mark.parametrize(
    ("state", "strategy", "leader", "isr", "live", "leaving", "outcome"),
    [
        pytest.param(NEW, Strategy.OFFLINE, NOBODY, (), (2, 3), (), (2, (2, 3)), id="LE-03: the first that lives"),
        pytest.param(NEW, Strategy.OFFLINE, NOBODY, (), (9,), (), STAYS, id="LE-03: nobody lives"),
        pytest.param(OFFLINE, Strategy.OFFLINE, NOBODY, (3, 2), (2, 3), (), (2, (3, 2)), id="LE-01: the order of AR"),
        pytest.param(OFFLINE, Strategy.OFFLINE, NOBODY, (1,), (2, 3), (), STAYS, id="LE-02: unclean is not allowed"),
        pytest.param(OFFLINE, Strategy.OFFLINE, NOBODY, (2,), (2,), (2,), STAYS, id="LE-01: it shuts down"),
        pytest.param(OFFLINE, Strategy.UNCLEAN, NOBODY, (1,), (2, 3), (), (2, (2,)), id="LE-02: unclean by hand"),
        pytest.param(OFFLINE, Strategy.UNCLEAN, NOBODY, (3,), (2, 3), (), (3, (3,)), id="LE-02: not if clean can be"),
        pytest.param(OFFLINE, Strategy.UNCLEAN, NOBODY, (1,), (9,), (), STAYS, id="LE-02: nobody lives"),
        pytest.param(ONLINE, Strategy.PREFERRED, 2, (2, 1), (1, 2), (), (1, (2, 1)), id="LE-05: the preferred one"),
        pytest.param(ONLINE, Strategy.PREFERRED, 2, (2, 3), (1, 2, 3), (), STAYS, id="LE-05: it is out of sync"),
        pytest.param(ONLINE, Strategy.PREFERRED, 2, (1, 2), (2, 3), (), STAYS, id="LE-05: it is dead"),
        pytest.param(ONLINE, Strategy.PREFERRED, 2, (1, 2), (1, 2), (1,), STAYS, id="LE-05: it shuts down"),
        pytest.param(ONLINE, Strategy.CONTROLLED_SHUTDOWN, 1, (1, 3), (1, 2, 3), (1,), (3, (3,)), id="LE-04"),
        pytest.param(ONLINE, Strategy.CONTROLLED_SHUTDOWN, 1, (1,), (1, 2, 3), (1,), STAYS, id="LE-04: it is alone"),
        pytest.param(
            ONLINE, Strategy.CONTROLLED_SHUTDOWN, 1, (1, 2, 3), (1, 2, 3), (1, 2), (3, (3,)), id="LE-04: two shut down"
        ),
    ],
)
def test_ps_02_le_01_le_02_le_03_le_04_le_05_a_move_to_online_is_an_election(
    state, strategy, leader, isr, live, leaving, outcome
):
    decision = decision_of(partition((1, 2, 3), leader, isr), state, live=live, shutting_down=leaving)
    failed = handle_state_changes(decision, [tp()], ONLINE, strategy)
    check(decision)
    if outcome == STAYS:
        assert (failed, decision.changed, decision.partition_state(tp())) == ([tp()], {}, state)
    else:
        assert (failed, changed(decision), decision.partition_state(tp())) == ([], {"flights-0": outcome}, ONLINE)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("where", ["topic", "broker"])
def test_le_02_a_topic_or_else_the_cluster_allows_unclean_elections(where, allowed):
    given = {"configs": {"unclean.leader.election.enable": "true" if allowed else "false"}}
    config = {"unclean_leader_election_enable": allowed if where == "broker" else not allowed}
    decision = decision_of(
        partition((1, 2, 3), NOBODY, (1,)), OFFLINE, live=(2, 3), **config, **given if where == "topic" else {}
    )
    failed = handle_state_changes(decision, [tp()], ONLINE)
    assert changed(decision) == ({"flights-0": (2, (2,))} if allowed else {})
    assert failed == ([] if allowed else [tp()])


def test_le_06_however_often_an_event_changes_a_partition_its_epochs_go_up_by_one():
    decision = Decision(context(partition(), partition(number=1)), "a test")
    for leader in (2, 3, 2):
        elected = replace(decision.registration(tp()), leader=leader, leader_epoch=99, partition_epoch=99)
        decision.put(elected)
        after = decision.changed[tp()]
        assert (after.leader, after.leader_epoch, after.partition_epoch, after.controller_epoch) == (leader, 6, 8, 4)
    decision.put(replace(decision.registration(tp()), leader=1))
    assert decision.changed[tp()].leader_epoch == 6, "also if it has come back to what it was"
    decision.put(partition(number=1))
    assert set(decision.changed) == {tp()}, "what never was otherwise is not written"


# Who leads or waits when a controller starts, with brokers 1 and 2 alive: leader, ISR -> state, and what is elected.
AT_START = [
    ((1, (1, 2)), ONLINE, None),
    ((3, (3, 2)), OFFLINE, (2, (2,))),
    ((NOBODY, (2,)), OFFLINE, (2, (2,))),
    ((NOBODY, (3,)), OFFLINE, None),
    ((NOBODY, ()), NEW, (1, (1, 2))),
]


def test_ps_03_ps_04_a_starting_controller_elects_for_all_new_and_offline_partitions():
    rows = [partition((1, 2, 3), *row, number=number) for number, (row, *_) in enumerate(AT_START)]
    active = Active(context(*rows, live=(1, 2)))
    assert [active.context.partition_states[tp(number)] for number in range(5)] == [state for _, state, _ in AT_START]
    elected = changed(active.fail_over())
    assert elected == {f"flights-{n}": outcome for n, (*_, outcome) in enumerate(AT_START) if outcome}
    states = [active.context.partition_states[tp(number)] for number in range(5)]
    assert states == [ONLINE, ONLINE, ONLINE, OFFLINE, ONLINE]


@pytest.mark.parametrize("deleting", [False, True], ids=["kept", "being deleted"])
@pytest.mark.parametrize("why", ["failover", "broker up", "broker down"])
def test_ps_04_td_05_elections_are_held_at_start_and_when_brokers_come_or_go(why, deleting):
    """The partition waits for broker 1 or 2, or for anybody to look."""
    waiting = partition((1, 2), NOBODY, (1, 2))
    active = Active(context(waiting, live=(3, 1), deleting=("flights",) if deleting else ()))
    match why:
        case "failover":
            decision = active.fail_over()
        case "broker up":
            decision = active.brokers(come=(2,))
        case "broker down":
            decision = active.brokers(gone=(3,))
    assert tp() not in decision.changed or decision.changed[tp()].leader == (-2 if deleting else 1)
    assert deleting or changed(decision)["flights-0"][0] == 1
