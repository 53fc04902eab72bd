"""Five past bugs that lost or doubled acknowledged records, each with the directed history that exposes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from lakelog.replication.protocol.append import Appended, Digests, PartitionAppend, place
from lakelog.replication.protocol.compaction import Compaction, LogFile, size_class
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.producer_identity import SendSequences
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.protocol.replica_rows import replica_row
from lakelog.replication.protocol.rounds.broker_rounds import BrokerRules
from lakelog.replication.protocol.rounds.role_round import take_up_roles
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.verification.simulation.stack.breaks import StackSabotage, at
from lakelog.verification.simulation.stack.one_thread import InlineFetcher
from lakelog.verification.simulation.stack.schedules import rare

_settle, _place, _publish = SendSequences.settle, place, ReplicaManager.publish


def _succeeds(send: SendSequences, _succeeded: Collection[int]) -> None:
    """After a send that raised, the next send uses the same producer id and sequence numbers."""
    _settle(send, send._places)


def _leads_on(_broker: int, _epoch: int, metadata: Mapping[Any, Any]) -> dict[Any, Any]:
    """A new process leads the partitions for which an older process was elected."""
    return dict(metadata)


def _goes_on(manager: ReplicaManager) -> None:
    """A broker's fetchers do a round while another thread of the broker publishes, unless a fetcher publishes."""
    fetchers = [f for f in manager._fetchers.fetchers().values() if isinstance(f, InlineFetcher)]
    if not any(fetcher.is_fetching for fetcher in fetchers):
        for fetcher in fetchers:
            fetcher.fetch_once()


def _is_overtaken(manager: ReplicaManager, why: str, may_wait: bool = False) -> None:
    """The shipped `publish`, after the fetchers' rounds: its rows are correct."""
    _goes_on(manager)
    _publish(manager, why, may_wait)


def _reads_the_log_first(manager: ReplicaManager, why: str, _may_wait: bool = False) -> None:
    """Reads the log, lets other threads of the broker run, and then reads the fetch states."""
    state = manager._log.current()
    _goes_on(manager)
    told, fetched = manager._table.replicas, manager._fetchers.fetch_states()
    rows = (
        replica_row(
            manager._broker_id, manager._broker_epoch, h, state.known(p), fetched.get(p), told.get(p), state.version
        )
        for p, h in manager._hosted.items()
    )  # fmt: skip
    manager._table.publish(rows, why)


def _appends_all_again(log: PartitionLog, request: PartitionAppend, digests: Digests) -> Appended:
    """A leader that has only the first records of a send appends all of them."""
    found = _place(log, request, digests)
    return Appended(log.log_end_offset, log.log_end_offset + request.records - 1) if found.known else found


def _without_progress(
    files: Collection[LogFile], segment_bytes: int, min_files: int, _max_bytes: int
) -> Compaction | None:
    """Chooses files by their compressed size, and packs them by the size of their records, which may be far larger."""
    small = [file for file in files if size_class(file.size, segment_bytes) >= 0]
    if len(small) < min_files:
        return None
    packs: list[list[tuple[LogFile, BatchHeader]]] = []
    sizes: Counter[int] = Counter()
    placed = ((file, header) for file in small for header in file.headers)
    for file, header in sorted(placed, key=lambda item: (item[1].topic_id_partition, item[1].base_offset)):
        is_new = not packs or packs[-1][-1][1].topic_id_partition != header.topic_id_partition
        if is_new or sizes[len(packs)] + header.bytes > segment_bytes:
            packs.append([])
        packs[-1].append((file, header))
        sizes[len(packs)] += header.bytes
    return Compaction(tuple(small), tuple(packs))


# The counterpart of `_reads_the_log_first`: shipped code, while the broker's fetchers run.
FETCHER_GOES_ON = at(("server.replica_manager.ReplicaManager.publish", _is_overtaken))

CRITICALS: dict[str, StackSabotage] = {
    "a_send_keeps_its_identity": StackSabotage(
        "after a send that raised, the next one uses the same sequence numbers",
        at(
            ("protocol.producer_identity.SendSequences.settle", _succeeds),
            ("clients.producer.Producer._forget_sequences", lambda _: None),
        ), rare.interrupted_send,
    ),
    "a_new_process_leads_on": StackSabotage(
        "a process leads where an older one was elected, with a log that has lost its end",
        at(
            ("server.replica_manager.take_up_roles",
             partial(take_up_roles, rules=BrokerRules(given_to=_leads_on))),
            ("protocol.log_matching.leader_lost_its_end", lambda *_: False),  # else followers keep the records
        ), rare.leader_without_its_end,
    ),
    "the_log_is_read_first": StackSabotage(
        "a row is built from a log that was read before the fetch states",
        at(("server.replica_manager.ReplicaManager.publish", _reads_the_log_first)),
        rare.tail_of_a_deposed_leader,
    ),
    "all_is_appended_again": StackSabotage(
        "a leader that has the first records of a send appends all of them again",
        at(("storage.log.append.place", _appends_all_again)), rare.send_that_was_replicated_in_part,
    ),
    "compaction_makes_no_progress": StackSabotage(
        "compaction packs files by their compressed sizes",
        at(("storage.log.compaction.plan_compaction", _without_progress)),
        rare.records_that_compress_well,
    ),
}  # fmt: skip
