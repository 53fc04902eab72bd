"""An S3 server as a process of its own, which can hang, fail on request and be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.launch.server_process import ServerProcess
from lakelog.verification.s3.server import errors_file, port_file

_PATIENCE_SECONDS = 60.0


class StoreProcess(ServerProcess):
    """The process of an object store. Its objects are the files of a folder, whose name is that of the bucket."""

    module = "lakelog.verification.s3.server"

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
