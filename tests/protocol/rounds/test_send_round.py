"""The order of a producer's reads, sends and waits, and the effect of an error at each step. Without tables."""

import dataclasses

import pytest

from lakelog.replication.errors import (
    FencedLeaderEpochException,
    InconsistentClusterIdException,
    KafkaStorageException,
    LeaderNotAvailableException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
    OutOfOrderSequenceException,
    ProducerFencedException,
    TimeoutException,
)
from lakelog.replication.protocol.append import ALL, Appended
from lakelog.replication.protocol.leader_epoch import assign
from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.replica_status import LEADER_ROLE, Leadership, ReplicaStatus
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.send_round import (
    AppendToLeaders,
    LeadershipsSeen,
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    SendOptions,
    TakeIdentity,
    TopicSeen,
)
from tests.clock import Clock
from tests.protocol.chains import chained_log, header
from tests.protocol.rounds.driven import Rounds

SECONDS, POLL = 10.0, 1.0
SENT, LOOK = [ReadTopic, AppendToLeaders], [ReadLeaderships, ReadLeaderLogs]
GONE = KafkaStorageException("503")


class World:
    """Broker 1 leads the partitions 0 and 1 with its follower 2. Each send has two records for each partition that is
    named. `pauses`: what happens in each pause; `fails`: errors of a step, one after the other."""

    def __init__(self, acks=ALL, retries=9, partitions=(0,), high_watermark=2):
        self.clock, self.rounds = Clock(), Rounds(self.answer)
        self.registrations = {n: PartitionRegistration("t", "id", n, (1, 2), 1, 0, (1, 2)) for n in (0, 1)}
        self.log, self.high_watermark = chained_log(role=Role(0, LEADER)), high_watermark
        self.min_isr, self.fails, self.pauses, self.requests, self.outcomes = 2, {}, [], [], []
        self.unreadable, self.logs, self.backoffs = [], {}, []
        self.counts = dict.fromkeys(partitions, 2)
        self.options = SendOptions("a test", acks, retries, 10_000, self.clock.now + SECONDS)
        self.identity = ProducerIdentity(ProducerIdAndEpoch(7, 0))

    @property
    def steps(self):
        return self.rounds.kinds

    def send(self):
        work = send_and_acknowledge("t", self.counts, self.identity, self.options, self.clock)
        return self.rounds.run(work)

    def lead(self, broker, epoch):
        """Changes the leader of partition 0: another broker, the same one again, or none."""
        self.registrations[0] = dataclasses.replace(self.registrations[0], leader=broker, leader_epoch=epoch)

    def answer(self, step):
        if self.fails.get(type(step)):
            return self.fail(step, self.fails[type(step)].pop(0))
        match step:
            case TakeIdentity():
                return ProducerIdAndEpoch(8, 0)
            case ReadTopic():
                return TopicSeen(self.registrations, self.min_isr)
            case AppendToLeaders(appends):
                return [{each.topic_id_partition: self.append(each) for each in append.requests} for append in appends]
            case ReadLeaderships(_, partitions):
                return LeadershipsSeen({n: self.leadership(n) for n in partitions}, self.min_isr)
            case ReadLeaderLogs(_, partitions):
                return {**dict.fromkeys(partitions, self.log), **self.logs}
            case ReadReplicas(broker):
                return {self.registrations[0].topic_id_partition: self.row(0, broker)}
            case Pause(deadline, is_backoff):
                self.clock.now = min(self.clock.now + POLL, deadline)
                self.backoffs.append(is_backoff)
                if self.pauses:
                    self.pauses.pop(0)()
        return None

    def fail(self, step, error):
        """The answer to appends has their errors; another step raises its own."""
        if isinstance(step, AppendToLeaders):
            return [error for _ in step.appends]
        raise error

    def append(self, request):
        """Where the records are: one log for all partitions, the first one writes. `outcomes`: errors of a request."""
        self.requests.append(request)
        if self.outcomes:
            return self.outcomes.pop(0)
        if not self.log.batches:
            self.log = chained_log(header(0, 1, request.leader_epoch), role=self.log.role)
        last = self.log.batches[-1].header
        return Appended(last.base_offset, last.last_offset, chain=last.chain)

    def leadership(self, number):
        registration = self.registrations[number]
        if self.unreadable:
            return Leadership(registration, error=self.unreadable.pop(0))
        return Leadership(registration, self.row(number, registration.leader))

    def row(self, number, broker):
        epoch, log = self.registrations[number].leader_epoch, self.log
        return ReplicaStatus(
            "t", "id", number, broker, 1, epoch, LEADER_ROLE, "Fetching", 0, log.log_end_offset, self.high_watermark,
            assign(log.lineage, epoch, *log.log_end), None, 1, chain=log.log_end.chain,
        )  # fmt: skip


def test_ap_07_the_records_are_appended_then_the_rows_are_read_then_the_log():
    world = World()
    (answer,) = world.send().values()
    assert world.steps == [*SENT, *LOOK]
    assert (answer.base_offset, answer.last_offset, answer.error) == (0, 1, None)


@pytest.mark.parametrize("acks", [0, 1])
def test_ap_02_without_all_nobody_is_waited_for(acks):
    world = World(acks)
    answer = world.send()[0]
    assert (world.steps, answer.base_offset, answer.error) == (SENT, 0, None)


def test_ap_06_the_partitions_of_a_leader_are_one_commit_and_one_look_at_its_log():
    world = World(partitions=(0, 1))
    assert [answer.error for answer in world.send().values()] == [None, None]
    assert world.steps == [*SENT, *LOOK]


def test_ap_06_with_too_small_an_isr_nothing_is_written():
    world = World(retries=99)
    world.registrations[0] = dataclasses.replace(world.registrations[0], isr=(1,))
    (answer,) = world.send().values()
    assert isinstance(answer.error, NotEnoughReplicasException)
    assert set(world.steps) == {ReadTopic, Pause}
    assert world.clock.now == world.options.deadline


@pytest.mark.parametrize(
    ("step", "backoffs"),
    [(ReadTopic, [False, True, False]), (AppendToLeaders, [True, True, True])],
    ids=["read", "append"],
)
def test_ap_06_what_may_pass_is_sent_again_under_the_same_sequence(step, backoffs):
    """Nothing was sent where the metadata could not be read."""
    world = World()
    world.fails = {step: [GONE, FencedLeaderEpochException("over"), GONE]}
    assert world.send()[0].error is None
    assert {request.base_sequence for request in world.requests} == {0}
    again = [*SENT[: SENT.index(step) + 1], Pause]
    assert (world.steps, world.backoffs) == ([*again * 3, *SENT, *LOOK], backoffs)
    world.requests.clear()
    world.send()
    assert [request.base_sequence for request in world.requests] == [2], "the next send goes on"


@pytest.mark.parametrize(("error", "attempts"), [(GONE, 3), (ProducerFencedException("a newer one"), 1)], ids=repr)
def test_ap_06_what_cannot_pass_and_what_was_tried_often_enough_is_an_error(error, attempts):
    world = World(retries=2)
    world.fails = {AppendToLeaders: [error] * 9}
    assert world.send()[0].error is error
    assert world.steps.count(AppendToLeaders) == attempts


@pytest.mark.parametrize("retries", [0, 2])
def test_mc_04_to_wait_for_a_leader_is_no_retry(retries):
    world = World(retries=retries)
    world.lead(NO_LEADER, 0)
    world.pauses = [lambda: None, lambda: None, lambda: world.lead(1, 0)]
    world.fails = {AppendToLeaders: [GONE] * 9}
    assert world.send()[0].error is GONE
    assert world.steps == [*[ReadTopic, Pause] * 3, *[*SENT, Pause] * retries, *SENT]
    assert world.backoffs == [False] * 3 + [True] * retries


@pytest.mark.parametrize(
    ("writes", "outcome"),
    [(True, "may be in a log, but were not acknowledged"), (False, "were not appended")],
    ids=["written", "not written"],
)
def test_ap_06_records_whose_commit_may_have_landed_are_not_said_to_be_missing(writes, outcome):
    """The commit has no answer, and then there is no leader until the time is over."""
    world = World()

    def fails(step):
        if isinstance(step, AppendToLeaders):
            if writes:
                (append,) = step.appends
                append.note_written(request.topic_id_partition for request in append.requests)
            world.lead(NO_LEADER, 0)
            return [GONE]
        return world.answer(step)

    world.rounds = Rounds(fails)
    error = world.send()[0].error
    assert isinstance(error, TimeoutException)
    assert f"2 records {outcome} within 10000 ms" in str(error)


@pytest.mark.parametrize("retries", [0, 9])
def test_ap_06_a_send_that_waits_for_the_metadata_spends_no_retry(retries):
    """Kafka: `RecordAccumulator.ready`, unknownLeaderTopics."""
    world = World(retries=retries)
    world.fails = {ReadTopic: [GONE] * 3}
    assert world.send()[0].error is None
    assert (world.steps, world.backoffs) == ([*[ReadTopic, Pause] * 3, *SENT, *LOOK], [False] * 3)
    world.fails = {ReadTopic: [GONE] * 99}
    assert world.send()[0].error is GONE
    assert world.clock.now >= world.options.deadline


def test_ap_06_a_sequence_that_a_leader_does_not_know_starts_over_at_once_under_another_id():
    """Even without retries, because no record of the send was in a log."""
    world = World(retries=9)
    world.outcomes = [OutOfOrderSequenceException("4 after 2")]
    assert world.send()[0].error is None
    assert world.steps == [*SENT, Pause, ReadTopic, TakeIdentity, AppendToLeaders, *LOOK]
    assert [(r.producer_id, r.base_sequence) for r in world.requests] == [(7, 0), (8, 0)]


def test_mc_04_records_that_meet_no_leader_in_time_expire():
    world = World()
    world.lead(NO_LEADER, 1)
    error = world.send()[0].error
    assert (type(error), type(error.__cause__)) == (TimeoutException, LeaderNotAvailableException)
    assert world.clock.now == world.options.deadline


def test_ap_07_the_log_is_read_only_once_the_row_says_that_all_have_them():
    world = World(high_watermark=0)
    world.pauses = [lambda: None, lambda: setattr(world, "high_watermark", 2)]
    assert world.send()[0].error is None
    assert world.steps == [*SENT, *[ReadLeaderships, Pause] * 2, *LOOK]


@pytest.mark.parametrize("step", LOOK, ids=lambda step: step.__name__)
def test_ap_07_a_look_that_fails_is_done_again(step):
    """No table needs to change for it: records are acknowledged as soon as the tables can be read."""
    world = World()
    world.fails = {step: [GONE, GONE]}
    assert world.send()[0].error is None
    again = [*LOOK[: LOOK.index(step) + 1], Pause]
    assert world.steps == [*SENT, *again * 2, *LOOK]


@pytest.mark.parametrize("step", LOOK, ids=lambda step: step.__name__)
def test_ap_07_a_look_that_always_fails_is_the_cause_of_the_time_out(step):
    world = World()
    world.fails = {step: [GONE] * 99}
    error = world.send()[0].error
    assert (type(error), error.__cause__) == (TimeoutException, GONE)


@pytest.mark.parametrize("fails", [False, True])
def test_ap_07_when_the_time_is_over_it_is_asked_who_lacks_what(fails):
    world = World(high_watermark=0)
    world.fails = {ReadReplicas: [GONE] * fails}
    error = world.send()[0].error
    assert world.steps[-2:] == [ReadLeaderships, ReadReplicas]
    assert ("broker 2 cannot be read (503)" if fails else "all have them") in str(error)


def lead_without_them(world, epoch=1):
    """Broker 2 leads. It lacks the records and has others at their offsets."""
    world.log = chained_log(header(0, 1, epoch, f"others {epoch}"), header(2, 3, epoch), role=Role(epoch, LEADER))
    world.lead(2, epoch)
    world.high_watermark = 4


def test_ap_07_what_a_new_leader_has_not_is_sent_to_it_again():
    world = World(high_watermark=0)
    world.pauses = [lambda: lead_without_them(world)]
    answer = world.send()[0]
    assert (answer.error, answer.base_offset, answer.leader_epoch) == (None, 2, 1)
    assert world.steps == [*SENT, ReadLeaderships, Pause, ReadLeaderships, *SENT, Pause, *LOOK]
    assert [(r.leader_epoch, r.base_sequence) for r in world.requests] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("log_start", [0, 5])
def test_ap_07_a_topic_that_was_made_again_has_none_of_the_records(log_start):
    """The records are sent again, whatever the new topic has or has deleted at their offsets."""
    world = World(high_watermark=0)

    def make_again():
        world.registrations[0] = dataclasses.replace(world.registrations[0], topic_id="made again")
        world.log = chained_log(header(0, 4), header(5, 6), role=Role(0, LEADER))
        world.log.start_at(log_start)
        world.high_watermark = 7

    world.pauses = [make_again]
    answer = world.send()[0]
    assert (answer.error, answer.base_offset, answer.topic_id) == (None, 5, "made again")
    assert [r.topic_id for r in world.requests] == ["id", "made again"]


def test_ap_07_when_the_time_is_over_nothing_is_sent_again():
    world = World(high_watermark=0)
    world.pauses = [*[lambda: None] * (int(SECONDS / POLL) - 1), lambda: lead_without_them(world)]
    assert isinstance(world.send()[0].error, NotLeaderOrFollowerException)
    assert (world.clock.now, world.steps.count(AppendToLeaders)) == (world.options.deadline, 1)


def test_ap_07_a_leader_whose_rows_cannot_be_read_is_waited_for():
    world = World()
    world.unreadable = [GONE, GONE]
    assert world.send()[0].error is None
    assert world.steps == [*SENT, *[ReadLeaderships, Pause] * 2, *LOOK]


FOREIGN = InconsistentClusterIdException("another cluster")


@pytest.mark.parametrize("where", ["rows", "log", "log of the partition"])
def test_ap_07_an_error_of_the_leader_that_cannot_pass_is_told_at_once(where):
    world = World()
    match where:
        case "rows":
            world.unreadable = [FOREIGN]
        case "log":
            world.fails = {ReadLeaderLogs: [FOREIGN]}
        case "log of the partition":
            world.logs = {world.registrations[0].topic_id_partition: FOREIGN}
    assert world.send()[0].error is FOREIGN
    assert Pause not in world.steps


def test_ap_07_a_log_that_cannot_be_read_of_one_partition_holds_up_no_other():
    world = World(partitions=(0, 1))
    world.logs = {world.registrations[1].topic_id_partition: GONE}
    world.pauses = [lambda: world.logs.clear()]
    assert [answer.error for answer in world.send().values()] == [None, None]
    assert world.steps == [*SENT, *LOOK, Pause, *LOOK]


@pytest.mark.parametrize(
    ("retries", "grows", "error", "seconds"),
    [
        (9, True, None, 2 * POLL),
        (9, False, "NotEnoughReplicasAfterAppendException", SECONDS),
        (0, True, "NotEnoughReplicasAfterAppendException", POLL),
    ],
    ids=["it grows in time", "it does not", "nothing is tried again"],
)
def test_ap_07_what_too_small_an_isr_has_is_acknowledged_once_the_isr_grows(retries, grows, error, seconds):
    world = World(retries=retries, high_watermark=0)
    began_at = world.clock.now

    def becomes(isr, high_watermark=2):
        world.registrations[0] = dataclasses.replace(world.registrations[0], isr=isr)
        world.high_watermark = high_watermark

    world.pauses = [lambda: becomes((1,)), *([lambda: becomes((1, 2))] if grows else [])]
    answer = world.send()[0]
    assert (answer.error and answer.error.name) == error
    assert (world.clock.now - began_at, len(world.requests)) == (seconds, 1)


def test_ap_07_without_retries_it_is_an_error():
    world = World(retries=0, high_watermark=0)
    world.pauses = [lambda: lead_without_them(world)]
    answer = world.send()[0]
    assert isinstance(answer.error, NotLeaderOrFollowerException)
    assert (answer.base_offset, world.steps.count(AppendToLeaders)) == (0, 1)


@pytest.mark.parametrize("failed", [0, 1])
def test_ap_07_retries_count_over_the_whole_send(failed):
    """Those before the first append that succeeds, and those to each new leader that lacks the records."""
    world = World(retries=2, high_watermark=0)
    world.fails = {AppendToLeaders: [GONE] * failed}

    def lead_anew():
        lead_without_them(world, world.registrations[0].leader_epoch + 1)

    world.pauses = [*[lambda: None] * failed, *[lead_anew] * 9]
    answer = world.send()[0]
    assert isinstance(answer.error, NotLeaderOrFollowerException)
    assert world.steps.count(AppendToLeaders) == 3
    assert world.clock.now < world.options.deadline


def test_ap_07_a_retry_that_fails_counts_and_the_next_one_waits_its_time():
    world = World(retries=2, high_watermark=0)

    def lead_and_fail():
        lead_without_them(world)
        world.fails = {AppendToLeaders: [GONE] * 9}

    world.pauses = [lead_and_fail]
    answer = world.send()[0]
    assert isinstance(answer.error, NotLeaderOrFollowerException)
    assert (world.steps.count(AppendToLeaders), world.backoffs) == (3, [False, True, True])


def test_ap_07_to_wait_for_the_metadata_before_sending_again_is_no_retry():
    world = World(retries=1, high_watermark=0)

    def lead_and_hide():
        lead_without_them(world)
        world.fails = {ReadTopic: [GONE] * 3}

    world.pauses = [lead_and_hide]
    assert world.send()[0].error is None
    assert (world.steps.count(AppendToLeaders), world.backoffs) == (2, [False] * 5)


def test_ap_07_each_partition_has_its_own_retries():
    world = World(retries=1, partitions=(0, 1), high_watermark=0)

    def lead_both():
        lead_without_them(world)
        world.registrations[1] = dataclasses.replace(world.registrations[1], leader=2, leader_epoch=1)

    world.pauses = [lead_both]
    assert [answer.error for answer in world.send().values()] == [None, None]
    assert [request.partition for request in world.requests] == [0, 1, 0, 1]


@pytest.mark.parametrize(("error", "attempts"), [(GONE, 3), (ProducerFencedException("a newer one"), 2)], ids=repr)
def test_ap_07_an_error_of_sending_again_counts_if_it_cannot_pass(error, attempts):
    world = World(high_watermark=0)

    def lead_and_fail():
        lead_without_them(world)
        world.fails = {AppendToLeaders: [error]}

    world.pauses = [lead_and_fail]
    answer = world.send()[0]
    assert answer.error is (None if error is GONE else error)
    assert world.steps.count(AppendToLeaders) == attempts
