"""The steps of a broker, and their order, when the metadata changes. Broker 1 decides."""

import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol.fetch_state import InitialFetchState
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, STOPPED, PartitionLog, Role, may_become
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.role_round import (
    CommitRoles,
    DeleteLogs,
    HostPartitions,
    StartFetching,
    StopFetching,
    StopIdleFetchers,
    become_leader_or_follower,
    given_to,
    role_in,
)

P, Q = TopicIdPartition("id", 0), TopicIdPartition("id", 1)
ORDER = (
    StopFetching, CommitRoles, HostPartitions, PublishReplicas, DeleteLogs, StartFetching, StopIdleFetchers,
)  # fmt: skip


def led_by(leader, epoch, partition=P, replicas=(1, 2, 3), partition_epoch=0):
    return PartitionRegistration(
        "t", partition.topic_id, partition.partition, replicas, leader, epoch, replicas[:1], partition_epoch
    )


def log_of(records=0, role=None):
    log = PartitionLog() if role is None else PartitionLog(role=role)
    if records:
        log.add(BatchHeader("t", "id", 0, 0, 0, records - 1, 0, 0), "segment")
    return log


def fetched(leader, epoch, offset, partition=P):
    return {partition: InitialFetchState("t", leader, epoch, offset)}


def taken_up(registration, role):
    """The steps to a role, up to the start of fetching."""
    return [
        StopFetching((P,)),
        CommitRoles({P: role}),
        HostPartitions({P: registration}, ()),
        PublishReplicas("roles"),
    ]


def given_up(role, was_hosted=True, has_records=False):
    gone = (P,) if was_hosted else ()
    return [
        StopFetching(gone),
        CommitRoles({P: role}),
        HostPartitions({}, gone),
        PublishReplicas("roles"),
        *([DeleteLogs((P,))] if has_records else []),
    ]


END = [StartFetching({}), StopIdleFetchers()]
LED, FOLLOWED = led_by(1, 6), led_by(2, 6)
ELSEWHERE = led_by(2, 6, replicas=(2, 3))

# case: (hosted before, metadata now, the log) -> the steps, all of them and in this order
CASES = {
    "bl_05: a new partition, to lead": ((None, LED, None), [*taken_up(LED, Role(6, LEADER)), *END]),
    "bl_05: a follower becomes leader": ((led_by(2, 5), LED, log_of(7)), [*taken_up(LED, Role(6, LEADER)), *END]),
    "bl_05: the leader is elected again": ((led_by(1, 5), LED, log_of(7)), [*taken_up(LED, Role(6, LEADER)), *END]),
    "bl_06: a new partition, to follow": (
        (None, FOLLOWED, None),
        [*taken_up(FOLLOWED, Role(6, FOLLOWER)), StartFetching(fetched(2, 6, 0)), StopIdleFetchers()],
    ),
    "bl_06: a leader becomes follower": (
        (led_by(1, 5), FOLLOWED, log_of(7)),
        [*taken_up(FOLLOWED, Role(6, FOLLOWER)), StartFetching(fetched(2, 6, 7)), StopIdleFetchers()],
    ),
    "bl_06: a follower gets another leader": (
        (led_by(3, 5), FOLLOWED, log_of(7)),
        [*taken_up(FOLLOWED, Role(6, FOLLOWER)), StartFetching(fetched(2, 6, 7)), StopIdleFetchers()],
    ),
    "bl_07: nobody leads: hosted, and told of, but not fetched": (
        (led_by(2, 5), led_by(NO_LEADER, 6), log_of(7)),
        [*taken_up(led_by(NO_LEADER, 6), Role(6, FOLLOWER)), *END],
    ),
    "bl_08: a leader stays": ((led_by(1, 6), LED, log_of(7)), END),
    "bl_08: a follower stays, and goes on fetching": (
        (led_by(2, 6), FOLLOWED, log_of(7)),
        [StartFetching(fetched(2, 6, 7)), StopIdleFetchers()],
    ),
    "bl_08: the ISR alone has changed": ((led_by(1, 6), led_by(1, 6, partition_epoch=9), log_of(7)), END),
    "bl_02: an older registration of a leader": ((led_by(1, 7), LED, log_of(7)), END),
    "a restart, to follow at the epoch that the log has": (
        (None, FOLLOWED, log_of(7, Role(6, FOLLOWER))),
        [*taken_up(FOLLOWED, Role(6, FOLLOWER)), StartFetching(fetched(2, 6, 7)), StopIdleFetchers()],
    ),
    "a restart, to lead at the epoch of an older process: its log takes no more, and waits": (
        (None, led_by(NO_LEADER, 6), log_of(7, Role(6, LEADER))),
        [*taken_up(led_by(NO_LEADER, 6), Role(6, FENCED)), *END],
    ),
    "the same, without the log that it had": (
        (None, led_by(NO_LEADER, 6), log_of()),
        [*taken_up(led_by(NO_LEADER, 6), Role(6, FOLLOWER)), *END],
    ),
    "elected again": (
        (led_by(NO_LEADER, 5), LED, log_of(7, Role(5, FENCED))),
        [*taken_up(LED, Role(6, LEADER)), *END],
    ),
    "a restart, to lead at a newer epoch": (
        (None, LED, log_of(7, Role(5, LEADER))),
        [*taken_up(LED, Role(6, LEADER)), *END],
    ),
    "a second try, as the first one failed after the commit": (
        (led_by(2, 5), LED, log_of(7, Role(6, LEADER))),
        [*taken_up(LED, Role(6, LEADER)), *END],
    ),
    "sr_01: not assigned any more": ((led_by(1, 5), ELSEWHERE, log_of()), [*given_up(Role(6, STOPPED)), *END]),
    "sr_02: not assigned any more, with records": (
        (led_by(1, 5), ELSEWHERE, log_of(7)),
        [*given_up(Role(6, STOPPED), has_records=True), *END],
    ),
    "sr_02: the topic is being deleted": (
        (led_by(1, 5), led_by(LEADER_DURING_DELETE, 6), log_of(7, Role(5, LEADER))),
        [*given_up(Role(6, STOPPED), has_records=True), *END],
    ),
    "sr_02: no metadata explain a leader": (
        (led_by(1, 5), None, log_of(7, Role(5, LEADER))),
        [*given_up(Role(5, LEADER).as_stray()), *END],
    ),
    "sr_02: no metadata explain a follower, the log was told more": (
        (led_by(1, 5), None, log_of(7, Role(6, FOLLOWER))),
        [*given_up(Role(6, FOLLOWER).as_stray()), *END],
    ),
    "sr_02: the log of a replica that is hosted is not known": (
        (led_by(1, 5), None, None), [*given_up(Role(5, FOLLOWER).as_stray()), *END],
    ),
    "sr_02: no metadata explain a log that was left over": (
        (None, None, log_of(7, Role(4, LEADER))),
        [*given_up(Role(4, LEADER).as_stray(), was_hosted=False), *END],
    ),
    "sr_02: a stray replica stays one": ((None, None, log_of(7, Role(4, LEADER).as_stray())), END),
    "sr_02: an older copy of the metadata gives it to others": (
        (None, led_by(2, 4, replicas=(2, 3)), log_of(7, Role(4, FOLLOWER))),
        [*given_up(Role(4, FOLLOWER).as_stray(), was_hosted=False), *END],
    ),
    "sr_02: an older copy of the metadata gives it a role": (
        (None, led_by(1, 3), log_of(7, Role(4, FOLLOWER))),
        [*given_up(Role(4, FOLLOWER).as_stray(), was_hosted=False), *END],
    ),
    "sr_02: the metadata say at last that a stray replica has gone elsewhere": (
        (None, ELSEWHERE, log_of(7, Role(4, LEADER).as_stray())),
        [*given_up(Role(6, STOPPED), was_hosted=False, has_records=True), *END],
    ),
    "sr_02: the metadata explain a stray leader again": (
        (None, LED, log_of(7, Role(6, LEADER).as_stray())),
        [*taken_up(LED, Role(6, LEADER)), *END],
    ),
    "sr_02: the metadata explain a stray follower again": (
        (None, FOLLOWED, log_of(7, Role(6, FOLLOWER).as_stray())),
        [*taken_up(FOLLOWED, Role(6, FOLLOWER)), StartFetching(fetched(2, 6, 7)), StopIdleFetchers()],
    ),
    "sr_02: a new process finds a stray leader, and does not lead on": (
        (None, led_by(NO_LEADER, 6), log_of(7, Role(6, LEADER).as_stray())),
        [*taken_up(led_by(NO_LEADER, 6), Role(6, FENCED)), *END],
    ),
    "sr_03: a stray replica was deleted by hand that the metadata have in the ISR": (
        (None, LED, log_of(0, Role(6, STOPPED))), END,
    ),
    "sr_03: the same, when it has left the ISR": (
        (None, led_by(2, 7, replicas=(2, 1)), log_of(0, Role(6, STOPPED))),
        [*taken_up(led_by(2, 7, replicas=(2, 1)), Role(7, FOLLOWER)),
         StartFetching(fetched(2, 7, 0)), StopIdleFetchers()],
    ),
    "records without any role stay": ((None, None, log_of(7)), END),
    "sr_03: a log that was left over, assigned elsewhere": (
        (None, ELSEWHERE, log_of(7, Role(4, LEADER))),
        [*given_up(Role(6, STOPPED), was_hosted=False, has_records=True), *END],
    ),
    "sr_03: stopped, but not deleted yet: a crash came between": (
        (None, None, log_of(7, Role(4, STOPPED))),
        [*given_up(Role(4, STOPPED), was_hosted=False, has_records=True), *END],
    ),
    "somebody else's partition": ((None, ELSEWHERE, None), END),
    "nothing at all": ((None, None, None), END),
}  # fmt: skip


def steps_of(hosted, metadata, log):
    named = [{} if value is None else {P: value} for value in (hosted, metadata, log)]
    return become_leader_or_follower(1, *named)


@pytest.mark.parametrize("case", CASES)
def test_bl_03_bl_04_bl_06_sr_01_sr_03_a_role_change_has_its_steps_in_order(case):
    given, expected = CASES[case]
    assert steps_of(*given) == expected


HOSTED = (None, led_by(1, 5), led_by(2, 5), led_by(NO_LEADER, 5))
METADATA = (None, ELSEWHERE, *(led_by(leader, epoch) for leader in (1, 2, NO_LEADER) for epoch in (5, 6)))
LOGS = (None, log_of(), log_of(7), log_of(7, Role(5, LEADER)), log_of(7, Role(5, STOPPED)))
WORLDS = list(itertools.product(HOSTED, METADATA, LOGS))


def test_bl_03_the_order_is_the_same_for_all_role_changes():
    for world in WORLDS:
        kinds = [type(step) for step in steps_of(*world)]
        assert kinds == sorted(kinds, key=ORDER.index), world
        assert len(set(kinds)) == len(kinds), world
        assert kinds[-2:] == [StartFetching, StopIdleFetchers], world


def test_bl_04_fm_09_fetching_stops_and_roles_are_committed_before_partitions_are_hosted():
    """A new role is recorded in the log before it is hosted. A deletion is recorded as stopped."""
    for world in WORLDS:
        steps = {type(step): step for step in steps_of(*world)}
        if HostPartitions not in steps:
            assert steps.keys() == {StartFetching, StopIdleFetchers}, world
            continue
        host, roles = steps[HostPartitions], steps[CommitRoles].roles
        assert set(steps[StopFetching].partitions) == {*host.registrations, *host.removed}, world
        logs = {} if world[2] is None else {P: world[2]}
        taken = {p: role_in(1, r, logs.get(p)) for p, r in host.registrations.items()}
        assert taken.items() <= roles.items(), world
        deleted = steps[DeleteLogs].partitions if DeleteLogs in steps else ()
        assert all(roles[p].kind == STOPPED for p in deleted), world
        is_explained = world[1] is not None and world[1].leader_epoch > 5
        assert all((roles[p].kind == STOPPED) == is_explained or roles[p].is_stray for p in host.removed), world


def test_bl_02_bl_08_the_same_epoch_twice_changes_nothing():
    for hosted, metadata, log in WORLDS:
        first = steps_of(hosted, metadata, log)
        now = {} if hosted is None else {P: hosted}
        for step in first:
            if isinstance(step, HostPartitions):
                now = {p: r for p, r in now.items() if p not in step.removed} | dict(step.registrations)
            if isinstance(step, CommitRoles) and log is not None and may_become(log.role, step.roles[P]):
                log = replace(log, role=step.roles[P])
        kept = log_of(0, log.role) if any(isinstance(step, DeleteLogs) for step in first) else log
        again = steps_of(now.get(P), metadata, kept)
        assert again == first[-2:], (hosted, metadata, log)


def test_partitions_change_their_roles_in_one_commit_and_the_others_stay_as_they_are():
    third = TopicIdPartition("id", 2)
    hosted = {P: led_by(1, 5), Q: led_by(1, 5, Q), third: led_by(2, 5, third)}
    metadata = {P: led_by(2, 6), Q: led_by(1, 5, Q), third: led_by(1, 6, third)}
    steps = become_leader_or_follower(1, hosted, metadata, {p: log_of(7) for p in hosted})
    assert steps == [
        StopFetching((P, third)),
        CommitRoles({P: Role(6, FOLLOWER), third: Role(6, LEADER)}),
        HostPartitions({P: metadata[P], third: metadata[third]}, ()),
        PublishReplicas("roles"),
        StartFetching(fetched(2, 6, 7)),
        StopIdleFetchers(),
    ]


@pytest.mark.parametrize(("records", "offset"), [(None, 0), (0, 0), (7, 7)])
def test_bl_10_a_fetcher_starts_with_the_leader_epoch_and_the_own_leo(records, offset):
    steps = steps_of(None, FOLLOWED, None if records is None else log_of(records))
    assert StartFetching({P: InitialFetchState("t", leader=2, leader_epoch=6, fetch_offset=offset)}) in steps


@pytest.mark.parametrize(("leader", "kind"), [(1, LEADER), (2, FOLLOWER), (NO_LEADER, FOLLOWER)])
def test_bl_03_bl_07_a_replica_follows_unless_the_registration_names_it_leader(leader, kind):
    assert role_in(1, led_by(leader, 6)) == Role(6, kind)


@pytest.mark.parametrize(
    ("leader", "elected", "seen"),
    [
        pytest.param(1, 7, 1, id="elected as this process"),
        pytest.param(1, 6, NO_LEADER, id="elected as an older one"),
        pytest.param(1, 8, NO_LEADER, id="elected as a newer one, which this one has not heard of"),
        pytest.param(1, None, NO_LEADER, id="nobody has said as which"),
        pytest.param(2, 6, 2, id="another broker leads"),
        pytest.param(NO_LEADER, 6, NO_LEADER, id="nobody leads"),
    ],
)
def test_bc_01_a_process_leads_only_partitions_that_elected_its_broker_epoch(leader, elected, seen):
    epochs = {} if elected is None else {1: elected}
    registration = replace(led_by(leader, 6), isr_epochs=epochs)
    assert given_to(1, 7, {P: registration}) == {P: replace(registration, leader=seen)}


def test_sr_03_an_empty_log_of_an_unassigned_partition_is_stopped_too():
    """Otherwise a producer that does not know the new assignment could append to it."""
    steps = steps_of(None, ELSEWHERE, log_of(0, Role(5, LEADER)))
    assert steps[1] == CommitRoles({P: Role(6, STOPPED)})


def test_bl_02_a_partition_at_an_older_epoch_is_not_fetched():
    """A late read shows a lower epoch than the hosted one."""
    assert steps_of(led_by(1, 5), led_by(2, 4), log_of(7, Role(5, LEADER))) == END
