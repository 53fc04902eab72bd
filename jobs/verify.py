"""Checks that all replicas of each partition have the same records below the high watermark.

--depth state reads the rows of brokers and the headers of all batches. --depth files also reads every file that the
logs name, and compares its size and its digest with those that were committed. --depth records also reads every record,
and computes the digests of batches anew. The deeper, the more it reads: all bytes of all roots with the last two.

--repair lets brokers fetch wrong records again. It repairs a follower only, where the copy of its leader was found to
be right, and asks before. The follower leaves the ISR before its log is truncated, and joins again when it has caught
up. It says why it leaves the others alone, and what to do.

The exit status is for monitors: 0 if all replicas are equal, 1 if something differs or is broken, 2 for wrong usage. A
replica that is not in sync may be behind. Without --repair it writes nothing.
"""

import argparse
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.heartbeats import observe_brokers
from lakelog.jobs.admin.replica_check import (
    DEPTHS,
    FILES,
    STATE,
    ReplicaCheck,
    ReplicaOf,
    Wrong,
    WrongPart,
    check_replicas,
)
from lakelog.jobs.admin.replica_repair import (
    REPAIRED,
    Repair,
    RepairOutcome,
    RepairPlan,
    carry_out_repairs,
    under_min_isr,
)
from lakelog.jobs.cli.console import FAILED, JSON, OK, Report, Row, confirm, is_interactive, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import FORMS, Invocation, add_dry_run, admin_parser
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.errors import UnknownTopicOrPartitionException
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster

_SHOWN = 10  # names of one finding, lines of one question
_SECONDS = 600
_WOULD = "would be repaired"


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _verify(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("verify", __doc__, FORMS)
    parser.add_argument("--topic", metavar="NAME", help="check only this topic; default: all topics")
    parser.add_argument(
        "--depth", choices=DEPTHS,
        help=f"state: rows and headers; files: also all bytes; records: also all records; default: {STATE}, and "
        f"{FILES} with --repair",
    )  # fmt: skip
    parser.add_argument("--repair", action="store_true", help="let followers fetch wrong records again")
    parser.add_argument("--yes", action="store_true", help="with --repair: do not ask")
    parser.add_argument(
        "--timeout", type=whole_number(0, 86_400), default=_SECONDS, metavar="SECONDS",
        help="with --repair: how long to wait until the repaired replicas are in sync again; the brokers go on by "
        f"themselves after that; default: {_SECONDS}",
    )  # fmt: skip
    add_dry_run(parser)
    return parser


def _verify(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if not args.repair:
        for name in ("yes", "dry_run", "timeout"):
            if getattr(args, name) != parser.get_default(name):
                parser.error(f"--{name.replace('_', '-')} goes with --repair only")
    elif args.depth == STATE:
        parser.error(
            "--repair needs --depth files or records: headers alone do not prove that the leader's copy is right"
        )
    elif not (args.yes or args.dry_run or is_interactive()):
        parser.error("--repair asks before it changes anything, and nobody can answer here: give --yes or --dry-run")
    return verify(args)


class Verified(NamedTuple):
    """The outcome of the verb: the last check, what became of repairs, and those that are possible now."""

    check: ReplicaCheck
    plan: RepairPlan
    repairs: Sequence[RepairOutcome] = ()


def verify(args: argparse.Namespace) -> int:
    """Checks the replicas, and repairs them if asked to; FAILED if anything is wrong in the end."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    invocation = Invocation.of(args.cluster, cluster.root.uri, args.command_config)
    wanted = _wanted(cluster, args.topic)
    check = _checked(cluster, wanted, args.depth or (FILES if args.repair else STATE), args.topic is None)
    done = Verified(check, RepairPlan(check, invocation))
    if args.repair and done.plan.repairs:
        done = _repaired(cluster, done, invocation, args)
    if args.output == JSON:
        Report(value=_object(cluster, done, invocation)).show(JSON)
    else:
        _print(cluster, done, invocation)
    return FAILED if done.check.wrong else OK


def _wanted(cluster: Cluster, topic: str | None) -> set[TopicIdPartition]:
    """Raises UnknownTopicOrPartitionException for a topic that is not there, or is being deleted."""
    cluster.topics.refresh()
    cluster.metadata.refresh()
    there = {name: each for name, each in cluster.topics.topics.items() if not each.deleting}
    if topic is not None and topic not in there:
        raise UnknownTopicOrPartitionException(f"no topic {topic}; there are: {', '.join(sorted(there)) or 'none'}")
    ids = {each.topic_id for name, each in there.items() if topic in (None, name)}
    partitions = cluster.metadata.partitions
    return {p for p, r in partitions.items() if p.topic_id in ids and r.leader != LEADER_DURING_DELETE}


def _checked(cluster: Cluster, wanted: set[TopicIdPartition], depth: str, is_whole: bool) -> ReplicaCheck:
    brokers = observe_brokers(cluster)
    with counting_bar(sys.stderr.isatty()) as progress:
        task = progress.add_task("checking files", total=None)

        def begin(total: int) -> Callable[[], object]:
            progress.update(task, total=total)
            return lambda: progress.advance(task)

        return check_replicas(cluster, brokers, wanted, depth, is_whole, begin)


def _repaired(cluster: Cluster, found: Verified, invocation: Invocation, args: argparse.Namespace) -> Verified:
    """Repairs what can be, and checks these partitions again."""
    check, planned = found.check, found.plan.repairs
    if args.dry_run or not (args.yes or _confirms(cluster, planned)):
        say("Nothing was written.")
        return found._replace(repairs=[RepairOutcome(repair, _WOULD) for repair in planned])
    with counting_bar(sys.stderr.isatty()) as progress:
        task = progress.add_task("repairing replicas", total=len(planned))
        who = f"lakelog verify on {socket.gethostname()}"
        outcomes = carry_out_repairs(cluster, check, planned, args.timeout, who, lambda: progress.advance(task))
    partitions = {outcome.repair.topic_id_partition for outcome in outcomes if outcome.state == REPAIRED}
    if not partitions:
        return found._replace(repairs=outcomes)
    again = _checked(cluster, partitions, check.depth, is_whole=False)
    others = [wrong for wrong in check.wrong if not wrong.parts or not wrong.partitions <= partitions]
    check = check._replace(
        partitions={**check.partitions, **again.partitions}, brokers=again.brokers,
        copies={**check.copies, **again.copies}, wrong=[*others, *again.wrong],
    )  # fmt: skip
    return Verified(check, RepairPlan(check, invocation), outcomes)


def _confirms(cluster: Cluster, planned: Sequence[Repair]) -> bool:
    """Shows what would be repaired, and which sends would fail meanwhile. Returns whether a person confirms it."""
    for repair in planned[:_SHOWN]:
        say(f"{_repair_line(repair)}.")
    if len(planned) > _SHOWN:
        say(f"And {len(planned) - _SHOWN} more; --dry-run shows all.")
    if waiting := under_min_isr(cluster, planned):
        say(f"Until they are in sync again, sends with acks=all fail to {first_names(waiting, _SHOWN)}.")
    return confirm(f"Repair {_replicas(len(planned))}?")


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


def _repair_line(repair: Repair) -> str:
    return f"broker {repair.broker} fetches {repair.name} again from broker {repair.leader}, offset {repair.offset} on"


def _part_text(part: WrongPart) -> str:
    if part.stop is None:
        return f"{part.name} (from offset {part.start} on)"
    return f"{part.name} (offsets {part.start} to {part.stop - 1})"


def sentence(wrong: Wrong) -> str:
    """A sentence about a fault, with the partitions, the broker, the offsets and the file."""
    where = f" of {first_names([_part_text(part) for part in wrong.parts], _SHOWN)}" if wrong.parts else ""
    file = f"{wrong.file}: " if wrong.file else ""
    return f"the {'copy' if where else 'log'}{where} on broker {wrong.broker}: {file}{wrong.found}"


def _advice(wrong: Wrong, done: Verified, why: Mapping[ReplicaOf, str], invocation: Invocation) -> str:
    """Advice on a fault: what to do, and whether --repair does it. `why`: why repairs were refused, or have not
    ended."""
    if (hindered := done.plan.hindrances.get(wrong)) is not None:
        return hindered
    if told := sorted(why[replica] for replica in wrong.replicas & why.keys()):
        return told[0]
    depth = FILES if done.check.depth == STATE else done.check.depth
    repair = invocation.command("verify", "--depth", depth, "--repair")
    if done.plan.repairs_it(wrong):
        return f"{repair} lets broker {wrong.broker} fetch it again from its leader"
    return f"see to the other findings of the same partitions first; then {repair} repairs it"


def _findings(done: Verified, invocation: Invocation) -> list[tuple[Wrong, str]]:
    """The faults, each with advice."""
    why = {(each.repair.broker, each.repair.topic_id_partition): each.why for each in done.repairs if each.why}
    return [(wrong, _advice(wrong, done, why, invocation)) for wrong in done.check.wrong]


def _repair_rows(done: Verified) -> list[Row]:
    return [
        {
            "partition": repair.name, "broker": repair.broker, "from_offset": repair.offset, "leader": repair.leader,
            "state": state, "why": why or None,
        }
        for repair, state, why in done.repairs
    ]  # fmt: skip


def _object(cluster: Cluster, done: Verified, invocation: Invocation) -> dict[str, object]:
    check = done.check
    return {
        "ok": not check.wrong,
        "cluster": cluster.root.uri,
        "depth": check.depth,
        "partitions": len(check.partitions),
        "brokers": [count._asdict() for count in check.counts],
        "findings": [
            _finding_object(wrong, do, wrong not in done.plan.hindrances) for wrong, do in _findings(done, invocation)
        ],
        "repairs": _repair_rows(done),
        "behind": [{"broker": broker, "partition": name} for broker, name in check.behind],
        "deleted": list(check.deleted),
    }


def _finding_object(wrong: Wrong, do: str, is_repairable: bool) -> dict[str, object]:
    return {
        "kind": wrong.kind,
        "broker": wrong.broker,
        "partitions": [
            {
                "partition": part.name,
                "first_offset": part.start,
                "last_offset": None if part.stop is None else part.stop - 1,
            }
            for part in wrong.parts
        ],
        "file": wrong.file,
        "found": wrong.found,
        "repairable": is_repairable,
        "do": do,
    }


def _print(cluster: Cluster, done: Verified, invocation: Invocation) -> None:
    check = done.check
    facts = {"cluster": cluster.root.uri, "depth": check.depth, "partitions": str(len(check.partitions))}
    for name, words in facts.items():
        print(f"{name:<12}{words}")
    print()
    if check.counts:
        Report([count._asdict() for count in check.counts]).show()
        print()
    if rows := _repair_rows(done):
        Report(rows).show()
        print()
    equal = "Nothing is wrong: all replicas have the same records below the high watermark."
    print(f"Problems: {len(check.wrong)}" if check.wrong else equal)
    for wrong, do in _findings(done, invocation):
        print(f"- {sentence(wrong)}\n  To do: {do}.")
    if check.behind:
        names = first_names([f"{name} on broker {broker}" for broker, name in check.behind], _SHOWN)
        print(f"\nNot in sync, and behind: {names}. They were compared as far as they go.")
    if check.deleted:
        print(f"\nDeleted meanwhile: {', '.join(check.deleted)}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
