"""The verbs, and how each is started: one that needs Spark as a driver process of its own, the others in this one."""

import importlib
import os
import sys
from difflib import get_close_matches
from itertools import pairwise
from typing import NamedTuple

from lakelog.jobs.cli.console import OK, run_and_flush
from lakelog.jobs.launch.installed import check_checkout, check_installed, has_checkout, needs_checkout, version
from lakelog.jobs.launch.spark_submit import Options, spark_environment, split_arguments, with_java_options

_HELP = {"-h", "--help"}

# C1 alone: the plans of a broker are small, and optimizing their code takes more CPU time than it ever saves.
_FOR_SMALL_PLANS = "-XX:TieredStopAtLevel=1"


class Verb(NamedTuple):
    """A module with `main(argv: list[str]) -> int`. It needs no Spark where it is called with one of `sparkless`: its
    first word, or an option and its value. Others need Spark only with the option `spark_option`. With Spark it needs
    the packages of `extras`. `java_options`: the defaults for its JVM."""

    module: str
    needs_spark: bool
    help: str
    sparkless: tuple[str, ...] = ()
    extras: tuple[str, ...] = ("spark",)
    java_options: str = ""
    spark_option: str | None = None

    def starts_spark(self, arguments: list[str]) -> bool:
        """Whether it needs Spark for what it is called with."""
        words = [part for word in arguments for part in word.split("=", 1)]
        said = {*words[:1], *(" ".join(pair) for pair in pairwise(words))}
        needs_spark = self.needs_spark and not said & set(self.sparkless)
        return (needs_spark or (bool(self.spark_option) and self.spark_option in arguments)) and not _HELP & set(
            arguments
        )


VERBS = {
    "quickstart": Verb(
        "lakelog.jobs.quickstart",
        True,
        "replicate 336,776 flights over three brokers, and check every record",
        extras=("spark", "demo"),
    ),
    "broker": Verb("lakelog.jobs.broker", True, "run a broker", java_options=_FOR_SMALL_PLANS),
    "controller": Verb("lakelog.jobs.controller", False, "run a controller; show the active one, and its requests"),
    "format": Verb("lakelog.jobs.format", False, "make the root of a cluster or of a broker"),
    "backup": Verb("lakelog.jobs.backup", False, "write a backup of the cluster root, without records, to a file"),
    "recover": Verb("lakelog.jobs.recover", False, "make a lost cluster root again from the roots of its brokers"),
    "cluster-roots": Verb(
        "lakelog.jobs.cluster_roots", False, "show the roots of a cluster; replace a lost one, add or remove two"
    ),
    "topics": Verb("lakelog.jobs.topics", False, "create, list, describe, alter or delete topics"),
    "configs": Verb("lakelog.jobs.configs", False, "describe or alter the settings of topics and brokers"),
    "reassign-partitions": Verb("lakelog.jobs.reassign_partitions", False, "move partitions to other brokers"),
    "leader-election": Verb("lakelog.jobs.leader_election", False, "elect leaders by hand, preferred or unclean"),
    "delete-records": Verb("lakelog.jobs.delete_records", False, "delete the records of partitions below an offset"),
    "get-offsets": Verb("lakelog.jobs.get_offsets", False, "show the offsets of partitions, by place or by time"),
    "consumer-groups": Verb(
        "lakelog.jobs.consumer_groups", False, "list, describe or delete consumer groups; reset their offsets"
    ),
    "log-dirs": Verb("lakelog.jobs.log_dirs", False, "show the replicas in the roots of brokers, and their sizes"),
    "dump-log": Verb("lakelog.jobs.dump_log", False, "show the batches and records of a broker's log, or check them"),
    "verify": Verb("lakelog.jobs.verify", False, "check that all replicas have the same records; repair followers"),
    "brokers": Verb("lakelog.jobs.brokers", False, "show the brokers, and whether they are alive"),
    "status": Verb("lakelog.jobs.status", False, "show what is wrong with a cluster, and what to do about it"),
    "doctor": Verb(
        "lakelog.jobs.doctor",
        False,
        "check what a cluster depends on: its stores, rights, clocks, versions, disks",
        spark_option="--spark",
    ),
    "events": Verb("lakelog.jobs.cluster_events", False, "show what has happened to leaders, ISRs and brokers"),
    "what-if": Verb(
        "lakelog.jobs.what_if", False, "show what becomes of a cluster if brokers, a rack, a bucket or roots are lost"
    ),
    "exporter": Verb("lakelog.jobs.exporter", False, "serve the metrics of a cluster to Prometheus"),
    "ui": Verb("lakelog.jobs.ui", False, "serve a web console of a cluster"),
    "console-producer": Verb("lakelog.jobs.console_producer", False, "send each line of standard input as a record"),
    "console-consumer": Verb("lakelog.jobs.console_consumer", False, "print committed records"),
    "copy-records": Verb(
        "lakelog.jobs.copy_records", False, "copy a range of a topic into another topic, each record once"
    ),
    "export-records": Verb(
        "lakelog.jobs.export_records", False, "write a range of a topic as Parquet, JSON lines or CSV"
    ),
    "producer-perf-test": Verb("lakelog.jobs.producer_perf_test", False, "measure how fast records are sent"),
    "consumer-perf-test": Verb("lakelog.jobs.consumer_perf_test", False, "measure how fast records are consumed"),
    "bench": Verb(
        "lakelog.verification.verbs.bench",
        True,
        "measure sends, replication, growth, log maintenance or the controller, or all of them",
        ("controller", "scale", "all"),
    ),
    "soak": Verb(
        "lakelog.verification.verbs.soak", False, "run a cluster under load and faults, then check every record"
    ),
    "simulate": Verb("lakelog.verification.verbs.simulate", False, "check thousands of random histories in memory"),
    "scenario": Verb(
        "lakelog.verification.verbs.scenario", True, "run scripts of events on a cluster", ("--mode simulated",)
    ),
    "completion": Verb("lakelog.jobs.completion", False, "print a script that completes commands in your shell"),
}


def launch(argv: list[str]) -> int:
    """Start the verb of `argv`. A verb that needs Spark takes this process over, so for it there is no return."""
    try:
        options, words = split_arguments(argv)
        if not words or words[0] in (*_HELP, "help"):
            return run_and_flush(lambda: print(usage()) or OK)
        if words[0] == "--version":
            return run_and_flush(lambda: print(f"lakelog {version()}") or OK)
        return _start(words[0], words[1:], options)
    except ValueError as error:
        print(f"lakelog: {error}", file=sys.stderr)
        return 2


def starts_spark(argv: list[str]) -> bool:
    """Whether `launch` starts Spark for these arguments, and so needs Java. False if it refuses them."""
    try:
        _, words = split_arguments(argv)
    except ValueError:
        return False
    verb = VERBS.get(words[0]) if words else None
    return verb is not None and verb.starts_spark(words[1:])


def verbs_here() -> dict[str, Verb]:
    """The verbs, without those that need a checkout where there is none."""
    return {name: verb for name, verb in VERBS.items() if has_checkout() or not needs_checkout(verb.module)}


def usage() -> str:
    """The list of verbs."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.help}" for name, verb in verbs_here().items()]
    return "\n".join(
        [
            "Usage: lakelog VERB [arguments]    (from a checkout: ./spark-submit.sh VERB [arguments])",
            "       lakelog --version",
            "",
            *lines,
            "",
            "`lakelog VERB --help` lists the options of a verb, with examples.",
            "Options of spark-submit (--master, --conf, --jars ...) may stand anywhere.",
        ]
    )


def _start(name: str, arguments: list[str], options: Options) -> int:
    verb = VERBS.get(name)
    if verb is None:
        if name.startswith("-"):
            raise ValueError(f"the verb comes before {name}; `lakelog --help` lists the verbs")
        close = get_close_matches(name.lower().replace("_", "-"), VERBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the verbs are {', '.join(VERBS)}"
        raise ValueError(f"there is no verb {name!r}; {hint}")
    if needs_checkout(verb.module):
        check_checkout(name)
    if verb.starts_spark(arguments):
        check_installed(verb.extras, options)
        _become(verb.module, arguments, spark_environment(with_java_options(options, verb.java_options)))
    if options and not _HELP & set(arguments):
        raise ValueError(f"{options[0][0]} is an option of spark-submit, and {name} starts no Spark")
    status: int = importlib.import_module(verb.module).main(arguments)
    return status


def _become(module: str, arguments: list[str], variables: dict[str, str]) -> None:
    """Keeps the process id, so that the parent process can signal the driver itself."""
    sys.stdout.flush()
    words = [sys.executable, "-m", "lakelog.jobs.launch.entry", module, *arguments]
    os.execve(sys.executable, words, {**os.environ, **variables})
