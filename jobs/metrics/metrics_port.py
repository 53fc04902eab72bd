"""--metrics-port of a broker and of a controller: a server of the metrics of their own process."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from lakelog.jobs.cli.addresses import LOOPBACK, Address, host_name, port_number
from lakelog.jobs.metrics.metrics_server import MetricsServer
from lakelog.jobs.metrics.process_metrics import ProcessScrapes

logger = logging.getLogger(__name__)


def add_metrics_port(parser: argparse.ArgumentParser) -> None:
    """Adds --metrics-port and --metrics-host."""
    parser.add_argument(
        "--metrics-port", type=port_number, metavar="PORT",
        help="serve the metrics of this process to Prometheus at this port, such as 9404; 0: at a free port, which the "
        "log names; default: serve none",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-host", type=host_name, metavar="HOST",
        help="address at which --metrics-port listens, such as 0.0.0.0; there is no password and no TLS, so the "
        f"default is {LOOPBACK}",
    )  # fmt: skip


def check_metrics_port(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the process as one that was called wrongly if there is a host and no port."""
    if args.metrics_host is not None and args.metrics_port is None:
        parser.error("--metrics-host goes with --metrics-port only")


@contextmanager
def serving_metrics(args: argparse.Namespace, title: str) -> Iterator[ProcessScrapes | None]:
    """A block in which the metrics of the process are served, if --metrics-port is given; None if not. Raises
    InvalidConfigurationException if it cannot listen there."""
    if args.metrics_port is None:
        yield None
        return
    address = Address(args.metrics_host or LOOPBACK, args.metrics_port)
    scrapes = ProcessScrapes()
    server = MetricsServer(address, scrapes, title, f"--metrics-port {address.port} at {address.host}")
    with server.in_background():
        logger.info("serves its metrics at http://%s/metrics", server.address)
        yield scrapes
