"""The verbs, and how each is started: one that needs Spark as a driver process of its own, the others in this one."""

import importlib
import os
import sys
from itertools import pairwise
from typing import NamedTuple

from lakelog.jobs.launch.spark_submit import Options, spark_environment, split_arguments


class Verb(NamedTuple):
    """A module with `main(argv: list[str]) -> int`. It needs no Spark where it is called with one of `sparkless`: its
    first word, or an option and its value."""

    module: str
    needs_spark: bool
    help: str
    sparkless: tuple[str, ...] = ()

    def starts_spark(self, arguments: list[str]) -> bool:
        """Whether it needs Spark for what it is called with."""
        words = [part for word in arguments for part in word.split("=", 1)]
        said = {*words[:1], *(" ".join(pair) for pair in pairwise(words))}
        return self.needs_spark and not said & set(self.sparkless)


VERBS = {
    "quickstart": Verb(
        "lakelog.jobs.quickstart", True, "replicate 336,776 flights over three brokers, and check every record"
    ),
    "broker": Verb("lakelog.jobs.broker", True, "run one broker"),
    "controller": Verb(
        "lakelog.jobs.controller", False, "elect leaders, or stand by for it; show who does, and what was asked"
    ),
    "format": Verb("lakelog.jobs.format", False, "make the root of a cluster, or of a broker"),
    "topics": Verb("lakelog.jobs.topics", False, "create, list, describe, alter or delete topics"),
    "configs": Verb("lakelog.jobs.configs", False, "describe or alter the settings of topics and brokers"),
    "reassign-partitions": Verb("lakelog.jobs.reassign_partitions", False, "move partitions to other brokers"),
    "leader-election": Verb("lakelog.jobs.leader_election", False, "elect leaders by hand, preferred or unclean"),
    "delete-records": Verb("lakelog.jobs.delete_records", False, "delete the records of partitions below an offset"),
    "get-offsets": Verb("lakelog.jobs.get_offsets", False, "show the offsets of partitions, by place or by time"),
    "log-dirs": Verb("lakelog.jobs.log_dirs", False, "show what lies in the roots of brokers, and how much of it"),
    "dump-log": Verb(
        "lakelog.jobs.dump_log", False, "show the batches of a broker's log, its records too; check its files"
    ),
    "brokers": Verb("lakelog.jobs.brokers", False, "show the brokers, and whether they are alive"),
    "status": Verb("lakelog.jobs.status", False, "show what is wrong with a cluster, and what to do about it"),
    "bench": Verb(
        "lakelog.jobs.bench", True, "measure against a plain stream and a file copy, in the same run", ("controller",)
    ),
    "kill-test": Verb("lakelog.jobs.kill_test", False, "kill controllers and leaders, then look for every record"),
    "soak": Verb("lakelog.jobs.soak", False, "processes under load while things go wrong, then look for every record"),
    "simulate": Verb("lakelog.jobs.simulate", False, "what ships, in memory: thousands of histories full of accidents"),
    "scenario": Verb(
        "lakelog.jobs.scenario",
        True,
        "run event scripts: brokers are killed, frozen, restarted, and looked at",
        ("--mode simulated",),
    ),
}


def launch(argv: list[str]) -> int:
    """Start the verb of `argv`. A verb that needs Spark takes this process over, so for it there is no return."""
    try:
        options, words = split_arguments(argv)
        if not words or words[0] in ("-h", "--help", "help"):
            print(usage())
            return 0
        return _start(words[0], words[1:], options)
    except ValueError as error:
        print(f"lakelog: {error}", file=sys.stderr)
        return 2


def usage() -> str:
    """The list of verbs."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "Usage: lakelog VERB [arguments]    (from a checkout: ./spark-submit.sh VERB [arguments])",
            "",
            *lines,
            "",
            "VERB --help tells more. Options of spark-submit (--master, --conf, --jars ...) may stand anywhere.",
        ]
    )


def _start(name: str, arguments: list[str], options: Options) -> int:
    verb = VERBS.get(name)
    if verb is None:
        raise ValueError(f"there is no verb {name!r}; the verbs are {', '.join(VERBS)}")
    if verb.starts_spark(arguments):
        _become(verb.module, arguments, spark_environment(options))
    if options:
        raise ValueError(f"{options[0][0]} is an option of spark-submit, and {name} starts no Spark")
    status: int = importlib.import_module(verb.module).main(arguments)
    return status


def _become(module: str, arguments: list[str], variables: dict[str, str]) -> None:
    """Same process id: whoever started us can signal the driver itself."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**os.environ, **variables})
