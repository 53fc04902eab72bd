"""When the outcome of a loss counts, and when it differs from the prediction, as tables of cases."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.verification.scenarios.predictions import AS_PREDICTED, NOT_COMPARED, Predicted, PredictionOutcome, compare
from lakelog.verification.scenarios.script_cluster import MetadataVersion

CONTROLLER, LEADER = "controller", "broker-2"
Version = tuple[str, int, tuple[int, ...]]  # who has written it, the leader and the ISR


def partition(leader: int, isr: tuple[int, ...]) -> PartitionRegistration:
    return PartitionRegistration("t", "id", 0, (1, 2, 3), leader, 0, isr)


def predicted(leader: int, isr: tuple[int, ...], live: tuple[int, ...]) -> Predicted:
    then = partition(leader, isr)
    return Predicted("kill 1", 5, frozenset(live), {then.topic_id_partition: then})


def history(*versions: Version, first: int = 5) -> list[MetadataVersion]:
    registrations = [(who, partition(leader, isr)) for who, leader, isr in versions]
    return [
        MetadataVersion(number, {"who": who}, {r.topic_id_partition: r})
        for number, (who, r) in enumerate(registrations, first)
    ]


BEFORE: Version = (CONTROLLER, 1, (1, 2, 3))
CASES: dict[str, tuple[Predicted, list[MetadataVersion], str | None]] = {
    "another leads": (predicted(2, (2, 3), (2, 3)), history(BEFORE, (CONTROLLER, 2, (2, 3))), AS_PREDICTED),
    "the ISR has another order": (predicted(2, (3, 2), (2, 3)), history(BEFORE, (CONTROLLER, 2, (2, 3))), AS_PREDICTED),
    "nobody has acted yet": (predicted(2, (2, 3), (2, 3)), history(BEFORE), None),
    "another leads than was predicted": (
        predicted(2, (2, 3), (2, 3)), history(BEFORE, (CONTROLLER, 3, (2, 3))),
        "t-0 has leader 3 and ISR [2, 3], predicted were leader 2 and ISR [2, 3]"),
    "the first version that is settled counts": (
        predicted(2, (2, 3), (2, 3)), history(BEFORE, (CONTROLLER, 2, (2, 3)), (LEADER, 2, (2,))), AS_PREDICTED),
    "it is offline": (predicted(-1, (1,), (2, 3)), history((LEADER, 1, (1,)), (CONTROLLER, -1, (1,))), AS_PREDICTED),
    "a replica leads where none was predicted to": (
        predicted(-1, (1,), (2, 3)), history((LEADER, 1, (1,)), (CONTROLLER, 2, (2,))),
        "t-0 has leader 2 and ISR [2], predicted were leader -1 and ISR [1]"),
    "nobody leads where one was predicted to": (
        predicted(2, (2,), (2, 3)), history((LEADER, 1, (1,)), (CONTROLLER, -1, (1,))),
        "t-0 has leader -1 and ISR [1], predicted were leader 2 and ISR [2]"),
    "of a dead ISR another member is the last one": (
        predicted(-1, (1,), (3,)), history((LEADER, 1, (1, 2)), (CONTROLLER, -1, (2,))), AS_PREDICTED),
    "an ISR that is dead is not made smaller yet": (
        predicted(-1, (1,), (3,)), history((LEADER, 1, (1, 2)), (CONTROLLER, -1, (1, 2))), None),
    "the election is still to come": (
        predicted(2, (2, 3), (2, 3)), history(BEFORE, (CONTROLLER, -1, (2, 3))), None),
    "a follower is gone": (
        predicted(2, (2, 3), (2, 3)), history((LEADER, 2, (1, 2, 3)), (LEADER, 2, (2, 3))), AS_PREDICTED),
    "a leader has let another replica into the ISR": (
        predicted(2, (2,), (2, 3)), history((LEADER, 1, (1, 2)), (LEADER, 1, (1, 2, 3)), (CONTROLLER, 2, (2, 3))),
        NOT_COMPARED),
    "the controller has let another replica into the ISR": (
        predicted(2, (2,), (2, 3)), history((LEADER, 1, (1, 2)), (CONTROLLER, 2, (2, 3))),
        "t-0 has leader 2 and ISR [2, 3], predicted were leader 2 and ISR [2]"),
    "a leader has done so before the prediction": (
        predicted(2, (2, 3), (2, 3)),
        history((LEADER, 1, (1, 2)), (LEADER, 1, (1, 2, 3)), (CONTROLLER, 2, (2, 3)), first=4), AS_PREDICTED),
    "the partition is being deleted": (
        predicted(2, (2, 3), (2, 3)), history(BEFORE, (CONTROLLER, LEADER_DURING_DELETE, (1,))), NOT_COMPARED),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_outcome_of_a_loss(case: str) -> None:
    made, since, words = CASES[case]
    found = compare(made, since)
    assert (None if found is None else found.words) == words
    assert found is None or (found.fault is None) == (words in (AS_PREDICTED, NOT_COMPARED))


def test_partitions_that_are_gone_or_new_are_left_out() -> None:
    made = predicted(2, (2, 3), (2, 3))
    other = replace(partition(1, (1,)), topic="u", topic_id="new")
    found = compare(made, [MetadataVersion(5, {}, {other.topic_id_partition: other})])
    assert found == PredictionOutcome("kill 1", NOT_COMPARED)
