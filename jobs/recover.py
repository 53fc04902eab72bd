"""Makes the root of a cluster again that is lost, from the roots of its brokers, at a new URI.

Topics, settings, group offsets and named producers come from the copies that the controller keeps in each broker's
root, or from a --backup if it is newer, and the last batches of streaming sinks from the sinks' own copies. Of each
partition the replica leads that has every acknowledged record, if any root has it. The new root is of the next
generation: from then on the brokers' logs refuse the old root, and every process that still uses it.

--dry-run shows what leads, what is missing and what may be lost, and writes nothing. A recovery that was interrupted is
finished by the same command. Afterwards start the controllers and brokers with the new URI.
"""

import argparse
import re
import time

from lakelog.jobs.cli.console import JSON, OK, TABLE, Report, Row, run, say
from lakelog.jobs.cli.options import add_command_config, add_dry_run, add_output
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of, root_uri
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_recovery import RecoveredPartition
from lakelog.replication.storage.cluster import storage_root
from lakelog.replication.storage.cluster_backup import read_backup
from lakelog.replication.storage.root_recovery import Plan, Recovery, open_broker_roots
from lakelog.replication.storage.stage_recovery import RecoveredStage
from lakelog.schemas import GROUPS, METADATA, PRODUCERS

_NUMBERED = re.compile(r"(\d+)=(.+)", re.DOTALL)
_COLUMNS = ("topic", "partition", "in_sync", "end_offset", "missing", "may_be_lost")


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _recover, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("recover", __doc__)
    add_cluster(parser)
    parser.add_argument(
        "--roots", type=_broker_root, nargs="+", required=True, metavar="[N=]URI",
        help="the roots of all brokers that can be read, such as /lake/broker-1; with the id of the broker where "
        "--command-config or the environment has credentials for it, such as 1=s3://bucket/b1",
    )  # fmt: skip
    parser.add_argument(
        "--backup", metavar="FILE",
        help="a file of `lakelog backup`: what it has is used where no root has a copy that is as new",
    )  # fmt: skip
    parser.add_argument(
        "--force",
        action="store_true",
        help="also if the old cluster root is there, or cannot be looked at: who still uses it is refused from now on",
    )
    parser.add_argument("--allow-loss", action="store_true", help="also if acknowledged records may be lost")
    add_dry_run(parser)
    add_output(parser, (TABLE, JSON))
    add_command_config(parser, "settings of the cluster, and credentials of the roots")
    return parser


def _broker_root(text: str) -> tuple[int | None, str]:
    """A type of argparse: the URI of a broker's root, maybe after the broker's id."""
    found = _NUMBERED.fullmatch(text)
    number, uri = (int(found[1]), found[2]) if found else (None, text)
    return number, root_uri(uri)


def _recover(args: argparse.Namespace) -> int:
    config = settings(args.command_config)
    backup = None if args.backup is None else read_backup(args.backup)
    brokers = open_broker_roots(args.roots, config, may_mend=not args.dry_run)
    recovery = Recovery(storage_root(args.cluster, "cluster", config), brokers, config, backup)
    if not args.force:
        recovery.check_old_root()
    plan = recovery.plan()
    if not args.dry_run:
        check = _accept if args.allow_loss else _refuse_loss
        check(plan)
        plan = recovery.execute(check)  # brokers that still run may have gone on meanwhile
    _show(recovery, plan, args.output)
    _say(recovery, plan, args.dry_run)
    return OK


def _refuse_loss(plan: Plan) -> None:
    lossy = [each.registration.name for each in plan.partitions if each.loss is not None]
    if lossy:
        raise InvalidRequestException(
            f"acknowledged records of {first_names(lossy)} may be lost: look at --dry-run, give all roots that can be "
            "read, then add --allow-loss"
        )


def _accept(_: Plan) -> None:
    pass


def _show(recovery: Recovery, plan: Plan, output: str) -> None:
    partitions, groups = [_partition(each) for each in plan.partitions], _groups(plan)
    queries = [_query(each) for each in plan.stages]
    value = {
        "cluster_id": recovery.cluster_id, "generation": recovery.generation, "partitions": partitions,
        "groups": groups, "queries": queries, "stray": plan.strays,
    }  # fmt: skip
    Report(partitions, _COLUMNS, value=value).show(output)
    if output == TABLE:
        Report(groups).show()
        if queries:
            Report(queries).show()


def _partition(each: RecoveredPartition) -> Row:
    registration, choice = each.registration, each.choice
    return {
        "topic": registration.topic,
        "partition": registration.partition,
        "leader": choice.leader if choice else None,
        "in_sync": list(registration.isr) if choice else [],
        "leader_epoch": registration.leader_epoch,
        "end_offset": choice.log_end_offset if choice else None,
        "missing": list(each.absent),
        "may_be_lost": each.loss or "nothing",
        "why": each.why,
        "forks": [fork._asdict() for fork in choice.forks] if choice else [],
    }


def _groups(plan: Plan) -> list[Row]:
    age = _age(plan, GROUPS.name)
    return [
        {name: row[name] for name in ("group_id", "topic", "partition", "committed_offset")} | {"seconds_old": age}
        for row in plan.rows[GROUPS.name]
    ]


def _query(stage: RecoveredStage) -> Row:
    """The newest batch of a streaming sink, and whether all, some or none of its records are in the logs."""
    return {"query": stage.query_id, "batch": stage.batch_id, "written": str(stage.written), "lost": list(stage.lost)}


def _age(plan: Plan, table: str) -> int | None:
    at = plan.copied_at.get(table)
    return None if at is None else max(0, round(time.time() - at))


def _ago(plan: Plan, table: str) -> str:
    age = _age(plan, table)
    return "none" if age is None else f"{age} s ago"


def _say(recovery: Recovery, plan: Plan, is_dry_run: bool) -> None:
    for each in plan.partitions:
        if each.loss is not None:
            say(f"{each.registration.name}: may be lost: {each.loss}. {_sentence(each.why)}")
    reasons = sorted({each.why for each in plan.partitions if each.loss is None})
    if reasons:
        of = "the others" if _is_lossy(plan) else "any partition"
        say(f"Nothing that was acknowledged with acks=all is lost of {of}:")
        for why in reasons:
            say(f"  {why}.")
    for broker in recovery.brokers:
        if not broker.copy:
            say(f"{broker.root.uri} has no copies of the cluster's tables: an older version of Lakelog has run there.")
    if METADATA.name not in plan.copied_at:
        say("No root has a copy of the topics' settings: they are those of --command-config.")
    else:
        say(
            f"Copies: metadata {_ago(plan, METADATA.name)}, producers {_ago(plan, PRODUCERS.name)}, group offsets "
            f"{_ago(plan, GROUPS.name)}: commits of groups since then are lost, and those records are read again. A "
            "table that has not changed since was not copied again."
        )
    if recovery.goes_by_backup:
        say(
            "No root has metadata as new as the backup. Topics that were made later and have no replica in these roots "
            "are not in this list."
        )
    _say_stuck(plan)
    if plan.strays:
        say(f"Left alone as stray replicas, as no metadata has them: {', '.join(plan.strays[:5])}.")
    becomes = "would become" if is_dry_run else "is"
    then = "nothing is written" if is_dry_run else "start controllers and brokers with it"
    say(
        f"{recovery.root.uri} {becomes} the root of cluster {recovery.cluster_id}, generation {recovery.generation}; "
        f"{then}"
    )


def _say_stuck(plan: Plan) -> None:
    for query in plan.stages:
        if query.lost:
            say(
                f"Query {query.query_id} cannot go on: batch {query.batch_id} was written in part, and the rest was in "
                "the lost root only. The page on a lost cluster root says what to do."
            )


def _is_lossy(plan: Plan) -> bool:
    return any(each.loss is not None for each in plan.partitions)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
