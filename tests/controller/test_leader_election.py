"""Elections by request, and elections that restore the balance."""

from dataclasses import replace

import pytest

from lakelog.replication.controller.events import AutoPreferredReplicaLeaderElection
from tests.controller.contexts import NOBODY, Active, changed, context, errors, partition

NOT_NEEDED = "ElectionNotNeededException"
NOT_PREFERRED = "PreferredLeaderNotAvailableException"
NOBODY_LIVES = "EligibleLeadersNotAvailableException"
UNKNOWN = "UnknownTopicOrPartitionException"


@pytest.mark.parametrize(
    ("election", "leader", "isr", "given", "outcome"),
    [
        pytest.param("preferred", 2, (2, 1), {}, (1, (2, 1)), id="preferred"),
        pytest.param("preferred", 1, (1, 2), {}, NOT_NEEDED, id="preferred: it leads"),
        pytest.param("preferred", 2, (2, 3), {}, NOT_PREFERRED, id="preferred: out of sync"),
        pytest.param("preferred", 2, (2, 1), {"live": (2, 3)}, NOT_PREFERRED, id="preferred: dead"),
        pytest.param("preferred", 2, (2, 1), {"shutting_down": (1,)}, NOT_PREFERRED, id="preferred: shutting down"),
        pytest.param("preferred", NOBODY, (3,), {"live": (1, 2)}, NOT_PREFERRED, id="preferred is never unclean"),
        pytest.param("preferred", 2, (2, 1), {"deleting": ("flights",)}, UNKNOWN, id="preferred: being deleted"),
        pytest.param("unclean", NOBODY, (3,), {"live": (1, 2)}, (1, (1,)), id="unclean"),
        pytest.param("unclean", NOBODY, (3, 2), {"live": (1, 2)}, (2, (2,)), id="unclean: clean where that can be"),
        pytest.param("unclean", 2, (2,), {}, NOT_NEEDED, id="unclean: somebody leads"),
        pytest.param("unclean", NOBODY, (3,), {"live": (9,)}, NOBODY_LIVES, id="unclean: nobody lives"),
        pytest.param("unclean", NOBODY, (3,), {"deleting": ("flights",)}, UNKNOWN, id="unclean: being deleted"),
    ],
)
def test_pe_01_le_02_le_05_a_requested_election_elects_the_preferred_or_an_unclean_leader(
    election, leader, isr, given, outcome
):
    active = Active(context(partition((1, 2, 3), leader, isr), **given))
    decision = active.ask("elect_leaders", election_type=election, partitions=["flights-0"])
    if isinstance(outcome, str):
        assert (errors(decision), decision.changed) == ({"flights-0": outcome}, {})
        assert "flights-0" in decision.outcomes["flights-0"].message
    else:
        assert (errors(decision), changed(decision)) == ({"flights-0": None}, {"flights-0": outcome})
        assert decision.outcomes["flights-0"].message == f"broker {outcome[0]} leads"


def test_pe_01_an_election_of_all_partitions_has_an_outcome_for_each_that_needs_one():
    rows = [partition((1, 2), 2), partition((2, 1), 2, number=1), partition((1, 2), 2, (2,), topic="other")]
    decision = Active(context(*rows)).ask("elect_leaders", election_type="preferred", partitions=None)
    assert errors(decision) == {"flights-0": None, "other-0": NOT_PREFERRED}
    assert changed(decision) == {"flights-0": (1, (1, 2))}
    assert errors(Active(context(*rows)).ask("elect_leaders", election_type="preferred", partitions=[])) == {}


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ({"election_type": "preferred", "partitions": ["ghosts-0"]}, {"ghosts-0": UNKNOWN}),
        ({"election_type": "any", "partitions": None}, {"elect_leaders": "InvalidRequestException"}),
        ({"partitions": []}, {"elect_leaders": "InvalidRequestException"}),
    ],
    ids=["unknown partition", "unknown type", "no type"],
)
def test_pe_01_li_06_an_invalid_election_request_is_refused(arguments, outcome):
    decision = Active(context(partition())).ask("elect_leaders", **arguments)
    assert (errors(decision), decision.touches_metadata) == (outcome, False)


def fleet(led_elsewhere, of=20, **given):
    """Broker 1 is the preferred leader of `of` partitions. Broker 2 leads some of them."""
    rows = [partition((1, 2), 2 if n < led_elsewhere else 1, number=n, **given) for n in range(of)]
    return [*rows, partition((2, 1), topic="other")]


@pytest.mark.parametrize(
    ("led_elsewhere", "percentage", "given_back"),
    [
        pytest.param(0, 10, 0, id="none"),
        pytest.param(2, 10, 0, id="as much as is allowed"),
        pytest.param(3, 10, 3, id="more: all of them are given back"),
        pytest.param(20, 10, 20, id="all of them"),
        pytest.param(1, 0, 1, id="nothing is allowed"),
        pytest.param(20, 100, 0, id="everything is allowed"),
    ],
)
def test_ar_02_an_imbalanced_broker_gets_its_preferred_leaderships_back(led_elsewhere, percentage, given_back):
    active = Active(context(*fleet(led_elsewhere), leader_imbalance_per_broker_percentage=percentage))
    decision = active.process(AutoPreferredReplicaLeaderElection())
    assert changed(decision) == {f"flights-{n}": (1, (1, 2)) for n in range(given_back)}
    assert not active.process(AutoPreferredReplicaLeaderElection()).touches_metadata


@pytest.mark.parametrize(
    ("extra", "given"),
    [
        pytest.param([partition((3, 1), 1, (1,), topic="moving", adding=(3,))], {}, id="something is being moved"),
        pytest.param([], {"live": (2, 3)}, id="the broker is dead"),
        pytest.param([], {"shutting_down": (1,)}, id="the broker shuts down"),
        pytest.param([], {"deleting": ("flights",)}, id="the topic is being deleted"),
    ],
)
def test_ar_02_td_05_no_preferred_election_during_a_reassignment_a_deletion_or_a_failure(extra, given):
    rows = [partition((1, 2), 2, number=n) for n in range(3)]
    decision = Active(context(*rows, *extra, **given)).process(AutoPreferredReplicaLeaderElection())
    assert not decision.touches_metadata


def test_ar_02_a_broker_gets_back_only_partitions_for_which_it_is_in_sync():
    rows = [partition((1, 2), 2, isr, number=n) for n, isr in enumerate([(2,), (2, 1)])]
    decision = Active(context(*rows)).process(AutoPreferredReplicaLeaderElection())
    assert changed(decision) == {"flights-1": (1, (2, 1))}


def test_ar_01_the_imbalance_is_counted_for_each_broker():
    """The share of 2 is within what is allowed, that of 1 is not. How often it is looked at the controller's clock
    says."""
    rows = [partition((1, 2), 2), *(partition((2, 1), 1 if n == 1 else 2, number=n) for n in range(1, 11))]
    decision = Active(context(*rows)).process(AutoPreferredReplicaLeaderElection())
    assert changed(decision) == {"flights-0": (1, (1, 2))}


@pytest.mark.parametrize(
    ("configs", "outcome"),
    [
        pytest.param({"unclean.leader.election.enable": "perhaps"}, (NOBODY, (1,)), id="not even uncleanly"),
        pytest.param(
            {"unclean.leader.election.enable": "true", "retention.ms": "long"}, (2, (2,)), id="the others hold"
        ),
    ],
)
def test_le_02_invalid_settings_of_a_topic_delay_no_other_topic(configs, outcome, caplog):
    """A newer version, or a person, has written its row."""
    made = context(partition(isr=(1,)), partition(topic="other"))
    topics = {**made.topics, "flights": replace(made.topics["flights"], configs=configs)}
    active = Active(replace(made, topics=topics))
    decision = active.brokers(gone=(1,))
    assert changed(decision) == {"flights-0": outcome, "other-0": (2, (2, 3))}
    assert "topic flights: invalid settings are left out: " in caplog.text
    assert list(configs)[-1] in caplog.text


def test_le_02_a_setting_of_a_newer_version_delays_no_topic():
    made = context(partition(isr=(1,)), partition(topic="other"))
    topics = {**made.topics, "flights": replace(made.topics["flights"], configs={"no.such.setting": "1"})}
    decision = Active(replace(made, topics=topics)).brokers(gone=(1,))
    assert changed(decision) == {"flights-0": (NOBODY, (1,)), "other-0": (2, (2, 3))}
