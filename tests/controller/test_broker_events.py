"""Brokers start, stop, die and return: the effects on partitions and replicas, as tables of cases."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.events import BrokerChange
from lakelog.replication.protocol.elections import with_replicas
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from tests.controller.contexts import NOBODY, VERSION, Active, changed, context, errors, partition, tp, views

ONLINE, OFFLINE, NEW = "OnlineReplica", "OfflineReplica", "NewReplica"
INELIGIBLE, STARTED = "ReplicaDeletionIneligible", "ReplicaDeletionStarted"
UNTOUCHED = None


def outcome_of(decision):
    return changed(decision).get("flights-0", UNTOUCHED)


@pytest.mark.parametrize(
    ("leader", "isr", "gone", "outcome"),
    [
        pytest.param(1, (1, 2, 3), (1,), (2, (2, 3)), id="the leader: the next of the ISR leads"),
        pytest.param(1, (1, 3), (1,), (3, (3,)), id="the leader: who is out of sync is passed over"),
        pytest.param(1, (1, 2, 3), (3,), (1, (1, 2)), id="a follower: it leaves the ISR"),
        pytest.param(1, (1, 2), (3,), UNTOUCHED, id="a follower that was out of sync"),
        pytest.param(1, (1,), (1,), (NOBODY, (1,)), id="the last member stays in the ISR"),
        pytest.param(1, (1, 2, 3), (1, 2), (3, (3,)), id="two at once"),
        pytest.param(1, (1, 2, 3), (2, 3), (1, (1,)), id="both followers"),
        pytest.param(1, (1, 2), (1, 2), (NOBODY, (2,)), id="all of the ISR: one of them stays in it"),
        pytest.param(1, (1, 2, 3), (1, 2, 3), (NOBODY, (3,)), id="everybody"),
        pytest.param(NOBODY, (2,), (1,), UNTOUCHED, id="nobody led"),
    ],
)
def test_bd_01_bd_02_bd_03_a_failed_broker_leaves_each_isr_and_its_partitions_elect(leader, isr, gone, outcome):
    active = Active(context(partition((1, 2, 3), leader, isr), live=(1, 2, 3) if leader > 0 else (1, 3)))
    decision = active.brokers(gone=gone)
    assert outcome_of(decision) == outcome
    assert {active.state(broker) for broker in gone} == {OFFLINE}
    is_led = (outcome or (leader,))[0] != NOBODY
    assert active.context.partition_states[tp()] == ("OnlinePartition" if is_led else "OfflinePartition")


@pytest.mark.parametrize(
    ("leader", "isr", "live", "come", "outcome"),
    [
        pytest.param(NOBODY, (1,), (2, 3), (1,), (1, (1,)), id="it is waited for: it leads"),
        pytest.param(NOBODY, (3, 1), (2,), (1, 3), (1, (3, 1)), id="two are waited for: the first of AR leads"),
        pytest.param(NOBODY, (1,), (2,), (3,), UNTOUCHED, id="another is waited for"),
        pytest.param(2, (2, 3), (2, 3), (1,), UNTOUCHED, id="it has to catch up first"),
        pytest.param(NOBODY, (), (), (3, 2), (2, (2, 3)), id="never led: every log is empty, so all are in sync"),
    ],
)
def test_bu_01_bu_02_a_started_broker_brings_its_offline_partitions_online(leader, isr, live, come, outcome):
    active = Active(context(partition((1, 2, 3), leader, isr), live=live))
    decision = active.brokers(come=come)
    assert outcome_of(decision) == outcome
    assert {active.state(broker) for broker in come} == {ONLINE}


def test_bc_02_brokers_that_start_and_fail_within_one_poll_are_one_decision():
    """Broker 2 is gone and 3 is back. No partition waits for a second poll."""
    rows = (partition((2, 3), 2, (2,)), partition((2, 3), NOBODY, (3,), 1), partition((2, 1), 2, (2, 1), 2))
    active = Active(context(*rows, live=(1, 2)))
    decision = active.brokers(gone=(2,), come=(3,))
    assert changed(decision) == {"flights-0": (NOBODY, (2,)), "flights-1": (3, (3,)), "flights-2": (1, (1,))}
    assert [active.state(*where) for where in ((2, 0), (3, 0), (3, 1), (2, 1), (2, 2))] == [
        OFFLINE, ONLINE, ONLINE, OFFLINE, OFFLINE,
    ]  # fmt: skip


def test_bc_02_a_started_broker_replaces_a_failed_leader_only_if_it_is_in_sync():
    active = Active(context(partition((2, 3, 1), 2, (2, 3)), live=(1, 2)))
    assert outcome_of(active.brokers(gone=(2,), come=(3,))) == (3, (3,))


BOUNCED = [
    pytest.param(1, (1, 2, 3), (2, (2, 3)), id="the leader: another leads, it has to catch up"),
    pytest.param(2, (1, 2, 3), (2, (2, 3)), id="a follower leaves the ISR"),
]


@pytest.mark.parametrize("lost", [(), (1,)], ids=["with its log", "without its log"])
@pytest.mark.parametrize(("leader", "isr", "outcome"), BOUNCED)
def test_bc_01_bc_02_a_new_broker_epoch_is_a_failure_and_a_start(leader, isr, outcome, lost):
    active = Active(context(partition(leader=leader, isr=isr)))
    decision = active.brokers(bounced=(1,), lost=lost)
    assert outcome_of(decision) == outcome
    assert active.state(1) == ONLINE


@pytest.mark.parametrize(
    ("leader", "gone", "outcome"),
    [
        pytest.param(2, (), (2, (2, 1)), id="it is in sync: its leader has seen that it is another process"),
        pytest.param(2, (2,), (1, (1,)), id="its leader is gone, and it alone has all"),
        pytest.param(1, (), (1, (2, 1)), id="it leads: the last controller has elected it"),
        pytest.param(1, (2,), (1, (1,)), id="it leads, and goes on alone"),
    ],
)
def test_bc_01_bd_01_a_new_process_that_has_joined_the_isr_has_not_failed(leader, gone, outcome):
    """This controller sees only now that it is a new one. Outside of the ISR its records would count for nothing."""
    made = context(replace(partition((2, 1, 3), leader, (2, 1)), isr_epochs={1: 2, 2: 1}))
    now = {broker: BrokerView(2 if broker == 1 else 1) for broker in (1, 2, 3) if broker not in gone}
    active = Active(replace(made, brokers=now).started(VERSION))
    assert outcome_of(active.fail_over(views())) == outcome
    assert active.state(1) == ONLINE


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("isr", [(2, 1), (2, 1, 3)], ids=str)
def test_bc_01_le_02_a_new_process_with_all_records_is_elected_and_none_without(isr, unclean):
    """The leader died in the same look. Broker 3 is alive, but may be out of sync."""
    made = context(
        replace(partition((2, 1, 3), 2, isr), isr_epochs={1: 2, 2: 1, 3: 1}), unclean_leader_election_enable=unclean
    )
    assert outcome_of(Active(made).brokers(gone=(2,), bounced=(1,))) == (1, isr[1:])


@pytest.mark.parametrize("epoch", [2, 3], ids=["the process that is seen", "one that has begun since"])
def test_bc_01_a_new_process_that_joins_the_isr_before_the_next_poll_stays_in_it(epoch):
    active = Active(context(replace(partition((2, 1, 3), 2, (2, 1)), isr_epochs={1: epoch, 2: 1})))
    assert outcome_of(active.brokers(bounced=(1,))) == (2, (2, 1))


@pytest.mark.parametrize(
    ("leader", "isr", "leader_epoch"),
    [
        pytest.param(1, (1,), 6, id="it led alone: nobody else may, so that it is elected again"),
        pytest.param(2, (2, 3), 5, id="it was out of sync: nobody's role changes"),
    ],
)
def test_bc_01_is_05_an_isr_change_decided_before_a_new_broker_epoch_is_refused(leader, isr, leader_epoch):
    """Leader and ISR stay, under a later epoch, so the pending changes of the former process fail."""
    active = Active(context(partition(leader=leader, isr=isr), partition((2, 3), number=1)))
    active.brokers(bounced=(1,))
    row = active.row()
    assert (row.leader, row.isr, row.partition_epoch, row.leader_epoch) == (leader, isr, 8, leader_epoch)
    assert active.row(1) == partition((2, 3), number=1), "it has no replica there"


@pytest.mark.parametrize(
    ("isr", "outcome"),
    [
        pytest.param((2, 1), (2, (2,)), id="it was in sync: not any more"),
        pytest.param((1,), UNTOUCHED, id="the last member: nobody leads"),
    ],
)
def test_bu_02_li_04_a_broker_back_without_its_log_leaves_the_isr_or_is_not_elected(isr, outcome):
    """It leaves the ISR before it counts as alive. The last member stays in it, and is not elected: only its log, which
    may come back, is known to have everything."""
    active = Active(context(partition((1, 2), NOBODY if isr == (1,) else 2, isr), live=(2,)))
    assert outcome_of(active.brokers(come=(1,), lost=(1,))) == outcome
    assert not active.fail_over().touches_metadata
    assert not active.fail_over({}).touches_metadata, "nor by a controller that knows nothing of what was before"
    active.brokers(bounced=(1,))
    assert active.row().leader == (2 if outcome else 1), "once it has its log again, it is elected"


def registered_again(active, broker):
    """A new process of a broker, with the log that it got after the loss."""
    view = active.context.brokers[broker]
    before, again = active.context.brokers, replace(view, broker_epoch=view.broker_epoch + 1)
    active.context = replace(active.context, brokers={**before, broker: again})
    return active.process(BrokerChange(before))


@pytest.mark.parametrize("times", [0, 1, 3])
def test_li_04_a_lost_log_is_known_over_any_number_of_registrations(times):
    active = Active(context(partition((1, 2), 1, (1,))))
    active.brokers(bounced=(1,), lost=(1,))
    for _ in range(times):
        registered_again(active, 1)
    assert (active.row().leader, active.row().isr) == (NOBODY, (1,))
    assert not active.fail_over({}).touches_metadata


@pytest.mark.parametrize("live", [(1, 2), (1,)], ids=["another replica", "itself"])
@pytest.mark.parametrize("how", ["by hand", "by its topic"])
def test_le_02_li_04_an_unclean_election_ends_the_wait_for_a_log_that_was_lost(how, live):
    """A replica with its log is elected before the preferred leader. After that the empty one is like any other."""
    topic = {} if how == "by hand" else {"unclean.leader.election.enable": "true"}
    active = Active(context(partition((1, 2), 1, (1,)), live=live, configs=topic))
    active.brokers(bounced=(1,), lost=(1,))
    if how == "by hand":
        assert errors(active.ask("elect_leaders", election_type="preferred", partitions=["flights-0"])) == {
            "flights-0": "PreferredLeaderNotAvailableException"
        }
        active.ask("elect_leaders", election_type="unclean", partitions=["flights-0"])
    elected = live[-1]
    assert (active.row().leader, active.row().isr) == (elected, (elected,))
    active.brokers(come=tuple({1, 2} - set(live)))
    active.isr(1, 2)
    registered_again(active, elected)
    assert active.row().leader == 3 - elected


@pytest.mark.parametrize(("gone", "lost", "left"), [((1,), (2,), 1), ((2,), (1,), 2), ((), (2,), 1), ((), (1,), 2)])
def test_bd_03_li_04_of_all_that_fail_at_once_one_that_has_its_log_stays_in_the_isr(gone, lost, left):
    active = Active(context(partition((1, 2), 1, (1, 2))))
    active.brokers(gone=gone, bounced=tuple({1, 2} - set(gone)), lost=lost)
    assert (active.row().leader, active.row().isr) == (NOBODY if gone else left, (left,))


UNSEEN = [
    pytest.param({1: 2}, (), 2, (2, 3), id="the leader: another leads, and it has to catch up"),
    pytest.param({2: 2}, (), 1, (1, 3), id="a follower: it leaves the ISR"),
    pytest.param({1: 2, 2: 5, 3: 3}, (), 1, (1, 2, 3), id="all: they are as good as each other"),
    pytest.param({1: 2, 2: 5, 3: 3}, (1, 3), 2, (2,), id="all, of which one has its log"),
    pytest.param({1: 2, 2: 5, 3: 3}, (1, 2, 3), NOBODY, (1, 2, 3), id="all, and none has its log"),
]


@pytest.mark.parametrize("before", ["nothing", "what is now"])
@pytest.mark.parametrize(("epochs", "lost", "leader", "isr"), UNSEEN)
def test_fo_03_bc_01_new_broker_epochs_that_no_controller_has_seen_are_seen_in_the_rows(
    epochs, lost, leader, isr, before
):
    """A controller that starts last, as after an outage of the whole cluster, elects all leaders anew."""
    active = Active(context(partition((1, 2, 3))))
    now = {b: BrokerView(epochs.get(b, 1), log_epoch=epochs[b] if b in lost else 1) for b in (1, 2, 3)}
    active.context = replace(active.context, brokers=now)
    active.fail_over({} if before == "nothing" else now)
    row = active.row()
    assert (row.leader, row.isr) == (leader, isr)
    assert row.leader_epoch == 6 if leader > 0 else row.leader_epoch in (5, 6)
    assert row.leader < 0 or row.isr_epoch(leader) == now[leader].broker_epoch
    assert not active.fail_over({}).touches_metadata


def test_bc_01_a_leader_that_stays_keeps_the_broker_epoch_that_was_elected():
    """A reassignment is decided while a new process of the leader has not been dealt with yet: it does not lead on."""
    now = {**views((1, 2, 3)), 1: BrokerView(2)}
    decision = Decision(replace(context(partition((1, 2))), brokers=now), "a test")
    decision.put(with_replicas(decision.registration(tp()), (3, 1), {1, 2, 3}))
    assert decision.registration(tp()).isr_epochs == {1: 1}


def test_bc_01_an_election_records_the_broker_epoch_that_is_registered_now():
    now = {**views((1, 2, 3)), 2: BrokerView(7)}
    active = Active(replace(context(partition(isr=(1, 2))), brokers=now))
    active.brokers(gone=(1,))
    assert (active.row().leader, active.row().isr_epochs) == (2, {2: 7})
    active.ask("create_topic", topic="new", assignment={"0": [2, 3]})
    (made,) = (r for r in active.context.partitions.values() if r.topic == "new")
    assert made.isr_epochs == {2: 7, 3: 1}


def test_bu_02_le_02_with_unclean_elections_a_partition_does_not_wait_for_a_lost_log():
    topic = {"unclean.leader.election.enable": "true"}
    active = Active(context(partition((1, 2), 1, (1,)), configs=topic, live=(1, 2)))
    assert outcome_of(active.brokers(bounced=(1,), lost=(1,))) == (2, (2,))


@pytest.mark.parametrize(
    ("leader", "isr", "asking", "outcome"),
    [
        pytest.param(1, (1, 2, 3), (1,), (2, (2, 3)), id="CS-05: it leads"),
        pytest.param(2, (1, 2, 3), (1,), (2, (2, 3)), id="CS-06: it follows in sync"),
        pytest.param(2, (2, 3), (1,), UNTOUCHED, id="CS-06: it follows out of sync"),
        pytest.param(1, (1,), (1,), UNTOUCHED, id="CS-08: nobody else is in sync: it leads until it is gone"),
        pytest.param(1, (1, 2, 3), (1, 2), (3, (3,)), id="two at once: it does not go to the other"),
        pytest.param(1, (1, 2), (1, 2), (1, (1,)), id="two at once, alone in sync: the leader keeps it"),
        pytest.param(1, (1, 2, 3), (1, 2, 3), (1, (1,)), id="everybody: the leader keeps it"),
    ],
)
def test_cs_04_cs_05_cs_06_cs_08_a_broker_that_shuts_down_hands_over_its_leaderships_and_leaves_every_isr(
    leader, isr, asking, outcome
):
    active = Active(context(partition((1, 2, 3), leader, isr)))
    decisions = active.shut_down(*asking)
    row = active.row()
    assert (row.leader, row.isr) == (outcome or (leader, isr))
    assert row.leader_epoch <= 5 + len(decisions)
    followed = [broker for broker in asking if broker != leader]
    assert {active.state(broker) for broker in followed} <= {OFFLINE}


def test_cs_04_a_partition_without_another_replica_is_left_alone():
    active = Active(context(partition((1,)), partition((1, 2), number=1)))
    (decision,) = active.shut_down(1)
    assert changed(decision) == {"flights-1": (2, (2,))}
    assert outcome_of(active.brokers(gone=(1,))) == (NOBODY, (1,)), "until it is gone"


@pytest.mark.parametrize("isr", [(1, 2, 3), (1, 2), (1, 3), (1,)], ids=str)
@pytest.mark.parametrize("live", [(1, 2, 3), (1, 2), (1,)], ids=str)
def test_cs_02_cs_08_a_broker_that_shuts_down_keeps_only_partitions_that_no_other_can_lead(isr, live):
    """A stopping broker waits until no other ISR member could lead any of its partitions. The wait must end."""
    active = Active(context(partition((1, 2, 3), 1, isr), live=live))
    active.fail_over()
    active.shut_down(1)
    row = active.row()
    assert (row.leader == 1) == (not set(isr) & set(live) - {1})
    assert row.leader != 1 or row.isr == (1,)


def test_cs_08_a_partition_without_another_leader_goes_offline_only_once_its_broker_has_stopped():
    active = Active(context(partition((1, 2))))
    active.shut_down(1)
    assert (active.state(1), active.row().isr) == (ONLINE, (2,))
    assert changed(active.brokers(gone=(1,))) == {}, "nothing is left to be changed"
    assert active.state(1) == OFFLINE


def test_cs_03_a_controlled_shutdown_of_a_broker_without_replicas_writes_nothing():
    (decision,) = Active(context(partition((1, 2)), live=(1, 2, 9))).shut_down(9)
    assert not decision.touches_metadata


def test_cs_04_bd_01_a_broker_that_shuts_down_is_not_elected_when_another_fails():
    active = Active(context(partition((1, 2, 3), 1, (1, 2, 3)), shutting_down=(2,)))
    assert outcome_of(active.brokers(gone=(1,))) == (3, (3,))


def test_bd_01_le_04_a_broker_that_fails_during_its_shutdown_is_handled_as_failed():
    active = Active(context(partition((1, 2, 3), 1, (1,))))
    active.shut_down(1)
    assert outcome_of(active.brokers(gone=(1,))) == (NOBODY, (1,))
    assert outcome_of(active.brokers(come=(1,))) == (1, (1,))


def test_bd_02_td_05_events_of_brokers_leave_out_topics_that_are_being_deleted():
    """Their partitions keep leader and ISR. A replica on a dead broker waits with its deletion until it is back."""
    active = Active(context(partition(), partition(topic="old")))
    active.ask("delete_topic", topic="old")
    row = active.row(topic="old")
    assert (row.leader, active.state(1, topic="old")) == (-2, STARTED)
    assert set(changed(active.brokers(gone=(1,)))) == {"flights-0"}
    assert [active.state(b, topic="old") for b in (1, 2)] == [INELIGIBLE, STARTED]
    assert set(changed(active.shut_down(2)[0])) == {"flights-0"}
    assert active.row(topic="old") == row


def test_fo_03_fo_04_a_failover_handles_brokers_that_failed_restarted_or_started_unseen():
    """The last controller saw brokers 1, 2 and 3 under epoch 1. Now 1 is gone, 2 has a new epoch and 4 is new."""
    older = replace(partition((2, 3), number=1), isr_epochs={2: 0, 3: 1})
    rows = [partition((1, 3)), older, partition((4, 3), NOBODY, (4,), number=2)]
    active = Active(context(*rows, live=(2, 3, 4)))
    before = {**views((1, 2, 3)), 2: BrokerView(0)}
    assert changed(active.fail_over(before)) == {
        "flights-0": (3, (3,)),
        "flights-1": (3, (3,)),
        "flights-2": (4, (4,)),
    }


def test_fo_04_cs_04_the_next_controller_continues_a_controlled_shutdown():
    active = Active(context(partition((1, 2)), shutting_down=(1,)))
    assert outcome_of(active.fail_over()) == (2, (2,))


def test_fo_04_ps_03_a_leader_that_shuts_down_is_alive_when_a_controller_starts():
    """Nobody else is in sync, and an unclean election is only for a dead leader."""
    topic = {"unclean.leader.election.enable": "true"}
    active = Active(context(partition((1, 2), isr=(1,)), shutting_down=(1,), configs=topic))
    assert not active.fail_over().touches_metadata
    assert (active.context.partition_states[tp()], active.state(1)) == ("OnlinePartition", ONLINE)


def test_fo_05_live_brokers_include_those_that_shut_down_which_are_not_elected():
    known = context(partition(), live=(1, 2, 3), shutting_down=(2,))
    assert (known.live_brokers, known.shutting_down_brokers) == ({1, 3}, {2})
    assert known.deletions == {}
    assert context(partition(), deleting=("flights",)).deletions == {}, "its brokers have not been told yet"
    begun = partition(leader=LEADER_DURING_DELETE)
    assert context(begun, deleting=("flights",)).deletions == {"flights-id": VERSION}


def test_fo_03_a_failover_that_finds_everything_as_it_was_writes_nothing():
    active = Active(context(partition(), partition((2, 1), number=1)))
    assert not active.fail_over().touches_metadata
    assert not active.brokers().touches_metadata


STORIES = list(itertools.product(("gone", "bounced", "shut down", "stays"), repeat=3))


@pytest.mark.parametrize("isr", [(1, 2, 3), (1, 2), (1,)], ids=str)
@pytest.mark.parametrize("story", STORIES, ids="-".join)
def test_bd_01_bu_02_after_any_events_a_live_isr_member_leads_if_there_is_one(story, isr):
    """All combinations of changes of brokers 1, 2 and 3 at once. `contexts.check` checks every decision."""
    active = Active(context(partition(isr=isr)))
    did = {what: tuple(b for b, done in zip((1, 2, 3), story, strict=True) if done == what) for what in story}
    active.shut_down(*did.get("shut down", ()))
    active.brokers(gone=did.get("gone", ()), bounced=did.get("bounced", ()))
    row, live = active.row(), active.context.brokers
    assert set(row.isr) <= set(isr)
    assert (row.leader in live) or not set(row.isr) & active.context.live_brokers
    assert row.leader in (*live, NOBODY)
    active.brokers(come=did.get("gone", ()))
    assert active.row().leader in active.context.brokers
    assert not active.fail_over().touches_metadata, "another controller finds nothing left to do"
