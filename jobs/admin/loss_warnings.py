"""Says before an unclean election and before a deletion which committed records they lose."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from lakelog.jobs.admin.cluster_snapshot import context_now, live_brokers
from lakelog.jobs.admin.heartbeats import observe_brokers
from lakelog.jobs.admin.prediction import Forecast, Loss
from lakelog.jobs.admin.published_rows import Rows, rows_of, rows_of_partition
from lakelog.jobs.cli.console import say
from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.predict import elect_uncleanly
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_loss import missing_records
from lakelog.replication.storage.cluster import Cluster

_SHOWN = 10  # partitions, those that lose most


class ElectionLoss(NamedTuple):
    """An unclean election: the partition, who leads then, and the committed records that this loses; None if no row
    tells."""

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
    """Says what unclean elections of these partitions lose, by name; None: of all. It lists those that lose most. What
    cannot be read does not keep anybody from the election."""
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
    """The unclean elections of partitions that have no leader, of those that were chosen."""
    live = live_brokers(observe_brokers(cluster))
    context = Forecast(context_now(cluster, live), Loss()).prediction.settled
    leaders = {context.partitions[key]: leader for key, leader in elect_uncleanly(context).items()}
    wanted = {r: leader for r, leader in leaders.items() if chosen is None or r.name in chosen}
    rows, without_log = _rows(cluster, wanted), Decision(context, "what-if").without_log
    return [ElectionLoss(r, leader, _committed(r, rows, {leader}, without_log(r))) for r, leader in wanted.items()]


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
