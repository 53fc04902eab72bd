"""Says before an unclean election and before a deletion which committed records they lose, and before a reassignment
who leads after it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_snapshot import context_now, live_brokers
from lakelog.jobs.admin.heartbeats import SeenBroker, observe_brokers
from lakelog.jobs.admin.prediction import Forecast, Loss
from lakelog.jobs.admin.published_rows import Rows, rows_of, rows_of_partition
from lakelog.jobs.cli.console import say
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.predict import elect_uncleanly, predict_reassignments
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_loss import missing_records
from lakelog.replication.storage.cluster import Cluster

_SHOWN = 10  # partitions, those that lose most


class ElectionLoss(NamedTuple):
    """An unclean election: the partition, its next leader, and the committed records that it loses; None if no row
    shows them."""

    registration: PartitionRegistration
    leader: int
    records: range | None

    def __str__(self) -> str:
        """In words."""
        name, records = self.registration.name, self.records
        if records is None:
            return f"{name}: broker {self.leader} leads; what is lost is not known, as the last leader's rows are away"
        if not records:
            return f"{name}: broker {self.leader} leads, and no committed record is lost"
        return (
            f"{name}: broker {self.leader} leads, and {len(records)} committed records are lost, "
            f"from offset {records.start} on"
        )


def say_what_unclean_elections_lose(cluster: Cluster, chosen: Collection[str] | None) -> None:
    """Says which records unclean elections of these partitions lose. `chosen`: their names; None: all. It lists those
    that lose most. An error of a read does not prevent the election."""
    try:
        found = unclean_elections(cluster, chosen)
    except LakelogException as error:
        say(f"lakelog: what is lost is not known: {error.name}: {error}")
        return
    found.sort(key=lambda loss: (-(2**63 if loss.records is None else len(loss.records)), loss.registration.name))
    for loss in found[:_SHOWN]:
        say(str(loss))
    if len(found) > _SHOWN:
        lost = sum(len(loss.records or ()) for loss in found)
        say(f"… and {len(found) - _SHOWN} more; all {len(found)} partitions lose {lost} committed records")


def unclean_elections(cluster: Cluster, chosen: Collection[str] | None) -> list[ElectionLoss]:
    """The unclean elections of those of the chosen partitions that have no leader."""
    live = live_brokers(observe_brokers(cluster))
    context = Forecast(context_now(cluster, live), Loss()).prediction.settled
    leaders = {context.partitions[key]: leader for key, leader in elect_uncleanly(context).items()}
    wanted = {r: leader for r, leader in leaders.items() if chosen is None or r.name in chosen}
    rows, without_log = _rows(cluster, wanted), Decision(context, "what-if").without_log
    return [ElectionLoss(r, leader, _committed(r, rows, {leader}, without_log(r))) for r, leader in wanted.items()]


def say_what_reassignments_do(
    cluster: Cluster, targets: Mapping[str, Sequence[int]], seen: Mapping[int, SeenBroker] | None = None
) -> None:  # fmt: skip
    """Says which partitions get another leader once they have moved to these brokers, and which moves cannot end.
    `seen`: the brokers, if `cluster` has just observed them, which takes half a session time-out if one is dead."""
    live = live_brokers(observe_brokers(cluster) if seen is None else seen)
    found = predict_reassignments(context_now(cluster, live), targets)
    wanted = sorted((r for r in found.settled.partitions.values() if r.name in targets), key=lambda r: r.name)
    pairs = [(r, then) for r in wanted if (then := found.then.partitions.get(r.topic_id_partition)) is not None]
    moved = [f"{r.name} from {_leader(r)} to {_leader(then)}" for r, then in pairs if r.leader != then.leader]
    stuck = [then.name for _, then in pairs if is_reassigning(then)]
    say(f"Leaders after the moves: {first_names(moved, _SHOWN)}" if moved else "The moves change no leader.")
    if stuck:
        say(f"lakelog: warning: moves that wait for a leader or a live replica: {first_names(stuck, _SHOWN)}")


def _leader(registration: PartitionRegistration) -> str:
    return "no leader" if registration.leader < 0 else f"broker {registration.leader}"


def say_what_a_deletion_loses(cluster: Cluster, topic: str) -> None:
    """Says how many committed records a topic has."""
    cluster.metadata.refresh()
    partitions = [r for r in cluster.metadata.partitions.values() if r.topic == topic]
    rows = _rows(cluster, partitions)
    found = [_committed(r, rows, (), ()) for r in partitions]
    unknown = found.count(None)
    more = f", and those of {unknown} partitions whose leaders' rows cannot be read" if unknown else ""
    say(f"{topic}: {sum(len(records or ()) for records in found)} committed records are lost{more}")


def _rows(cluster: Cluster, partitions: Iterable[PartitionRegistration]) -> dict[int, Rows]:
    brokers = {broker for registration in partitions for broker in registration.replicas}
    known = cluster.refresh_brokers()
    return rows_of(cluster, [known[broker] for broker in sorted(brokers & known.keys())])


def _committed(
    of: PartitionRegistration, rows: Mapping[int, Rows], holders: Collection[int], without_log: Collection[int]
) -> range | None:
    found = missing_records(of, rows_of_partition(of, rows), holders, without_log)
    return None if found is None else found.committed
