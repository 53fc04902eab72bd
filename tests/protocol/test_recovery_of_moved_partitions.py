"""Random histories of a partition that is reassigned, under a `min.insync.replicas` that changes: no acknowledged
record may get lost unnoticed when the cluster root is made again."""

import random
from dataclasses import replace

import pytest

from lakelog.replication.protocol import partition_recovery as recovery
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.partition_log import STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_recovery import LeaderChoice
from lakelog.replication.protocol.reassignment import (
    begin_reassignment,
    is_reassigning,
    may_complete,
    original_replicas,
    target_replicas,
)
from tests.protocol.partition_histories import History, P, end_of

HISTORIES = 3000


class MovingHistory(History):
    """A history with reassignments. `changes_min_isr`: whether `min.insync.replicas` changes; then the copies are those
    of the last moment."""

    changes_min_isr = False

    def __post_init__(self):
        super().__post_init__()
        ids = tuple(range(1, self.dice.randint(1, self.size) + 1))
        self.configured = self.min_isr
        self.metadata = replace(self.metadata, replicas=ids, isr=ids)
        self.copy(0)

    def run(self, steps):
        often = [self.append, self.take_up, self.truncate, self.fetch, self.publish, self.lead] * 6 + [self.sync] * 8
        rarely = [self.elect, self.begin, self.begin, self.die, *[self.live] * 3, self.copy, self.lose_log]
        rarely += [self.reassign, *[self.settle] * 6, *[self.change_min_isr] * self.changes_min_isr]
        for _ in range(steps):
            self.is_calm ^= self.dice.random() < 0.05
            self.min_isr = effective_min_isr(self.configured, len(self.metadata.replicas))
            self.dice.choice(often + rarely)(self.dice.choice(list(self.nodes)))
        if self.changes_min_isr or self.dice.random() < 0.5:
            self.copy(0)

    def change_min_isr(self, _):
        self.configured = self.dice.choice([1, 2, 2, 3])

    def copy(self, _):
        self.known, self.known_min_isr = self.metadata, self.configured

    def _put(self, registration):
        self.metadata = replace(registration, leader_epoch=self.metadata.leader_epoch + 1)

    def reassign(self, _):
        target = self.dice.sample(sorted(self.nodes), self.dice.randint(1, self.size))
        moving = begin_reassignment(self.metadata, target)
        if not is_reassigning(self.metadata) and is_reassigning(moving):
            self._put(moving)

    def settle(self, _):
        """The reassignment is completed, or cancelled."""
        now = self.metadata
        is_cancelled = not may_complete(now) and self.dice.random() < 0.2
        if not is_reassigning(now) or not (is_cancelled or may_complete(now)):
            return
        replicas = original_replicas(now) if is_cancelled else target_replicas(now)
        isr = tuple(b for b in now.isr if b in replicas)
        leaders = [now.leader] if now.leader in replicas else [b for b in isr if self.nodes[b].alive]
        if leaders:
            settled = replace(now, replicas=replicas, isr=isr, leader=leaders[0], isr_epochs=self._epochs(isr))
            self._put(replace(settled, adding_replicas=(), removing_replicas=()))

    def take_up(self, broker):
        node, epoch = self.nodes[broker], self.metadata.leader_epoch
        if broker in self.metadata.replicas:
            super().take_up(broker)
        elif node.alive and node.log.role.kind != STOPPED and node.log.role.leader_epoch < epoch:
            node.log = PartitionLog(start_chain=genesis(P), role=Role(epoch, STOPPED))
            node.row, node.high_watermark, node.state = None, 0, "Truncating"

    def publish(self, broker):
        if self.nodes[broker].log.role.kind != STOPPED:
            super().publish(broker)

    def lead(self, broker):
        if broker in self.metadata.replicas:
            super().lead(broker)

    def lose_log(self, broker):
        if broker in self.metadata.replicas:
            super().lose_log(broker)

    def _counts(self, broker, log):
        return broker in self.metadata.replicas and super()._counts(broker, log)


def an_end(seed):
    dice = random.Random(seed)
    history = MovingHistory(dice, dice.choice([3, 3, 4, 5]), dice.choice([1, 2, 2, 3]))
    history.changes_min_isr = dice.random() < 0.5
    history.run(dice.randint(20, 300))
    gone = dice.sample(sorted(history.nodes), min(history.size - 1, dice.choice([0, 0, 1, 1, history.configured - 1])))
    return end_of(history, history.known_min_isr, gone)


@pytest.fixture(scope="module")
def ends():
    return [an_end(seed) for seed in range(HISTORIES)]


def losses(ends):
    """How often committed records were lost unnoticed, and how often something was said to be in danger."""
    lost = in_danger = 0
    for end in ends:
        if recovery.is_gone(end.known, end.found):
            lost += bool(end.committed)
            continue
        is_known = end.is_whole or not recovery.has_changed_since(end.known, end.found)
        min_isr = recovery.least_min_isr(end.known, end.found, end.min_isr)
        now = recovery.assigned_now(end.known, end.found)
        made = recovery.recover_partition(now, end.found, min_isr, {}, 1, has_all_replicas=is_known)
        lost += made.loss is None and end.has_lost(made)
        in_danger += made.loss is not None
    return lost, in_danger


def test_no_committed_record_is_lost_unnoticed_when_partitions_move(ends):
    lost, in_danger = losses(ends)
    assert lost == 0
    assert in_danger < HISTORIES / 2  # it is not always said


def only_counts(*known):
    absent, min_isr, choice = known[2:]
    return ("all" if choice is None or len(absent) >= min_isr else None), ""


def by_copy(known, _, min_insync_replicas):
    return effective_min_isr(min_insync_replicas, len(known.replicas))


SABOTAGES = {
    "to count is enough": {"what_may_be_lost": only_counts},
    "the copy has the last replicas": {"least_min_isr": by_copy, "has_changed_since": lambda *_: False},
    "nobody comes": {"assigned_now": lambda known, _: known},
    "stopped replicas are gone": {
        "is_gone": lambda known, found: any(found[b].log.role.kind == STOPPED for b in known.replicas if b in found)
    },
    "the longest log leads": {
        "choose": lambda replicas: max(
            (LeaderChoice(r.broker_id, (r.broker_id,), r.log.log_end_offset) for r in replicas if r.is_there),
            key=lambda choice: choice.log_end_offset, default=None,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_histories_find_each_wrong_rule(name, monkeypatch, ends):
    monkeypatch.setattr(recovery, "told_as_committed", lambda _: 0)  # else rows tell of most losses afterwards
    for rule, wrong in SABOTAGES[name].items():
        monkeypatch.setattr(recovery, rule, wrong)
    assert losses(ends)[0] > 0
