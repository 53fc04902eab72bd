"""Creates, lists, describes, alters or deletes topics. The flags are those of kafka-topics.sh."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lakelog.jobs.admin.loss_warnings import say_what_a_deletion_loses
from lakelog.jobs.cli.console import OK, Lines, Report, add_all, run, say
from lakelog.jobs.cli.numbers import whole_number, with_commas
from lakelog.jobs.cli.options import MakeClient, add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.outcomes import show_outcomes
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.admin import AdminClient, TopicDescription
from lakelog.replication.errors import TopicExistsException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.value_schema import shown
from lakelog.replication.storage.cluster import Cluster

# Words of the help, and a rule: of a partition and its topic's min.insync.replicas.
FILTERS: dict[str, tuple[str, Callable[[PartitionRegistration, int], bool]]] = {
    "under_replicated_partitions": ("that have replicas out of sync", lambda r, _: len(r.isr) < _replication_factor(r)),
    "unavailable_partitions": ("that have no leader", lambda r, _: r.leader < 0),
    "at_min_isr_partitions": (
        "with exactly min.insync.replicas in sync",
        lambda r, least: len(r.isr) == least,
    ),
    "under_min_isr_partitions": (
        "with fewer in sync than that",
        lambda r, least: r.leader < 0 or len(r.isr) < least,
    ),
}
_GOES_WITH = {
    "topic": ("create", "describe", "alter", "delete"),
    "all": ("describe",),
    "partitions": ("create", "alter"),
    "replica_assignment": ("create", "alter"),
    "replication_factor": ("create",),
    "config": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("describe", "alter", "delete"),
    "dry_run": ("create", "alter", "delete"),
    **dict.fromkeys(FILTERS, ("describe",)),
}
_NEEDS = {"create": ["topic"], "alter": ["topic", "partitions"], "delete": ["topic"]}

_MIN_ISR = "min.insync.replicas"

_COLUMNS = ("topic", "partition", "leader", "leader_epoch", "replicas", "isr")

_HELP = {
    "create": "create a topic",
    "list": "list the names of all topics",
    "describe": "show topics and their partitions",
    "alter": "add partitions to a topic",
    "delete": "delete a topic and its records",
}


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: carry_out(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("topics", __doc__)
    add_topic_arguments(parser)
    add_all(parser)
    return parser


def carry_out(parser: argparse.ArgumentParser, args: argparse.Namespace, client: MakeClient = admin_client) -> int:
    """Does what the arguments ask for, and returns the status. `client` makes the client of requests."""
    check_options(parser, args, _GOES_WITH, _NEEDS)
    try:
        check_once(key for key, _ in args.config or ())
    except argparse.ArgumentTypeError as error:
        parser.error(f"--config: {error}")
    if args.action == "create" and args.replica_assignment:
        _check_assignment(parser, args)
    return ACTIONS[args.action](client(args, "topics"), args)


def _check_assignment(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """An assignment says how many partitions and replicas there are."""
    for name in ("partitions", "replication_factor"):
        if getattr(args, name) is not None:
            parser.error(f"--{name.replace('_', '-')} does not go with --replica-assignment, which says it")
    if len(set(map(len, args.replica_assignment.values()))) > 1:
        text = ",".join(":".join(map(str, brokers)) for brokers in args.replica_assignment.values())
        parser.error(f"--replica-assignment: {text!r} gives partitions different numbers of replicas")


def assignment(text: str) -> dict[int, tuple[int, ...]]:
    """Kafka's syntax: a list of brokers for each partition, `1:2:3,2:3:1`."""
    try:
        lists = [tuple(map(whole_number(0), part.split(":"))) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1:2:3,2:3:1") from None
    if any(len(set(brokers)) < len(brokers) for brokers in lists):
        raise argparse.ArgumentTypeError(f"{text!r} names a broker twice for a partition")
    return dict(enumerate(lists))


def config_pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def check_once(keys: Iterable[str]) -> None:
    """Raises ArgumentTypeError if a key is given twice."""
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise argparse.ArgumentTypeError(f"{', '.join(twice)} is given twice")


def warn_of_min_isr(configs: Mapping[str, str], topic: str, replicas: int | None) -> None:
    """Warns of a `min.insync.replicas` that no partition can have; `replicas` is None where it is not known yet."""
    asked = configs.get(_MIN_ISR)
    if asked is not None and replicas is not None and int(asked) > replicas:
        say(
            f"lakelog: warning: topic {topic}: {_MIN_ISR} is {asked}, but a partition has {replicas} replicas; "
            f"acks=all fails as soon as one of the {replicas} is out of sync"
        )


def least_replicas(described: TopicDescription) -> int:
    """The replicas of the partition that has the fewest, without those that a reassignment adds."""
    return min(map(_replication_factor, described.partitions))


def _create(admin: AdminClient, args: argparse.Namespace) -> int:
    configs = dict(args.config or ())
    wanted = (args.topic, args.partitions, args.replication_factor, args.replica_assignment, configs)
    try:
        if args.dry_run:
            message = admin.validate_topic(*wanted)
            warn_of_min_isr(configs, args.topic, _asked_replicas(args))
            return _outcome(args, message)
        made = admin.create_topic(*wanted)
    except TopicExistsException:
        if not args.if_not_exists:
            raise
        say(f"Topic {args.topic} exists already.")
        return OK
    say(f"Created topic {args.topic}.")
    warn_of_min_isr(configs, args.topic, least_replicas(made))
    return _show([made], args.output)


def _asked_replicas(args: argparse.Namespace) -> int | None:
    """The replicas of a partition that the command line asks for; None if it leaves them to the controller."""
    if args.replica_assignment:
        return min(map(len, args.replica_assignment.values()))
    found: int | None = args.replication_factor
    return found


def _alter(admin: AdminClient, args: argparse.Namespace) -> int:
    found = _described(admin, args)
    if not found:
        return OK
    added = args.replica_assignment and {
        number: replicas for number, replicas in args.replica_assignment.items() if number >= len(found[0].partitions)
    }
    message = admin.create_partitions(args.topic, args.partitions, added, validate_only=args.dry_run)
    if args.dry_run:
        return _outcome(args, message)
    say(f"Topic {args.topic}: {message}. Keys may go to other partitions from now on.")
    return _show(_described(admin, args), args.output)


def _delete(admin: AdminClient, args: argparse.Namespace) -> int:
    """Returns once the deletion is queued, as Kafka's tool does: a broker that is down delays it."""
    if not _described(admin, args):
        return OK
    message = admin.delete_topic(args.topic, validate_only=args.dry_run)
    if args.dry_run:
        say_what_a_deletion_loses(Cluster.open(args.cluster, settings(args.command_config)), args.topic)
    return _outcome(args, f"{message}; it is listed until all its brokers have deleted their replicas")


def _list(admin: AdminClient, args: argparse.Namespace) -> int:
    names = admin.list_topics()
    Report([{"topic": name} for name in names], text=[Lines(names)]).show(args.output)
    return OK


def _describe(admin: AdminClient, args: argparse.Namespace) -> int:
    found = _described(admin, args)
    chosen = [rule for name, (_, rule) in FILTERS.items() if getattr(args, name)]
    columns = () if args.all else _COLUMNS
    if not chosen:
        return _show(found, args.output, columns)
    kept = [_where(topic, chosen[0], admin.settings_of(topic.topic).min_insync_replicas) for topic in found]
    return _show([topic for topic in kept if topic.partitions], args.output, columns, with_heads=False)


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {
    "create": _create, "list": _list, "describe": _describe, "alter": _alter, "delete": _delete,
}  # fmt: skip


def _described(admin: AdminClient, args: argparse.Namespace) -> list[TopicDescription]:
    """The topic, or all; nothing for one that there is not and need not be."""
    if args.topic is None:
        return admin.describe_topics()
    try:
        return [admin.describe_topic(args.topic)]
    except UnknownTopicOrPartitionException:
        if not args.if_exists:
            raise
        say(f"Topic {args.topic} does not exist.")
        return []


def _where(topic: TopicDescription, rule: Callable[[PartitionRegistration, int], bool], least: int) -> TopicDescription:
    return replace(topic, partitions=tuple(r for r in topic.partitions if rule(r, least)))


def _outcome(args: argparse.Namespace, message: str) -> int:
    return show_outcomes("topic", {args.topic: Outcome(None, message)}, args)


def _show(
    topics: Sequence[TopicDescription], output: str, columns: Sequence[str] = _COLUMNS, with_heads: bool = True
) -> int:
    """As Kafka does it, without the lines of topics where only some partitions are asked for."""
    rows = [_row(r) for topic in topics for r in topic.partitions]
    lines = [line for topic in topics for line in _lines(topic)[0 if with_heads else 1 :]]
    Report(rows, columns, [Lines(lines)], [_object(topic) for topic in topics]).show(output)
    return OK


def _lines(described: TopicDescription) -> list[str]:
    """As kafka-topics.sh prints it: tabs between the fields."""
    topic = described.topic
    configs = ",".join(f"{key}={shown(key, value)}" for key, value in topic.configs.items())
    factor = _replication_factor(described.partitions[0]) if described.partitions else 0
    mark = "\tMarkedForDeletion: true" if topic.deleting else ""
    head = (
        f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {len(described.partitions)}\t"
        f"ReplicationFactor: {factor}\tConfigs: {configs}"
    )
    return [line + mark for line in (head, *map(_partition_line, described.partitions))]


def _partition_line(registration: PartitionRegistration) -> str:
    leader = "none" if registration.leader < 0 else registration.leader
    line = (
        f"\tTopic: {registration.topic}\tPartition: {registration.partition}\tLeader: {leader}\t"
        f"Replicas: {with_commas(registration.replicas)}\tIsr: {with_commas(registration.isr)}"
    )
    if not is_reassigning(registration):
        return line
    adding, removing = with_commas(registration.adding_replicas), with_commas(registration.removing_replicas)
    return f"{line}\tAdding Replicas: {adding}\tRemoving Replicas: {removing}"


def _replication_factor(registration: PartitionRegistration) -> int:
    """Without those that a reassignment adds, as Kafka counts."""
    return len(registration.replicas) - len(registration.adding_replicas)


def _object(described: TopicDescription) -> dict[str, object]:
    return {
        "topic": described.topic.topic,
        "topic_id": described.topic.topic_id,
        "configs": dict(described.topic.configs),
        "marked_for_deletion": described.topic.deleting,
        "partitions": [_row(registration) for registration in described.partitions],
    }


def _row(registration: PartitionRegistration) -> dict[str, object]:
    return {
        "topic": registration.topic,
        "partition": registration.partition,
        "leader": None if registration.leader < 0 else registration.leader,
        "leader_epoch": registration.leader_epoch,
        "replicas": list(registration.replicas),
        "isr": list(registration.isr),
        "adding_replicas": list(registration.adding_replicas),
        "removing_replicas": list(registration.removing_replicas),
    }


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions, the topic, and the options of each action."""
    actions = " | ".join(f"--{name}" for name in _HELP)
    parser.usage = f"%(prog)s [options] ({actions})"
    add_actions(parser, _HELP)
    parser.add_argument("--topic", metavar="NAME", help="name of the topic; default for --describe: all topics")
    parser.add_argument("--if-exists", action="store_true", help="do nothing, without an error, if there is no topic")
    only = parser.add_argument_group("with --describe, at most one").add_mutually_exclusive_group()
    for name, (words, _) in FILTERS.items():
        only.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"show only partitions {words}")
    _add_change_arguments(
        parser.add_argument_group("with --create; the first two also with --alter, the last one with every change")
    )


def _add_change_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--partitions", type=whole_number(1), metavar="N",
        help="total after the change; default for --create: num.partitions of the controller",
    )  # fmt: skip
    group.add_argument(
        "--replica-assignment", type=assignment, metavar="1:2:3,2:3:1",
        help="brokers of each partition, the preferred leader first; --alter ignores those of existing partitions",
    )  # fmt: skip
    group.add_argument(
        "--replication-factor", type=whole_number(1), metavar="N",
        help="replicas of each partition; default: default.replication.factor of the controller",
    )  # fmt: skip
    group.add_argument(
        "--config", type=config_pair, action="append", metavar="KEY=VALUE",
        help="setting of the topic, such as min.insync.replicas=2; give the flag once for each",
    )  # fmt: skip
    group.add_argument("--if-not-exists", action="store_true", help="do nothing, without an error, if the topic exists")
    add_dry_run(group)
