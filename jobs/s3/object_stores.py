"""Object stores on this machine for the roots of a cluster, each a process of its own that can fail on request."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.faults.broker_process import ServerProcess
from lakelog.jobs.s3.server import errors_file, port_file
from lakelog.replication.config import Owner

_PATIENCE_SECONDS = 60.0


class StoreProcess(ServerProcess):
    """The process of an object store. Its objects are the files of a folder, whose name is that of the bucket."""

    module = "lakelog.jobs.s3.server"

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__("store", (), log)
        self._command = [sys.executable, "-m", self.module, str(folder)]
        self.folder = folder

    def await_options(self) -> dict[str, str]:
        """The options for clients, once the store listens. Raises BrokerNotAvailableException, TimeoutException."""

        def listens() -> bool:
            self.check()
            return port_file(self.folder).exists()

        wait_until(listens, "the store listens", _PATIENCE_SECONDS)
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port_file(self.folder).read_text()}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
        }

    def begin_errors(self) -> None:
        """Makes the store answer every request with an error."""
        errors_file(self.folder).touch()

    def end_errors(self) -> None:
        """Makes the store work again."""
        errors_file(self.folder).unlink(missing_ok=True)

    @property
    def has_errors(self) -> bool:
        """Whether the store answers every request with an error."""
        return errors_file(self.folder).exists()


def root_name(owner: Owner) -> str:
    """The name of the folder of the cluster's root or of a broker's: `cluster`, `broker-1`."""
    return owner if isinstance(owner, str) else f"broker-{owner}"


class ObjectStores:
    """A store with one bucket for each of the owners. `processes`: the stores by owner."""

    def __init__(self, folder: Path, owners: Iterable[Owner]) -> None:
        self.processes = {
            owner: StoreProcess(folder / f"store-{owner}" / _bucket(owner), folder / f"store-{owner}.log")
            for owner in owners
        }

    def uri(self, owner: Owner) -> str:
        """The URI of an owner's root."""
        return f"s3://{_bucket(owner)}/{root_name(owner)}"

    def folder(self, owner: Owner) -> Path:
        """The folder on the disk that has the objects of an owner's root."""
        return self.processes[owner].folder / root_name(owner)

    def _store_of(self, uri: str) -> StoreProcess:
        return next(store for owner, store in self.processes.items() if self.uri(owner) == uri)

    def take_away(self, uri: str) -> None:
        """Makes the store of a root answer every request with an error."""
        self._store_of(uri).begin_errors()

    def bring_back(self, uri: str) -> None:
        """Makes the store of a root work again."""
        self._store_of(uri).end_errors()

    def is_away(self, uri: str) -> bool:
        """Whether the store of a root answers every request with an error."""
        return self._store_of(uri).has_errors

    @contextmanager
    def running(self) -> Iterator[ObjectStores]:
        """Runs the stores, and gives their options to all clients in this process and its children, during the block.
        Kills the stores at its end, also after an error."""
        with ExitStack() as ending:
            for store in self.processes.values():
                ending.callback(store.kill)
                store.start()
            options = {owner: store.await_options() for owner, store in self.processes.items()}
            names = {
                f"LAKELOG_STORAGE_{owner}_{name}".upper(): value
                for owner, given in options.items()
                for name, value in given.items()
            }
            with _environment(names):
                yield self

    def check(self) -> None:
        """Raises BrokerNotAvailableException if a store has ended by itself."""
        for store in self.processes.values():
            store.check()


def _bucket(owner: Owner) -> str:
    return f"bucket-{owner}"


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables for this process and its children during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
