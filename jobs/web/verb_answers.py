"""Runs verbs inside the console, so that a page changes a cluster as the command does: the verb's own parser checks
what was filled in, the verb's own function carries it out, and its words are the answer."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from lakelog.jobs import configs, consumer_groups, leader_election, topics
from lakelog.jobs.cli.console import FAILED, OK, output_to, say
from lakelog.jobs.cli.options import MakeClient
from lakelog.jobs.cli.settings import PropertiesFile, settings
from lakelog.jobs.cli.verb_parser import VerbParser, WrongUsage
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import LakelogException, one_line

logger = logging.getLogger(__name__)

_MOST_LINES, _MOST_LINE = 200, 2_000  # of an answer, and characters of one


class VerbCall(NamedTuple):
    """A change as a command. `words`: without the cluster; `trial`: words that make it a trial; `done`: words without
    which it changes nothing."""

    verb: str
    words: Sequence[object]
    trial: Sequence[object] = ("--dry-run",)
    done: Sequence[object] = ()


class VerbAnswer(NamedTuple):
    """The lines that a verb has printed, and its status. `error`: the name of the exception that has ended it, if one
    has."""

    status: int
    lines: Sequence[str]
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it has done what it was asked for."""
        return self.status == OK

    @property
    def sentence(self) -> str:
        """The last line, which says why a verb has failed."""
        return self.lines[-1] if self.lines else "it has said nothing"


class VerbRunner:
    """Runs the verbs that change a cluster. Threads share it."""

    def __init__(self, cluster: str, file: PropertiesFile | None = None) -> None:
        self._cluster, self._file = cluster, file

    def answer(self, call: VerbCall, is_trial: bool, who: str) -> VerbAnswer:
        """The answer of a verb. Its requests are stored with `who` has asked. It raises nothing."""
        heard: list[str] = []
        status, error = FAILED, None
        with output_to(lambda words: heard.append(words.removeprefix("lakelog: "))):
            try:
                status = self._carry_out(call, is_trial, who)
            except WrongUsage as wrong:
                error, heard[-1:] = type(wrong).__name__, [wrong.words]
            except LakelogException as refused:
                error = refused.name
                heard.append(f"{refused.name}: {refused}")
            except OSError as failed:
                error, words = OSError.__name__, failed.strerror or str(failed)
                heard.append(f"{failed.filename}: {words}" if failed.filename else words)
            except (Exception, SystemExit) as failed:
                error = type(failed).__name__
                logger.exception("%s", call.verb)
                heard.append("the console has failed: its log on stderr says why")
        return VerbAnswer(status, _shortened([one_line(words.replace("\t", "  ")) for words in heard]), error)

    def _carry_out(self, call: VerbCall, is_trial: bool, who: str) -> int:
        make_parser, carry_out = _VERBS[call.verb]
        parser = make_parser()
        words = (*call.words, *(call.trial if is_trial else call.done))
        args = parser.parse_args(["--cluster", self._cluster, *map(str, words)])
        args.command_config = self._file

        def client(of: argparse.Namespace, _: str) -> AdminClient:
            return AdminClient(of.cluster, settings(of.command_config), who, report=say)

        return carry_out(parser, args, client)


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    """At most `_MOST_LINES` lines, the last one included, each of at most `_MOST_LINE` characters."""
    kept = [line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]}…" for line in lines]
    more = len(kept) - _MOST_LINES
    return [*kept[: _MOST_LINES - 1], f"… and {more} lines more", kept[-1]] if more > 0 else kept


_CarryOut: TypeAlias = Callable[[argparse.ArgumentParser, argparse.Namespace, MakeClient], int]

_VERBS: dict[str, tuple[Callable[[], VerbParser], _CarryOut]] = {
    "topics": (topics.make_parser, topics.carry_out),
    "configs": (configs.make_parser, configs.carry_out),
    "leader-election": (leader_election.make_parser, leader_election.carry_out),
    "consumer-groups": (
        consumer_groups.make_parser,
        lambda parser, args, _: consumer_groups.carry_out(parser, args),
    ),
}
