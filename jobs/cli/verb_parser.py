"""The parser of a verb: a mistake is one sentence, and help fits a narrow terminal and ends with examples."""

import argparse
import os
import shutil
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import zip_longest
from typing import NoReturn

from lakelog.jobs.cli.console import say
from lakelog.replication.errors import InvalidConfigurationException, one_line
from lakelog.replication.storage.delta.storage_root import StorageRoot, root_uris

CLUSTER_VARIABLE = "LAKELOG_CLUSTER"
_CLUSTER = "--cluster"
_MAY_BE_EMPTY = (_CLUSTER, "--command-config", "--rack")

_COLUMNS = 100
_WRONG_USAGE = 2

# Options of Kafka's tools that have no counterpart here, and the option to use in their place.
_INSTEAD = dict.fromkeys(
    ("--bootstrap-server", "--bootstrap-controller", "--broker-list", "--zookeeper"),
    f"Lakelog has no server to connect to: use --cluster URI, or set {CLUSTER_VARIABLE}",
)


class WrongUsage(SystemExit):
    """The end of a verb that was called wrongly. `words`: why, in one sentence."""

    def __init__(self, words: str) -> None:
        super().__init__(_WRONG_USAGE)
        self.words = words


class VerbParser(argparse.ArgumentParser):
    """Takes no abbreviations: those of today are ambiguous tomorrow. Nor empty values, such as those of a shell's
    variable that is not set, except where empty means that the option is not given."""

    def error(self, message: str) -> NoReturn:
        """Prints the error in one line, and the command that lists the options."""
        words = one_line(message.removeprefix("argument "))
        say(f"{self.prog}: {words}; `{self.prog} --help` lists the options")
        raise WrongUsage(words)

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """The arguments; --cluster may come from the environment, so argparse cannot demand it."""
        found = super().parse_args(args, namespace)
        is_needed = not getattr(found, "instead_of_cluster", None)
        if is_needed and getattr(found, "cluster", "given") in (None, ""):
            self.error(f"--cluster URI is missing: give it, or set {CLUSTER_VARIABLE}")
        return found

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """An option that there is not comes before one that is missing: it may be the same, misspelled."""
        if args is not None and self._subparsers is None and not {"-h", "--help"} & set(args):
            self._check_options(args)
        return super().parse_known_args(args, namespace)

    def _check_options(self, words: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        seen = set[str]()
        for word, following in zip_longest(words, words[1:]):
            name, equals, value = word.partition("=")
            if name == "--":
                return
            if name.startswith("--") and name not in known:
                self.error(f"there is no option {name}; {self._hint(name, known)}")
            action = self._option_string_actions.get(name)
            if isinstance(action, argparse._StoreAction):  # of two, argparse takes the last one in silence
                if action.dest in seen:
                    self.error(f"{name} is given twice")
                seen.add(action.dest)
            takes_a_value = name in known and self._option_string_actions[name].nargs != 0
            if takes_a_value and name not in _MAY_BE_EMPTY and (value if equals else following) == "":
                self.error(f"{name} is empty: give it a value, or leave it out")

    def _hint(self, name: str, known: Sequence[str]) -> str:
        if name in _INSTEAD and _CLUSTER in known:
            return _INSTEAD[name]
        close = get_close_matches(name.lower().replace("_", "-"), known, n=1)
        return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def parser_of(verb: str, description: str | None) -> VerbParser:
    """The parser of a verb, with its examples."""
    return VerbParser(
        f"lakelog {verb}", description=description, epilog=_examples(verb), formatter_class=_Help, allow_abbrev=False
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds --cluster, whose default is in the environment."""
    parser.add_argument(
        _CLUSTER, type=_cluster_uri, default=os.environ.get(CLUSTER_VARIABLE), metavar="URI",
        help="root of the cluster, such as /lake/cluster or s3://bucket/cluster; of a cluster with several roots any "
        f"one, or all, separated by commas; default: {CLUSTER_VARIABLE} of the environment",
    )  # fmt: skip


def root_uri(text: str) -> str:
    """A type of argparse: the URI of a root, as it was given."""
    try:
        StorageRoot.of(text)
    except InvalidConfigurationException as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _cluster_uri(text: str) -> str:
    """As `root_uri`, or a list of several, separated by commas; an empty one counts as missing."""
    try:
        for uri in root_uris(text) if text else ():
            root_uri(uri)
    except InvalidConfigurationException as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _examples(verb: str) -> str:
    return "examples:\n\n" + "\n\n".join(f"  # {what}\n  {command}" for what, command in EXAMPLES[verb])


class _Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves those alone that are indented, such as examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_COLUMNS, shutil.get_terminal_size().columns) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = textwrap.dedent(text).strip("\n").split("\n\n")
        return "\n\n".join(p if p.startswith(" ") else textwrap.fill(" ".join(p.split()), width) for p in paragraphs)


Example = tuple[str, str]

_LAKE = "--cluster /lake/cluster"
_LIST = "--cluster /a/cluster,/b/cluster,/c/cluster"

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "quickstart": (
        ("Run it on all flights, and write the figures to a file", "lakelog quickstart --out figures.json"),
        ("Run it on fewer flights, and keep the cluster", "lakelog quickstart --limit 20000 --keep flights"),
        ("Run it on S3 servers of its own, one for each root", "lakelog quickstart --store s3"),
        ("Lose a broker's root and a cluster root under load", "lakelog quickstart --lose-a-region"),
    ),
    "broker": (
        ("Start broker 1 in zone eu-1", f"lakelog broker {_LAKE} --broker-id 1 --root /lake/broker-1 --rack eu-1"),
        ("Start a broker with a settings file",
         "lakelog broker --cluster s3://meta/c --root s3://eu/b1 --command-config server.properties"),
        ("Start broker 1 again after its machine was lost",
         f"lakelog broker {_LAKE} --broker-id 1 --root /lake/broker-1 --take-over"),
    ),
    "controller": (
        ("Start a controller; start a second one to stand by", f"lakelog controller {_LAKE}"),
        ("Show the active controller", f"lakelog controller {_LAKE} --describe"),
        ("Show the requests of all commands, and their outcomes", f"lakelog controller {_LAKE} --requests"),
        ("Cancel a request", f"lakelog controller {_LAKE} --cancel-request 3f6c0a57"),
    ),
    "status": (
        ("Show what is wrong with a cluster", f"lakelog status {_LAKE}"),
        ("Ask from a monitor: the exit status is 1 if something is wrong", f"lakelog status {_LAKE} -o json"),
        ("Keep what it shows as a page, to read it in a browser", f"lakelog status {_LAKE} -o html > status.html"),
        ("Tell a channel of problems that begin and end",
         f"lakelog status {_LAKE} --follow \\\n"
         "      --webhook https://hooks.example.com/services/T0/B0/secret"),
    ),
    "doctor": (
        ("Check what a cluster depends on", f"lakelog doctor {_LAKE}"),
        ("Check roots before a cluster is made of them",
         "lakelog doctor --roots s3://meta/cluster s3://eu-1/b1 s3://eu-2/b2"),
        ("Check with the credentials of a consumer", f"lakelog doctor {_LAKE} --role reader"),
        ("Check the executors of Spark, too", f"lakelog doctor {_LAKE} --spark"),
    ),
    "events": (
        ("Show what has happened in the last hour", f"lakelog events {_LAKE} --since PT1H"),
        ("Show each change of a topic's partitions, and go on", f"lakelog events {_LAKE} --topic orders --follow"),
    ),
    "what-if": (
        ("Show what happens if broker 2 is killed", f"lakelog what-if {_LAKE} --kill 2"),
        ("Ask before you stop a broker in order: the exit status is 0 if nothing is wrong then",
         f"lakelog what-if {_LAKE} --stop 2"),
        ("Lose all brokers of a rack", f"lakelog what-if {_LAKE} --kill-rack eu-1"),
        ("Lose a bucket, with all roots in it", f"lakelog what-if {_LAKE} --lose-root s3://eu-1"),
        ("Lose one of several cluster roots", f"lakelog what-if {_LIST} --cluster-root /b/cluster"),
    ),
    "exporter": (
        ("Serve the metrics at http://127.0.0.1:9308/metrics", f"lakelog exporter {_LAKE}"),
        ("Serve them with the labels that the boards of Strimzi select by",
         f"lakelog exporter {_LAKE} --log-sizes --listen 0.0.0.0:9308 \\\n"
         "      --label namespace=lake --label strimzi_io_cluster=lake \\\n"
         "      --label strimzi_io_name=lake-kafka --label kubernetes_pod_name=lake-{broker}"),
    ),
    "ui": (
        ("Serve the console at http://127.0.0.1:8080/", f"lakelog ui {_LAKE}"),
        ("Serve it to other machines, at a port of your own", f"lakelog ui {_LAKE} --host 0.0.0.0 --port 9000"),
        ("Let those who have the token change the cluster, too",
         f"lakelog ui {_LAKE} --allow-changes --token-file console.token"),
        ("Do so behind a proxy on this machine that ends TLS",
         f"lakelog ui {_LAKE} --allow-changes --token-file console.token \\\n"
         "      --origin https://lake.example.com"),
    ),
    "format": (
        ("Make the root of a cluster", f"lakelog format {_LAKE}"),
        ("Make the root of broker 1", f"lakelog format {_LAKE} --broker-id 1 --root /lake/broker-1"),
        ("Make a cluster with three roots, of which any two go on without the third",
         f"lakelog format {_LIST}"),
    ),
    "backup": (
        ("Write a backup of the cluster root", f"lakelog backup {_LAKE} --out /backups/cluster.tar.gz"),
    ),
    "recover": (
        ("Show what would lead, and what may be lost",
         "lakelog recover --cluster /lake/cluster-2 --dry-run \\\n"
         "      --roots /lake/broker-1 /lake/broker-2 /lake/broker-3"),
        ("Make the root of the cluster again",
         "lakelog recover --cluster /lake/cluster-2 --roots /lake/broker-1 /lake/broker-2 /lake/broker-3"),
    ),
    "cluster-roots": (
        ("Show whether each root votes, and how far it is behind", f"lakelog cluster-roots {_LIST}"),
        ("Replace a lost root by an empty folder elsewhere",
         f"lakelog cluster-roots {_LIST} --replace /c/cluster /d/cluster"),
        ("Replace a root that was emptied or restored, at its own place",
         f"lakelog cluster-roots {_LIST} --replace /c/cluster /c/cluster"),
        ("Let two more roots vote beside the only one",
         "lakelog cluster-roots --cluster /a/cluster --add /b/cluster /c/cluster"),
        ("Go from three roots to five", f"lakelog cluster-roots {_LIST} --add /d/cluster /e/cluster"),
    ),
    "topics": (
        ("Create a topic",
         f"lakelog topics {_LAKE} --create --topic orders \\\n      --partitions 6 --replication-factor 3"),
        ("Try it first, and write nothing", f"lakelog topics {_LAKE} --create --topic orders --dry-run"),
        ("Show partitions that lack replicas", f"lakelog topics {_LAKE} --describe --under-replicated-partitions"),
        ("Add partitions", f"lakelog topics {_LAKE} --alter --topic orders --partitions 12"),
        ("Delete a topic", f"lakelog topics {_LAKE} --delete --topic orders"),
    ),
    "configs": (
        ("Show what holds for a topic, and where each value comes from",
         f"lakelog configs {_LAKE} --describe --all --entity-type topics --entity-name orders"),
        ("Keep records for a day",
         f"lakelog configs {_LAKE} --alter --entity-type topics --entity-name orders \\\n"
         "      --add-config retention.ms=86400000"),
        ("Limit what each broker fetches of throttled replicas, in bytes a second",
         f"lakelog configs {_LAKE} --alter --entity-type brokers --entity-default \\\n"
         "      --add-config follower.replication.throttled.rate=10000000"),
    ),
    "reassign-partitions": (
        ("Propose new brokers for the topics of a file",
         f"lakelog reassign-partitions {_LAKE} --generate \\\n"
         "      --topics-to-move-json-file topics.json --broker-list 1,2,3"),
        ("Show how all replicas of broker 3 would move off it, and write that to a file",
         f"lakelog reassign-partitions {_LAKE} --drain 3 --throttle 10000000 \\\n      --out moves.json"),
        ("Make brokers even after one was added", f"lakelog reassign-partitions {_LAKE} --rebalance --execute"),
        ("Move partitions, at 10 MB a second for each broker",
         f"lakelog reassign-partitions {_LAKE} --execute \\\n"
         "      --reassignment-json-file moves.json --throttle 10000000"),
        ("Show how far the moves have come, and remove the throttle after the last one",
         f"lakelog reassign-partitions {_LAKE} --verify --reassignment-json-file moves.json"),
    ),
    "leader-election": (
        ("Give the preferred brokers their partitions back",
         f"lakelog leader-election {_LAKE} --election-type preferred \\\n      --all-topic-partitions"),
        ("Let an out-of-sync replica lead; this may lose records",
         f"lakelog leader-election {_LAKE} --election-type unclean \\\n      --topic orders --partition 0"),
    ),
    "delete-records": (
        ("Try to delete the records below offset 1000, and write nothing",
         f"lakelog delete-records {_LAKE} --topic orders --partition 0 --before-offset 1000 \\\n      --dry-run"),
        ("Delete the records of several partitions",
         f"lakelog delete-records {_LAKE} --offset-json-file offsets.json"),
    ),
    "get-offsets": (
        ("Show the high watermark of each partition", f"lakelog get-offsets {_LAKE} --topic orders"),
        ("Show the first record since the start of 2025",
         f"lakelog get-offsets {_LAKE} --topic orders --time 1735689600000"),
    ),
    "consumer-groups": (
        ("Show how far a group is behind", f"lakelog consumer-groups {_LAKE} --describe --group billing"),
        ("Show its members and their partitions",
         f"lakelog consumer-groups {_LAKE} --describe --group billing --members --verbose"),
        ("Show what a reset to noon would do; --execute does it",
         f"lakelog consumer-groups {_LAKE} --reset-offsets --group billing \\\n"
         "      --topic orders --to-datetime 2025-01-31T12:00:00"),
        ("Delete a group", f"lakelog consumer-groups {_LAKE} --delete --group billing"),
    ),
    "log-dirs": (
        ("Show the size of each replica of a topic",
         f"lakelog log-dirs {_LAKE} --describe --topic-list orders -o table"),
        ("Fail if replicas differ", f"lakelog log-dirs {_LAKE} --describe --verify"),
        ("Show the stray replicas of broker 1; --execute deletes them",
         f"lakelog log-dirs {_LAKE} --delete-stray --broker-list 1"),
        ("Show what brokers have against the cluster root; --execute lets them accept it",
         f"lakelog log-dirs {_LAKE} --accept-cluster-root --broker-list 1,2"),
    ),
    "dump-log": (
        ("Show the batches of a partition", "lakelog dump-log --root /lake/broker-1 --topic orders --partition 0"),
        ("Show its records from offset 5 to 9",
         "lakelog dump-log --root /lake/broker-1 --topic orders --offsets 5:10 --print-data-log"),
        ("Check every file of a broker", "lakelog dump-log --root /lake/broker-1 --verify"),
    ),
    "verify": (
        ("Compare all replicas by their rows and headers", f"lakelog verify {_LAKE}"),
        ("Read every record of a topic", f"lakelog verify {_LAKE} --topic orders --depth records"),
        ("Show which replicas would be repaired", f"lakelog verify {_LAKE} --depth records --repair --dry-run"),
        ("Repair them without a question", f"lakelog verify {_LAKE} --depth records --repair --yes"),
    ),
    "brokers": (
        ("Show the brokers", f"lakelog brokers {_LAKE}"),
        ("Unregister a broker that is gone for good", f"lakelog brokers {_LAKE} --unregister 3"),
    ),
    "console-producer": (
        ("Send each line as a value", f"lakelog console-producer {_LAKE} --topic orders"),
        ("Send lines such as k:v",
         f"lakelog console-producer {_LAKE} --topic orders \\\n"
         "      --reader-property parse.key=true --reader-property key.separator=:"),
    ),
    "console-consumer": (
        ("Print all records, and those that come", f"lakelog console-consumer {_LAKE} --topic orders --from-beginning"),
        ("Print ten records of a partition with their keys and offsets",
         f"lakelog console-consumer {_LAKE} --topic orders --partition 0 --offset 42 \\\n"
         "      --max-messages 10 --formatter-property print.key=true --formatter-property print.offset=true"),
        ("Go on where the group has ended", f"lakelog console-consumer {_LAKE} --topic orders --group billing"),
        ("Print what the group has not consumed, as JSON",
         f"lakelog console-consumer {_LAKE} --topic orders \\\n"
         "      --unread-by billing --formatter json"),
    ),
    "copy-records": (
        ("Show what would be copied",
         f"lakelog copy-records {_LAKE} --from-topic orders --to-topic replayed --dry-run"),
        ("Replay the last hour into another topic",
         f"lakelog copy-records {_LAKE} --from-topic orders --to-topic replayed --since PT1H"),
        ("Copy some offsets of a partition, only the records of a key, to another cluster",
         f"lakelog copy-records {_LAKE} --from-topic orders --to-topic orders \\\n"
         "      --to-cluster /other/cluster --partitions 0 --offset 100 --before-offset 200 --key 7"),
    ),
    "export-records": (
        ("Write a topic to a file of Parquet",
         f"lakelog export-records {_LAKE} --topic orders \\\n"
         "      --format parquet --out orders.parquet"),
        ("Print the records of the last day as JSON lines",
         f"lakelog export-records {_LAKE} --topic orders --since P1D --format json"),
        ("Write bytes that are no text to CSV, in place of an older file",
         f"lakelog export-records {_LAKE} --topic orders --format csv \\\n"
         "      --encoding base64 --out orders.csv --overwrite"),
    ),
    "producer-perf-test": (
        ("Send records of 100 bytes as fast as possible",
         f"lakelog producer-perf-test {_LAKE} --topic orders \\\n"
         "      --num-records 100000 --record-size 100 --throughput -1"),
        ("Send 1000 records a second, each in a commit with those of 100 ms",
         f"lakelog producer-perf-test {_LAKE} --topic orders \\\n"
         "      --num-records 10000 --record-size 1000 --throughput 1000 --producer-props linger.ms=100"),
        ("Send Arrow tables of 20000 records",
         f"lakelog producer-perf-test {_LAKE} --topic orders \\\n"
         "      --num-records 1000000 --record-size 100 --throughput -1 --records-per-send 20000"),
    ),
    "consumer-perf-test": (
        ("Consume a million records", f"lakelog consumer-perf-test {_LAKE} --topic orders --messages 1000000"),
        ("Show the rates of each second",
         f"lakelog consumer-perf-test {_LAKE} --topic orders --messages 1000000 \\\n"
         "      --show-detailed-stats --reporting-interval 1000"),
    ),
    "bench": (
        ("Try the benchmark in a few seconds", "lakelog bench replication --quick"),
        ("Compare a follower with a plain Delta stream", "lakelog bench replication --rounds 5 --out figures.json"),
        ("Count the requests to an object store", "lakelog bench requests --brokers 1,3 --partitions 3,30"),
        ("Measure the controller", "lakelog bench controller --partitions 10000 --brokers 5"),
        ("Run all benchmarks", "lakelog bench all --out figures.json"),
    ),
    "soak": (
        ("Run 100 faults in 40 minutes", "lakelog soak --minutes 40 --faults 100 --seed 2026"),
        (
            "Kill leaders and controllers only, and measure how long nothing is acknowledged",
            "lakelog soak --kinds kill-broker,kill-controller,kill-both --minutes 10 --faults 30",
        ),
    ),
    "simulate": (
        ("Check the rules over 5000 histories", "lakelog simulate --seeds 5000"),
        ("Check all of the code but Spark", "lakelog simulate --tier stack --seeds 100"),
    ),
    "scenario": (
        ("Run a script", "lakelog scenario failover.yaml"),
        ("Run it in memory, without Spark", "lakelog scenario failover.yaml --mode simulated"),
        ("Run it with each root in an S3 server of its own", "lakelog scenario failover.yaml --store s3"),
    ),
    "completion": (
        ("Complete in this bash", 'eval "$(lakelog completion bash)"'),
        ("Complete in each new bash",
         "lakelog completion bash > ~/.local/share/bash-completion/completions/lakelog"),
        ("Complete in each new zsh; the folder must be in fpath", "lakelog completion zsh > ~/.zfunc/_lakelog"),
        ("Complete in each new fish", "lakelog completion fish > ~/.config/fish/completions/lakelog.fish"),
    ),
}  # fmt: skip
