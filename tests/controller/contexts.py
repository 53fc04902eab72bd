"""Controller contexts built by hand, and a controller without tables that decides and keeps its decisions."""

from dataclasses import replace

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_context import BrokerView, ControllerContext, PartitionAndReplica
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.events import EVENT_OF_REQUEST, BrokerChange, ControlledShutdown, ControllerChange
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from tests.registrations import joined

EPOCH, VERSION = 4, 40  # the controller's epoch, and the metadata's version when it began
NOBODY = -1


def tp(number=0, topic="flights"):
    return TopicIdPartition(f"{topic}-id", number)


def replica(broker, number=0, topic="flights"):
    return PartitionAndReplica(tp(number, topic), broker)


def partition(replicas=(1, 2, 3), leader=None, isr=None, number=0, topic="flights", adding=(), removing=()):
    """A partition. By default the first replica leads and all are in sync. Its epochs are 5 and 7."""
    leader, isr = replicas[0] if leader is None else leader, replicas if isr is None else isr
    return joined(PartitionRegistration(topic, f"{topic}-id", number, replicas, leader, 5, isr, 7, 3, adding, removing))


def views(live=(1, 2, 3), shutting_down=()):
    return {broker: BrokerView(1, broker in shutting_down, VERSION - 1) for broker in live}


def context(
    *partitions, live=(1, 2, 3), shutting_down=(), deleting=(), configs=None, registered=(), **config
):  # fmt: skip
    """A context as after a failover, with the initial states of both state machines."""
    names = sorted({registration.topic for registration in partitions})
    topics = {
        name: Topic(name, f"{name}-id", sum(r.topic == name for r in partitions), configs or {}, name in deleting)
        for name in names
    }
    known = {registration.topic_id_partition: registration for registration in partitions}
    brokers, there = views(live, shutting_down), frozenset(registered)
    found = ControllerContext(
        EPOCH, Config(**config).with_sessions(is_local=True), brokers, topics, known, registered=there
    )
    return found.started(VERSION)


def changed(decision):
    """Leader and ISR of each changed partition."""
    return {f"{r.topic}-{r.partition}": (r.leader, r.isr) for r in decision.changed.values()}


def errors(decision):
    return {name: outcome.error for name, outcome in decision.outcomes.items()}


def request(kind, request_id="request-1", **arguments):
    return EVENT_OF_REQUEST[kind](AdminRequest(request_id, kind, arguments))


def check(decision):
    """Checks that hold for every decision: one change a row, valid rows, and only allowed state changes."""
    assert [change for change in decision.state_changes if not change.is_valid] == []
    for key, after in decision.changed.items():
        before = decision.context.partitions.get(key)
        assert after.topic_id_partition == key
        assert after.leader in (*after.isr, NOBODY, -2), after
        assert set(after.isr) <= set(after.replicas), after
        if before is not None:
            epochs = (after.leader_epoch - before.leader_epoch, after.partition_epoch - before.partition_epoch)
            is_fence = replace(after, partition_epoch=before.partition_epoch) == before
            assert epochs == ((0, 1) if is_fence else (1, 1)), after
            assert is_fence or after.controller_epoch == decision.context.controller_epoch, after
            assert not before.isr or after.isr, f"the ISR of {key} became empty"


class Active:
    """An active controller: processes events, keeps the results, and checks each decision."""

    def __init__(self, context):
        self.context = context
        self.version = VERSION

    def process(self, event):
        decision = decide(self.context, event)
        check(decision)
        self.version += 1
        self.context = decision.applied(self.version)
        return decision

    def ask(self, kind, request_id="request-1", **arguments):
        return self.process(request(kind, request_id, **arguments))

    def brokers(self, gone=(), come=(), bounced=(), lost=(), thawed=()):
        """Brokers go, come back, or begin a new epoch, some of them without their logs: all seen in one poll.
        Who is thawed is back as the process that it was."""
        before = self.context.brokers
        now = {broker: view for broker, view in before.items() if broker not in gone}
        begun = {broker: before[broker].broker_epoch + 1 if broker in before else 2 for broker in (*come, *bounced)}
        now |= {broker: BrokerView(epoch, log_epoch=epoch * (broker in lost)) for broker, epoch in begun.items()}
        now |= {broker: BrokerView(1) for broker in thawed}
        self.context = replace(self.context, brokers=now)
        return self.process(BrokerChange(before))

    def shut_down(self, *brokers):
        """These brokers ask in one poll for a controlled shutdown, and are served one after the other."""
        now = self.context.brokers
        asked = {broker: replace(now[broker], shutting_down=True) for broker in brokers}
        self.context = replace(self.context, brokers={**now, **asked})
        return [self.process(ControlledShutdown(broker)) for broker in brokers]

    def has_applied(self, *brokers, version=None):
        """These brokers have applied the current metadata."""
        told = {b: replace(self.context.brokers[b], metadata_version=version or self.version) for b in brokers}
        self.context = replace(self.context, brokers={**self.context.brokers, **told})

    def isr(self, *isr, number=0, topic="flights"):
        """The leader changes an ISR."""
        known, key = self.context.partitions, tp(number, topic)
        epochs = {b: self.context.brokers[b].broker_epoch for b in isr if b in self.context.brokers}
        epochs |= {b: epoch for b, epoch in known[key].isr_epochs.items() if b in isr}
        after = replace(known[key], isr=isr, partition_epoch=known[key].partition_epoch + 1, isr_epochs=epochs)
        self.context = self.context.with_partitions({**known, key: after})

    def fail_over(self, before=None):
        """Elects another controller, which knows only rows. `before`: the brokers of its last poll, if not as now."""
        old = self.context
        rows = ControllerContext(old.controller_epoch + 1, old.config, old.brokers, old.topics, old.partitions)
        self.context = rows.started(self.version)
        return self.process(ControllerChange(old.brokers if before is None else before))

    def row(self, number=0, topic="flights"):
        return self.context.partitions[tp(number, topic)]

    def state(self, broker, number=0, topic="flights"):
        return self.context.replica_states.get(replica(broker, number, topic), "NonExistentReplica")
