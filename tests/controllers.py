"""A controller that runs during a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.storage.cluster import Cluster


@contextmanager
def controller_of(cluster_uri: str, name: str = "test", config: Config | None = None) -> Iterator[Controller]:
    """A controller in a thread of this process, which decides clients' requests."""
    controller = Controller(Cluster.open(cluster_uri, config), name)
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()
