"""Brokers and controllers as separate processes, which a test can kill or freeze at any moment."""

from __future__ import annotations

from copy import copy
from pathlib import Path

from lakelog.jobs.launch.server_process import ServerProcess

# Several brokers fit on a small machine if their JVMs collect garbage with one thread each.
SMALL = ("--driver-memory", "512m", "--master", "local[2]", "--driver-java-options", "-XX:+UseSerialGC")


class BrokerProcess(ServerProcess):
    """A process of `lakelog broker`."""

    def __init__(
        self, cluster_uri: str, broker_id: int, root: str, log: Path, config: Path | None = None,
        options: tuple[str, ...] = SMALL,
    ) -> None:  # fmt: skip
        told = ("--cluster", cluster_uri, "--broker-id", str(broker_id), "--root", root, *_config(config))
        super().__init__(f"broker {broker_id}", ("broker", *options, *told), log)
        self.broker_id = broker_id
        self.root = root

    def start_copy(self) -> BrokerProcess:
        """Starts another process of the same broker beside this one, which the newer one fences."""
        other = copy(self)
        other.start("--take-over")
        return other


class ControllerProcess(ServerProcess):
    """A process of `lakelog controller`, which needs no JVM."""

    def __init__(self, cluster_uri: str, name: str, log: Path, config: Path | None = None) -> None:
        super().__init__(name, ("controller", "--cluster", cluster_uri, *_config(config)), log)

    def has_id(self, controller_id: str) -> bool:
        """Whether this process has the controller id `<host>-<pid>-<random>`."""
        return self.is_running() and controller_id.split("-")[-2:-1] == [str(self.pid)]


def _config(path: Path | None) -> tuple[str, ...]:
    return () if path is None else ("--command-config", str(path))
