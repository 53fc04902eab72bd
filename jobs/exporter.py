"""Serves the metrics of a cluster to Prometheus, under the names of kafka_exporter and of Kafka's JMX metrics.

It only reads tables, anew at each scrape, and needs no Spark and no controller. While the cluster root cannot be read,
it serves lakelog_up 0 and no metric of the cluster. One exporter is enough for a cluster.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain

from lakelog.jobs.cli.addresses import LOOPBACK, Address, host_name, port_number
from lakelog.jobs.cli.console import OK, log_to_stderr, run, say
from lakelog.jobs.cli.options import add_command_config, add_log_format, add_log_level
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.jobs.metrics.cluster_counters import ClusterCounters
from lakelog.jobs.metrics.exposition import Family, Labels, is_label_name
from lakelog.jobs.metrics.metric_families import LABEL_NAMES, metric_families, scrape_families
from lakelog.jobs.metrics.metrics_server import MetricsServer
from lakelog.jobs.metrics.scrape_reader import Scrape, ScrapeReader
from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import LakelogException

_LISTEN = f"{LOOPBACK}:9308"  # the port of kafka_exporter
_PAUSE = 0.1  # s in which the process hears that it is to stop
logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _export(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("exporter", __doc__)
    add_cluster(parser)
    parser.add_argument(
        "--listen", type=listen_address, default=listen_address(_LISTEN), metavar="HOST:PORT",
        help="address of the server, such as 0.0.0.0:9308; whoever reaches it can read the names of topics and groups, "
        f"so the default is {_LISTEN}",
    )  # fmt: skip
    parser.add_argument(
        "--label", type=label, action="append", default=[], metavar="NAME=VALUE",
        help="a label of all samples, such as namespace=lake; with {broker} in its value, such as "
        "kubernetes_pod_name=lake-{broker}, only of the samples of a broker, whose id it is; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--log-sizes", action="store_true",
        help="serve the sizes of replicas, too; for these it reads the footers of all files of all logs at the start, "
        "and of each new file: as many requests of an object store",
    )  # fmt: skip
    add_command_config(parser, "session time-outs if they are not the defaults, and credentials of the roots")
    add_log_level(parser)
    add_log_format(parser)
    return parser


def listen_address(text: str) -> Address:
    """A type of argparse: HOST:PORT, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT, such as {_LISTEN}")
    return Address(host_name(host), port_number(port))


def label(text: str) -> tuple[str, str]:
    """A type of argparse: the name and the value of a label that samples get."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as namespace=lake")
    if not is_label_name(name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no name of a label: letters, digits and _, no digit first, not __ at the beginning"
        )
    if name in LABEL_NAMES:
        own = ", ".join(sorted(LABEL_NAMES))
        raise argparse.ArgumentTypeError(f"{name} is a label that metrics set by themselves, as are {own}")
    return name, value


def _export(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    names = [name for name, _ in args.label]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"--label {twice[0]} is given twice")
    log_to_stderr("exporter", args.log_level, args.log_format)
    is_signalled = stop_signals()
    scrapes = ClusterScrapes(args.cluster, settings(args.command_config), Labels(dict(args.label)), args.log_sizes)
    server = MetricsServer(args.listen, scrapes, args.cluster)
    with server.in_background():
        say(f"Serving the metrics of {args.cluster} at http://{server.address}/metrics")
        wait_until(is_signalled, pause=_PAUSE)
    return OK


class ClusterScrapes:
    """The scrapes of one cluster, each of which reads it anew. They come one after another, whoever asks. While the
    cluster cannot be read, they have `lakelog_up 0`, and no metric of an earlier scrape."""

    def __init__(self, uri: str, config: Config, labels: Labels, has_sizes: bool = False) -> None:
        """Reads the cluster once, so that counters begin here. `has_sizes`: see `ScrapeReader`. Raises as
        `Cluster.open` and `ScrapeReader.read`."""
        self._open, self._labels = partial(ScrapeReader, uri, config, has_sizes), labels
        self._lock = threading.Lock()
        self._counters = ClusterCounters()
        self._errors = ErrorLog(logger, "scrape")
        self._reader: ScrapeReader | None = self._open()
        self._counters.observe(self._reader.read())

    def scrape(self) -> Iterator[Family]:
        """Reads the cluster, and returns its metrics as they are now. Several threads read it one after another."""
        with self._lock:
            started = time.monotonic()
            found = self._read()
            counts = None if found is None else self._counters.observe(found)
            seconds = time.monotonic() - started
        of_scrape = scrape_families(found is not None, seconds, self._labels)
        if found is None or counts is None:
            return of_scrape
        return chain(of_scrape, metric_families(found, counts, self._labels))

    def _read(self) -> Scrape | None:
        """Reads the cluster; None if its root cannot be read. Then the next scrape opens it anew."""
        try:
            self._reader = self._reader or self._open()
            found = self._reader.read()
        except (LakelogException, OSError) as error:
            self._reader = None
            self._errors.failed(error)
            return None
        self._errors.worked()
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
