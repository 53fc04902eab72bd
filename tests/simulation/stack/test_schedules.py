"""Each of five mistakes that lost or doubled acknowledged records is found when it is put back.

A directed schedule leads to the moment in which it matters, in one of a few worlds. Each schedule is also run as the
code is shipped, and then finds nothing.
"""

import pytest

from replication.simulation.stack.breaks import StackSabotage
from replication.simulation.stack.criticals import CRITICALS, OVERTAKEN
from replication.simulation.stack.history import run

INVARIANTS = {
    "a_send_keeps_its_identity": "nothing_acknowledged_is_lost",
    "a_new_process_leads_on": "nothing_acknowledged_is_lost",
    "the_log_is_read_first": "rows_tell_what_the_log_has",
    "all_is_appended_again": "nothing_is_there_twice",
    "compaction_makes_no_progress": "compaction_comes_to_rest",
}
WORLDS = range(1, 6)


@pytest.mark.parametrize(("name", "invariant"), INVARIANTS.items())
def test_each_mistake_is_found_when_it_is_put_back(name, invariant):
    violations = (run(seed, sabotage=CRITICALS[name]).violation for seed in WORLDS)
    found = next(violation for violation in violations if violation is not None)
    assert found.invariant == invariant


@pytest.mark.parametrize("name", CRITICALS)
def test_nothing_is_found_as_it_is_shipped(name):
    apply = OVERTAKEN if name == "the_log_is_read_first" else (lambda _: None)
    shipped = StackSabotage("nothing is broken", apply, CRITICALS[name].schedule)
    assert [str(run(seed, sabotage=shipped).violation) for seed in WORLDS] == ["None"] * len(WORLDS)
