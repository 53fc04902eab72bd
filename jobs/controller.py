"""`lakelog controller`: elects leaders in place of brokers that die; any number may run, one is active. [CE-01]"""

import argparse
import os
import socket
import sys
import uuid

from jobs.console import OK, log_to_stderr, parser_of, run
from jobs.settings import settings
from jobs.waiting import stop_signals, wait_until
from replication.controller.controller import Controller
from replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), _run, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("controller", __doc__)
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    parser.add_argument("--config", metavar="FILE", help="server.properties")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    return parser


def _run(args: argparse.Namespace) -> int:
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    log_to_stderr(f"controller {name}", args.log_level)
    controller = Controller(Cluster.open(args.cluster, settings(args.config)), name)
    told = stop_signals()
    controller.start()
    wait_until(told)
    controller.stop()
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
