"""Random histories of a partition with clean elections, of which some roots are lost in the end."""

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lakelog.replication.protocol.chain import genesis, linked
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_recovery import FoundReplica, fork_offset
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus

P = TopicIdPartition("id", 0)


def batch(log, epoch, digest):
    """The next batch of a log: one record."""
    end = log.log_end_offset
    header = BatchHeader("t", P.topic_id, P.partition, epoch, end, end, 0, 1, digest=str(digest))
    return linked(header, log.log_end.chain)


def a_row(broker, log, epoch, state="Fetching", high_watermark=0, role=FOLLOWER_ROLE):
    return ReplicaStatus(
        "t", P.topic_id, P.partition, broker, 1, epoch, role, state, log.log_start_offset, log.log_end_offset,
        high_watermark, log.lineage, None, 1, chain=log.log_end.chain,
    )  # fmt: skip


@dataclass
class Node:
    """A broker's replica in a history: its log, its published row, its HW, and whether it is alive."""

    log: PartitionLog
    row: ReplicaStatus | None = None
    state: str = "Truncating"
    high_watermark: int = 0
    alive: bool = True
    broker_epoch: int = 1
    log_epoch: int = 1


@dataclass
class History:
    """A random history of one partition. Elections are clean, and a record counts as committed when the leader says so
    in its row: its high watermark is the least LEO of the ISR, if that has `min_isr` members."""

    dice: random.Random
    size: int
    min_isr: int
    nodes: dict[int, Node] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)  # the chains of all committed batches
    count: int = 0
    is_calm: bool = False  # nobody appends, but for a leader that begins

    def __post_init__(self):
        ids = tuple(range(1, self.size + 1))
        self.nodes = {b: Node(PartitionLog(start_chain=genesis(P), role=Role(-1, STOPPED))) for b in ids}
        self.known = self.metadata = PartitionRegistration("t", P.topic_id, 0, ids, 1, 1, ids)

    def run(self, steps):
        often = [self.append, self.take_up, self.truncate, self.fetch, self.publish, self.lead] * 6 + [self.sync] * 8
        rarely = [self.elect, self.begin, self.begin, self.die, *[self.live] * 3, self.copy, self.lose_log]
        moves = often + rarely
        for _ in range(steps):
            self.is_calm ^= self.dice.random() < 0.05
            self.dice.choice(moves)(self.dice.choice(list(self.nodes)))
        self.known = self.metadata if self.dice.random() < 0.5 else self.known

    def leads(self, broker):
        return self.nodes[broker].log.role.is_leader and self.nodes[broker].alive

    def append(self, broker):
        if self.leads(broker) and not self.is_calm:  # also a zombie
            self.count += 1
            log = self.nodes[broker].log
            log.add(batch(log, log.role.leader_epoch, self.count), f"s{self.count}-{broker}")

    def take_up(self, broker):
        node, epoch = self.nodes[broker], self.metadata.leader_epoch
        if node.alive and node.log.role.leader_epoch < epoch:
            leads = self.metadata.leader == broker
            node.log.role = Role(epoch, LEADER if leads else FOLLOWER)
            node.log.epoch_start = node.log.log_end_offset
            node.state = "Fetching" if leads else "Truncating"
            self.publish(broker)

    def publish(self, broker):
        node = self.nodes[broker]
        if node.alive and node.log.role.leader_epoch >= 0:
            role = node.log.role
            node.row = a_row(
                broker, node.log, role.leader_epoch, node.state, min(node.high_watermark, node.log.log_end_offset),
                LEADER_ROLE if role.is_leader else FOLLOWER_ROLE,
            )  # fmt: skip

    def _leader_of(self, broker):
        """The leader that a follower follows, if both have taken up their roles."""
        node, leader = self.nodes[broker], self.metadata.leader
        is_theirs = node.log.role == (self.metadata.leader_epoch, FOLLOWER) and leader in self.nodes
        if node.alive and is_theirs and self.nodes[leader].log.role == (self.metadata.leader_epoch, LEADER):
            return self.nodes[leader]  # its tables outlive its process
        return None

    def truncate(self, broker):
        node, leader = self.nodes[broker], self._leader_of(broker)
        if leader is not None and node.state == "Truncating":
            fork = fork_offset(node.log, leader.log)
            end = min(leader.log.log_end_offset, node.log.log_end_offset) if fork is None else fork
            node.log.drop({placed.segment for placed in node.log.batches if placed.base_offset >= end})
            node.high_watermark = min(node.high_watermark, end)
            node.state = "Fetching"

    def fetch(self, broker):
        node, leader = self.nodes[broker], self._leader_of(broker)
        if leader is not None and node.state == "Fetching":
            for placed in leader.log.batches_between(node.log.log_end_offset, leader.log.log_end_offset)[:2]:
                self.count += 1
                node.log.add(placed.header, f"s{self.count}-{broker}")
            told = leader.row.high_watermark if leader.row is not None else 0
            node.high_watermark = max(node.high_watermark, min(told, node.log.log_end_offset))

    def sync(self, broker):
        for step in (self.take_up, self.truncate, self.fetch, self.publish):
            step(broker)

    def lead(self, broker):
        """A round of the leader: it changes the ISR, and raises the HW."""
        node, now = self.nodes[broker], self.metadata
        if not node.alive or now.leader != broker or node.log.role != (now.leader_epoch, LEADER):
            return
        ends = {b: self.nodes[b].row.log_end_offset for b in self.nodes if b != broker and self._counts(b, node.log)}
        shrunk = tuple(b for b in now.isr if b == broker or ends.get(b, -1) >= node.log.log_end_offset)
        least = max(node.high_watermark, node.log.epoch_start)
        grown = (*now.isr, *(b for b, end in ends.items() if b not in now.isr and end >= least))
        isr = self.dice.choice([now.isr, now.isr, shrunk, *[grown] * 4])
        self.metadata = now = replace(now, isr=isr, isr_epochs=self._epochs(isr))
        if len(isr) >= self.min_isr and all(b == broker or b in ends for b in isr):
            least = min([node.log.log_end_offset, *(ends[b] for b in isr if b != broker)])
            node.high_watermark = max(node.high_watermark, least)
            self.publish(broker)
            chains = [placed.header.chain for placed in node.log.batches[: node.high_watermark]]
            assert chains[: len(self.committed)] == self.committed[: len(chains)], "the history itself is wrong"
            self.committed = max(chains, self.committed, key=len)

    def _counts(self, broker, log):
        row = self.nodes[broker].row
        is_current = row is not None and row.leader_epoch == self.metadata.leader_epoch and row.state == "Fetching"
        return is_current and log.chain_at(row.log_end_offset) == row.chain

    def elect(self, _):
        live = [b for b in self.metadata.isr if self.nodes[b].alive]
        if live:
            self._elect(self.dice.choice(live), live)

    def begin(self, _):
        """A new leader appends before anybody follows it."""
        self.elect(_)
        self.take_up(self.metadata.leader)
        was_calm, self.is_calm = self.is_calm, False
        for _ in range(self.dice.randint(0, 3)):
            self.append(self.metadata.leader)
        self.is_calm = was_calm

    def _elect(self, leader, isr):
        epoch = self.metadata.leader_epoch + 1
        self.metadata = replace(
            self.metadata, leader=leader, isr=tuple(isr), leader_epoch=epoch, isr_epochs=self._epochs(isr)
        )

    def _epochs(self, isr):
        return {b: self.nodes[b].broker_epoch for b in isr}

    def die(self, broker):
        self.nodes[broker].alive = self.dice.random() < 0.5

    def live(self, broker):
        self.nodes[broker].alive = True

    def copy(self, _):
        self.known = self.metadata

    def lose_log(self, broker):
        """A broker comes back with an empty log: the controller has taken it out of the ISR."""
        others = [b for b in self.metadata.isr if b != broker and self.nodes[b].alive]
        if self.dice.random() < 0.2 and others:
            self._elect(self.dice.choice(others), others)
            log = PartitionLog(start_chain=genesis(P), role=Role(self.metadata.leader_epoch, FOLLOWER))
            epoch = self.nodes[broker].broker_epoch + 1
            self.nodes[broker] = Node(log, broker_epoch=epoch, log_epoch=epoch)


class End(NamedTuple):
    """The end of a history: the registration that is known of it, the replicas that are left, whether these are all,
    the chains of committed batches, and the `min.insync.replicas` that is known."""

    known: PartitionRegistration
    found: dict[int, FoundReplica]
    is_whole: bool
    committed: list[str]
    min_isr: int

    def has_lost(self, made):
        """Whether a committed record is not in the log of the leader that was chosen."""
        log = self.found[made.choice.leader].log if made.choice else PartitionLog()
        return [placed.header.chain for placed in log.batches][: len(self.committed)] != self.committed


def end_of(history, min_isr, gone):
    """The end of a history without the roots of the brokers that are gone."""
    left = {b: node for b, node in history.nodes.items() if b not in gone}
    found = {b: FoundReplica(b, node.log, node.row, None, node.log_epoch) for b, node in left.items()}
    return End(history.known, found, not gone, history.committed, min_isr)
