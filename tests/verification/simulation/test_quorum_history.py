"""Random histories of a quorum of cluster roots, and every break is caught."""

import pytest

from lakelog.replication.protocol.quorum_slot import ProposedCommit
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.quorum_round import (
    AskForPromises,
    AskToAccept,
    QuorumRules,
    SlotSettled,
    propose,
)
from lakelog.verification.simulation.quorum.quorum_history import Habits, run_quorum
from lakelog.verification.simulation.quorum.quorum_sabotages import QUORUM_SABOTAGES
from lakelog.verification.simulation.tiers import QUORUM, catch
from tests.protocol.rounds.test_quorum_round import Roots


@pytest.mark.parametrize("seed", [*range(1, 21), 6176, 10764, 16941])
def test_a_history_holds_all_invariants(seed):
    """Those after 20 are long ones: roots are damaged again while they are replaced, and lose their log while it is
    published."""
    history = run_quorum(seed)
    assert history.violation is None, history.about


def test_a_seed_makes_the_same_history_each_time():
    assert run_quorum(5).trace == run_quorum(5).trace


@pytest.mark.parametrize("name", QUORUM_SABOTAGES)
def test_a_broken_rule_of_the_quorum_is_caught(name):
    invariant, _ = catch(QUORUM, name, QUORUM.first_seed(name, 1), QUORUM.sabotage_seeds)
    assert invariant is not None


def test_a_break_that_shows_only_as_an_error_of_python_is_not_caught():
    """So that a sabotage which names what was renamed fails its test."""
    habits = Habits(rules=QuorumRules(counts=lambda _, state: state.renamed))
    with pytest.raises(AttributeError, match="renamed"):
        run_quorum(1, habits)


def test_a_root_restored_to_before_its_last_vote_loses_a_commit_so_a_restore_needs_a_new_identity():
    """No other root knows of its vote, so nothing else can show that it has forgotten it."""

    def settle(roots, commit, away):
        roots.away = away
        ask = {AskForPromises: roots.ask, AskToAccept: roots.ask}
        return carry_out(propose(8, commit, commit.session, 3, 1), ask)

    first, second = ProposedCommit("first", "p"), ProposedCommit("second", "q")
    roots = Roots("a", "b", "c")
    assert settle(roots, first, away="b") == SlotSettled(first)
    roots.events["c"].clear()
    assert settle(roots, second, away="a") == SlotSettled(second)
