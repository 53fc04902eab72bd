"""Runs a broker in this process, with a Spark session of its own."""

import argparse
from collections.abc import Callable

from lakelog.jobs.cli.console import FAILED, OK, log_to_stderr
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.jobs.launch.session import job_session
from lakelog.replication.config import Config
from lakelog.replication.server.broker import Broker
from lakelog.replication.server.registration import prepare_start
from lakelog.replication.storage.cluster import Cluster


def run_broker(args: argparse.Namespace, config: Config) -> int:
    """What can be refused is refused before a JVM is started for it."""
    log_to_stderr(f"broker {config.broker_id}", args.log_level)
    cluster = Cluster.open(args.cluster, config)
    watch = prepare_start(cluster, config.broker_id, args.root, args.take_over)
    spark = job_session(f"lakelog broker {config.broker_id}")
    told = stop_signals()  # after PySpark, which has a handler of its own
    try:
        return _serve(Broker(spark, args.cluster, args.root, config, watch), told)
    finally:
        spark.stop()


def _serve(broker: Broker, told: Callable[[], bool]) -> int:
    """Runs the broker until it is told to stop; raises what it was stopped by otherwise."""
    broker.start()
    wait_until(lambda: told() or not broker.is_running())
    stopped_by_itself = not told()
    broker.stop()
    broker.wait()
    return FAILED if stopped_by_itself else OK
