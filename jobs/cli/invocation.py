"""Commands that a verb prints for a person, so that they can be copied as they are."""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

from lakelog.jobs.cli.verb_parser import CLUSTER_VARIABLE

_PROGRAM_VARIABLE = "LAKELOG_PROGRAM"  # `spark-submit.sh` sets it to its own name, as it was called


class Invocation(NamedTuple):
    """How this process was called: the program, the cluster's URI (None if the environment gives it), and the
    properties file of --command-config."""

    program: str
    cluster: str | None
    command_config: str | None = None

    @classmethod
    def of(cls, given: str, uri: str, file: object = None) -> Invocation:
        """`given`: the cluster of the command line. `uri`: the same, absolute, for a command that runs elsewhere.
        `file`: the properties file, if there is one; a pipe cannot be read by another command."""
        is_default = os.environ.get(CLUSTER_VARIABLE) == given
        config = os.path.abspath(str(file)) if file is not None and os.path.isfile(str(file)) else None
        return cls(os.environ.get(_PROGRAM_VARIABLE, "lakelog"), None if is_default else uri, config)

    def command(self, verb: str, *words: object, on_cluster: bool = True) -> str:
        """A command in backquotes. `on_cluster`: whether the verb takes --cluster."""
        cluster = ("--cluster", self.cluster) if on_cluster and self.cluster is not None else ()
        config = ("--command-config", self.command_config) if self.command_config is not None else ()
        return f"`{shlex.join([self.program, verb, *map(str, (*cluster, *words, *config))])}`"
