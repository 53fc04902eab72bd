"""Moves partitions to other brokers. The flags are those of kafka-reassign-partitions.sh, and three that make a plan.

--drain, --rebalance and --replace print a plan that moves as few replicas as possible, with the bytes to copy and who
leads then, and change nothing unless --execute is given too. --out writes the plan to a file, which --execute and
--verify read.

A file of reassignments: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}. A file of
topics: {"version": 1, "topics": [{"topic": "t"}]}.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import randrange
from typing import Any

from lakelog.jobs.admin.loss_warnings import say_what_reassignments_do
from lakelog.jobs.admin.planned_moves import (
    MoveInputs,
    PlannedMoves,
    planned_drain,
    planned_rebalance,
    planned_replacement,
)
from lakelog.jobs.admin.reassignment_throttle import clear_throttles, set_throttle
from lakelog.jobs.cli.console import FAILED, JSON, OK, TEXT, Lines, Report, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number, whole_numbers, with_commas
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.outcomes import outcome_rows, say_outcomes, show_outcomes
from lakelog.jobs.cli.output_paths import out_file
from lakelog.jobs.cli.partition_files import TopicPartition, read_reassignments, read_topics, reassignments
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InvalidReplicaAssignmentException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.assignment import CORDONED_LOG_DIRS, assign_replicas
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning, original_replicas, target_replicas
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.local_root import LocalRoot

_FILE = ["reassignment_json_file"]
_PLANS = ("drain", "rebalance", "replace")
_GOES_WITH = {
    "reassignment_json_file": ("execute", "verify", "cancel"),
    "topics_to_move_json_file": ("generate",),
    "broker_list": ("generate",),
    "disable_rack_aware": ("generate",),
    "throttle": ("execute", *_PLANS),
    "preserve_throttles": ("verify",),
    "dry_run": ("execute", "cancel"),
}
_NEEDS = {
    "generate": ["topics_to_move_json_file", "broker_list"], "execute": _FILE, "verify": _FILE, "cancel": _FILE,
}  # fmt: skip

HELP = {
    "generate": "propose brokers for the partitions of topics",
    "execute": "begin to move partitions as a file says",
    "verify": "show how far the moves of a file have come",
    "cancel": "move the partitions of a file back",
    "list": "show the partitions that are moving",
}
_CURRENT, _PROPOSED = "Current partition replica assignment", "Proposed partition reassignment configuration"
_ROLLBACK = "Save this to use as the --reassignment-json-file option during rollback"
_SHOWN = 30  # partitions in a table
_COMPLETE, _IN_PROGRESS, _OTHER, _UNKNOWN = "complete", "in progress", "other replicas", "unknown partition"


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _reassign(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("reassign-partitions", __doc__)
    add_actions(parser, HELP, is_required=False)
    plans = parser.add_argument_group("plans, which --execute carries out").add_mutually_exclusive_group()
    plans.add_argument(
        "--drain", type=broker_list, metavar="1,2", help="move every replica off these brokers, and no other one"
    )
    plans.add_argument(
        "--rebalance", action="store_true",
        help="make the brokers that are alive and not cordoned even, by the least number of moves; after one was added",
    )  # fmt: skip
    plans.add_argument(
        "--replace", type=old_and_new, metavar="OLD=NEW", help="give the replicas of one broker to another one"
    )
    parser.add_argument("--out", type=out_file, metavar="FILE", help="for a plan: write it to a new file, as JSON")
    files = (("--reassignment-json-file", read_reassignments, "for --execute, --verify and --cancel: reassignments"),
             ("--topics-to-move-json-file", read_topics, "for --generate: topics"))  # fmt: skip
    for name, read, words in files:
        parser.add_argument(name, type=read, metavar="FILE", help=words)
    parser.add_argument("--broker-list", type=broker_list, metavar="1,2", help="for --generate: the brokers to use")
    parser.add_argument("--disable-rack-aware", action="store_true", help="for --generate: ignore racks")
    parser.add_argument(
        "--throttle", type=whole_number(1, MAX_OFFSET), metavar="BYTES",
        help="for --execute: bytes a second per broker; for a plan: say how long that takes",
    )  # fmt: skip
    parser.add_argument("--preserve-throttles", action="store_true", help="for --verify: keep the throttles")
    add_dry_run(parser)
    return parser


def _reassign(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    plan = next((name for name in _PLANS if getattr(args, name)), None)
    if plan is not None:
        _check_plan(parser, args, plan)
    elif args.action is None:
        flags = " ".join(f"--{name}" for name in (*HELP, *_PLANS))
        parser.error(f"one of the arguments {flags} is required")
    elif args.out is not None:
        parser.error("--out goes with --drain, --rebalance and --replace only")
    else:
        check_options(parser, args, _GOES_WITH, _NEEDS)
    return ACTIONS[args.action](admin_client(args, "reassign-partitions"), args)


def _check_plan(parser: argparse.ArgumentParser, args: argparse.Namespace, plan: str) -> None:
    """A plan is an action of its own, or what --execute carries out in place of a file."""
    if args.action not in (None, "execute"):
        parser.error(f"--{plan} goes with --execute only, not with --{args.action}")
    if args.reassignment_json_file is not None:
        parser.error(f"--reassignment-json-file does not go with --{plan}, which makes the plan")
    if args.out is not None and os.path.lexists(args.out):
        parser.error(f"argument --out: {args.out} is there already; give the plan another name")
    args.action = args.action or plan
    check_options(parser, args, _GOES_WITH, {})


def old_and_new(text: str) -> tuple[int, int]:
    """`3=4`: two different brokers."""
    old, _, new = text.partition("=")
    number = whole_number(0)
    try:
        found = number(old), number(new)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two broker ids, such as 3=4") from None
    if found[0] == found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} names one broker twice")
    return found


def broker_list(text: str) -> list[int]:
    """`1,2,3`: different brokers."""
    brokers = whole_numbers(0)(text)
    if len(set(brokers)) != len(brokers):
        raise argparse.ArgumentTypeError(f"{text!r} names a broker twice")
    return brokers


def _generate(admin: AdminClient, args: argparse.Namespace) -> int:
    """Only reads. The draw is another one each time, as in Kafka."""
    racks = _racks(admin, args)
    partitions = [r for topic in args.topics_to_move_json_file for r in admin.describe_topic(topic).partitions]
    current, proposed = _current(partitions), _proposed(partitions, racks)
    both = {"current": reassignments(current), "proposed": reassignments(proposed)}
    text = [Lines([json.dumps(both["current"])], _CURRENT), Lines([json.dumps(both["proposed"])], _PROPOSED)]
    rows = [_moved(partition, current[partition], proposed[partition]) for partition in sorted(current)]
    Report(rows, text=text, value=both).show(args.output)
    return OK


def _racks(admin: AdminClient, args: argparse.Namespace) -> dict[int, str | None]:
    known = admin.describe_brokers()
    unknown = [broker for broker in args.broker_list if broker not in known]
    if unknown:
        there = ", ".join(map(str, known)) or "none"
        raise BrokerNotAvailableException(f"--broker-list: broker {unknown[0]} has not registered; there are: {there}")
    cordoned = sorted(admin.cordoned_brokers() & set(args.broker_list))
    if cordoned:
        raise InvalidReplicaAssignmentException(
            f"--broker-list: broker {cordoned[0]} is cordoned ({CORDONED_LOG_DIRS}), so it gets no new replica"
        )
    return {broker: None if args.disable_rack_aware else known[broker].rack for broker in args.broker_list}


def _current(partitions: Iterable[PartitionRegistration]) -> dict[TopicPartition, Sequence[int]]:
    """Without what a reassignment that is under way has added: this is for going back."""
    return {(r.topic, r.partition): original_replicas(r) for r in partitions}


def _proposed(
    partitions: Sequence[PartitionRegistration], racks: Mapping[int, str | None]
) -> dict[TopicPartition, Sequence[int]]:
    proposed: dict[TopicPartition, Sequence[int]] = {}
    for topic in dict.fromkeys(r.topic for r in partitions):
        replicas = [target_replicas(r) for r in partitions if r.topic == topic]
        start, shift = randrange(len(racks)), randrange(len(racks))
        chosen = assign_replicas(racks, len(replicas), len(replicas[0]), start, shift)
        proposed |= {(topic, number): brokers for number, brokers in chosen.items()}
    return proposed


def _moved(partition: TopicPartition, current: Sequence[int], proposed: Sequence[int]) -> dict[str, object]:
    return {"topic": partition[0], "partition": partition[1], "current": list(current), "proposed": list(proposed)}


def _plan(_: AdminClient, args: argparse.Namespace) -> int:
    """Only reads, and writes the file."""
    moves = _planned(args)
    if args.output == JSON:
        Report(value=moves.as_object(args.throttle)).show(JSON)
    return OK


def _planned(args: argparse.Namespace) -> PlannedMoves:
    """Makes the plan and shows it."""
    cluster = _cluster(args)
    inputs = MoveInputs.read(cluster)
    if args.drain:
        moves = planned_drain(inputs, args.drain)
    else:
        moves = planned_replacement(inputs, *args.replace) if args.replace else planned_rebalance(inputs)
    _show_plan(cluster, moves, args)
    return moves


def _cluster(args: argparse.Namespace) -> Cluster:
    return Cluster.open(args.cluster, settings(args.command_config))


def _show_plan(cluster: Cluster, moves: PlannedMoves, args: argparse.Namespace) -> None:
    """Prints the plan, unless JSON is asked for, and writes it to the file. Then it says what the plan does."""
    proposed = json.dumps(reassignments(moves.plan))
    if moves.plan and args.out is not None and not args.dry_run:
        _write(args.out, proposed)
    if args.output != JSON:
        rows = moves.rows()
        for table in (rows[:_SHOWN], moves.broker_rows() if rows else []):
            if table:
                Report(table).show()
                print()
        Lines(moves.summary(args.throttle)).show()
        if len(rows) > _SHOWN:
            say(f"The table has {_SHOWN} of {len(rows)} partitions; the plan has all.")
    for note in moves.notes():
        say(f"Note: {note}.")
    if moves.plan:
        say_what_reassignments_do(cluster, _by_name(moves.plan), moves.inputs.brokers)
        if args.output != JSON and args.out is None:
            Lines([proposed], _PROPOSED).show()


def _by_name(wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Sequence[int]]:
    return {f"{topic}-{number}": replicas for (topic, number), replicas in wanted.items()}


def _write(path: Path, text: str) -> None:
    """Writes a new file as a whole or not at all. Raises KafkaStorageException."""
    LocalRoot(str(path.absolute().parent)).put(path.name, f"{text}\n".encode())
    say(f"{path}: is the plan; --execute and --verify take it as --reassignment-json-file")


def _execute(admin: AdminClient, args: argparse.Namespace) -> int:
    """Prints the current assignment, for a rollback, before it sends the request: it is needed most if no answer comes.
    Prints none if nothing in the file can be carried out."""
    wanted, planned = args.reassignment_json_file, dict[str, object]()
    if wanted is None:
        moves = _planned(args)
        wanted, planned = moves.plan, {"plan": moves.as_object(args.throttle)}
        if not wanted:
            Report(text=(), value={**planned, "outcomes": []}).show(args.output)
            return OK
    found = _registrations(admin)
    current = reassignments(_current(found[partition] for partition in wanted if partition in found))
    known = admin.describe_brokers().keys()
    if any(partition in found and known >= set(replicas) for partition, replicas in wanted.items()):
        say(_CURRENT)
        print(json.dumps(current), file=sys.stderr if args.output == JSON else sys.stdout, flush=True)
        say(_ROLLBACK)
    if args.throttle is not None:
        set_throttle(admin, found, wanted, args.throttle, validate_only=args.dry_run)
    if args.dry_run and not planned:
        say_what_reassignments_do(_cluster(args), _by_name(wanted))
    outcomes = dict[str, Outcome]()
    for part in _parts(wanted, settings(args.command_config).lakelog_max_partitions_per_request):
        outcomes |= admin.alter_partition_reassignments(part, validate_only=args.dry_run)
    rows = outcome_rows("partition", outcomes, args.dry_run)
    Report(rows, text=(), value={**planned, "current": current, "outcomes": rows}).show(args.output)
    return say_outcomes(outcomes, args)


def _parts(
    wanted: Mapping[TopicPartition, Sequence[int]], most: int
) -> Iterator[Mapping[TopicPartition, Sequence[int]]]:  # fmt: skip
    """As many partitions as one request may have, and one part at least."""
    partitions = list(wanted.items())
    for first in range(0, max(1, len(partitions)), most):
        yield dict(partitions[first : first + most])


def _cancel(admin: AdminClient, args: argparse.Namespace) -> int:
    cancelled = dict.fromkeys(args.reassignment_json_file)
    return show_outcomes("partition", admin.alter_partition_reassignments(cancelled, validate_only=args.dry_run), args)


def _verify(admin: AdminClient, args: argparse.Namespace) -> int:
    """Status FAILED for partitions that there are not; one that is still moving is no failure. Once nothing moves any
    more, throttles go."""
    found = _registrations(admin)
    rows = [_status(p, target, found.get(p)) for p, target in sorted(args.reassignment_json_file.items())]
    known = [row for row in rows if row["status"] != _UNKNOWN]
    report = Report(rows, text=[Lines(map(_status_line, known), "Status of partition reassignment:")])
    if args.output == TEXT:  # as Kafka's tool does, before the throttles are cleared; JSON comes last
        report.show(TEXT)
    if not args.preserve_throttles:
        clear_throttles(admin, [topic for topic, _ in args.reassignment_json_file])
    if args.output != TEXT:
        report.show(args.output)
    missing = [f"{row['topic']}-{row['partition']}" for row in rows if row["status"] == _UNKNOWN]
    if missing:
        say(f"lakelog: {UnknownTopicOrPartitionException.__name__}: no partition {', '.join(missing)}")
    return FAILED if missing else OK


def _status(partition: TopicPartition, target: list[int], found: PartitionRegistration | None) -> dict[str, Any]:
    if found is None:
        status = _UNKNOWN
    elif is_reassigning(found):
        status = _IN_PROGRESS
    else:
        status = _COMPLETE if list(found.replicas) == target else _OTHER
    replicas = list(found.replicas) if found else None
    return {
        "topic": partition[0], "partition": partition[1], "status": status, "replicas": replicas, "target": target,
    }  # fmt: skip


def _status_line(row: Mapping[str, Any]) -> str:
    name = f"{row['topic']}-{row['partition']}"
    if row["status"] == _OTHER:
        return (
            f"There is no active reassignment of partition {name}, "
            f"but replica set is {with_commas(row['replicas'])} rather than {with_commas(row['target'])}."
        )
    state = "completed" if row["status"] == _COMPLETE else "still in progress"
    return f"Reassignment of partition {name} is {state}."


def _list(admin: AdminClient, args: argparse.Namespace) -> int:
    rows = [
        {
            "topic": r.topic, "partition": r.partition, "replicas": r.replicas, "adding": r.adding_replicas,
            "removing": r.removing_replicas, "isr": r.isr,
        }
        for r in admin.list_partition_reassignments()
    ]  # fmt: skip
    title = "Current partition reassignments:" if rows else "No partition reassignments found."
    Report(rows, text=[Lines(map(_moving_line, rows), title)]).show(args.output)
    return OK


def _moving_line(row: Mapping[str, Any]) -> str:
    changes = [f" {way}: {with_commas(row[way])}." for way in ("adding", "removing") if row[way]]
    return f"{row['topic']}-{row['partition']}: replicas: {with_commas(row['replicas'])}.{''.join(changes)}"


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {
    "generate": _generate, "execute": _execute, "verify": _verify, "cancel": _cancel, "list": _list,
    **dict.fromkeys(_PLANS, _plan),
}  # fmt: skip


def _registrations(admin: AdminClient) -> dict[TopicPartition, PartitionRegistration]:
    return {(r.topic, r.partition): r for topic in admin.describe_topics() for r in topic.partitions}
