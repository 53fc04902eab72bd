"""Runs one broker in a process of its own. On SIGTERM or SIGINT the broker hands its partitions to other leaders, then
stops. It also stops if a newer process runs the same broker.
"""

import argparse
import sys
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import FAILED, JSON, OK, log_to_stderr, run
from lakelog.jobs.cli.json_log import jvm_with_json
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config, add_log_format, add_log_level
from lakelog.jobs.cli.settings import broker_settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of, root_uri
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.jobs.launch.session import job_session
from lakelog.jobs.metrics.jvm_figures import JvmReader
from lakelog.jobs.metrics.metrics_port import add_metrics_port, check_metrics_port, serving_metrics
from lakelog.jobs.metrics.process_metrics import ServerFigures
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.server.broker_server import Broker
from lakelog.replication.server.registration import prepare_start
from lakelog.replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _run(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("broker", __doc__)
    add_cluster(parser)
    parser.add_argument(
        "--root", type=root_uri, required=True, metavar="URI", help="root of this broker; it is made if it is empty"
    )
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="id of this broker; default: broker.id")
    add_command_config(parser, "settings of this broker, and credentials of the roots")
    parser.add_argument("--rack", metavar="NAME", help="rack, zone or region of this broker; default: broker.rack")
    parser.add_argument("--take-over", action="store_true", help="start even if another process runs this broker")
    add_log_level(parser)
    add_log_format(parser)
    add_metrics_port(parser)
    return parser


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_metrics_port(parser, args)
    try:
        config = broker_settings(args.command_config, args.broker_id, args.rack)
    except InvalidConfigurationException as error:
        return parser.error(str(error))
    from lakelog.jobs.broker import run_broker  # the arguments need no Spark

    return run_broker(args, config)


def run_broker(args: argparse.Namespace, config: Config) -> int:
    """Runs a broker. It refuses wrong settings before it starts a JVM."""
    log_to_stderr(f"broker {config.broker_id}", args.log_level, args.log_format)
    with serving_metrics(args, f"broker {config.broker_id} of {args.cluster}") as metrics:
        cluster = Cluster.open(args.cluster, config)
        watch = prepare_start(cluster, config.broker_id, args.root, args.take_over)
        spark = _session(config.broker_id, args.log_format)
        is_signalled = stop_signals()  # after PySpark, which has a handler of its own
        try:
            broker = Broker(spark, args.cluster, args.root, config, watch)
            if metrics is not None:
                metrics.server = lambda: ServerFigures(time.time() - broker.pause_point.seconds_since_passed())
                metrics.jvm = JvmReader(spark, broker.queries).read
            return _serve(broker, is_signalled)
        finally:
            spark.stop()


def _session(broker: int, log_format: str) -> SparkSession:
    name = f"lakelog broker {broker}"
    if log_format != JSON:
        return job_session(name)
    with jvm_with_json(str(broker)):
        return job_session(name, configs={"spark.log.structuredLogging.enabled": "true"})


def _serve(broker: Broker, is_signalled: Callable[[], bool]) -> int:
    """Runs the broker until a signal stops it; raises the error that stopped it otherwise."""
    broker.start()
    wait_until(lambda: is_signalled() or not broker.is_running)
    stopped_by_itself = not is_signalled()
    broker.stop()
    broker.wait()
    return FAILED if stopped_by_itself or broker.pause_point.is_killed else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
