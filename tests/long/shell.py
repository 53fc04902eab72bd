"""The commands of the README and of `docs/` in a shell. The paths and addresses that they show become a test's."""

import os
import re
import subprocess
from contextlib import ExitStack

from lakelog.replication.storage.cluster import Cluster
from tests.pages import HOUSE, commands
from tests.processes import wait_until

SECONDS = 300


class Shell:
    """Runs commands in the checkout. Paths and addresses that they show become folders of the test, or those of
    `places`. A command with `&` at its end runs on."""

    def __init__(self, folder, places=None):
        self._folder, self._stack = folder, ExitStack()
        self.cluster = f"{folder}/lake/cluster"
        self._places = {
            **(places or {}),
            "s3://bucket/cluster": self.cluster,
            "s3://bucket-1/lake": f"{folder}/lake/broker-1",
            "/lake": f"{folder}/lake",
            "lakelog.zip": f"{folder}/lakelog.zip",
            "/tmp/start": f"{folder}/start",
            "/opt/lakelog": str(HOUSE / ".venv"),
        }
        self._environment = {**os.environ, "PATH": f"{HOUSE / '.venv' / 'bin'}:{os.environ['PATH']}"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def set(self, variables):
        """Sets variables of the environment of its commands."""
        self._environment |= variables

    def run(self, line, seconds=SECONDS):
        """Its output, once it has ended with status 0; none if it runs on."""
        text = re.sub(r"\s#.*", "", line).rstrip()
        if setting := re.fullmatch(r"(\w+)=(\S+)", text):
            self.set({setting[1]: setting[2]})
            return ""
        if text.endswith("&"):
            self.start(text.removesuffix("&"))
            return ""
        done = self.tried(text, seconds)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tried(self, text, seconds=SECONDS):
        """What has come of a command that may fail."""
        return subprocess.run(
            ["bash", "-c", self._placed(text)], cwd=HOUSE, env=self._environment, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip

    def start(self, line):
        """Starts a command that runs until it ends or the test does. Returns its process."""
        with (self._folder / "processes.log").open("ab") as log:
            # `env`, since `exec` takes no variables before a command
            command = ["bash", "-c", f"exec env {self._placed(line)}"]
            process = subprocess.Popen(command, cwd=HOUSE, env=self._environment, stdout=log, stderr=log)
        self._stack.callback(process.wait, SECONDS)
        self._stack.callback(process.terminate)
        return process

    def _placed(self, text):
        return re.sub(rf"(?:{'|'.join(map(re.escape, self._places))})\b", lambda found: self._places[found[0]], text)


def of_page(page, which):
    """The commands of a page with this text."""
    found = [line for line in commands(page) if which in line]
    assert found
    return found


def operating(which):
    """The commands of `docs/operations.md` with this text."""
    return of_page("operations.md", which)


def wait_for_brokers(cluster_uri, *ids):
    """Waits until exactly these have registered."""
    cluster = Cluster.open(cluster_uri)
    wait_until(lambda: tuple(cluster.refresh_brokers()) == ids, f"brokers {ids}", SECONDS)


def start_controller(shell):
    """Makes the cluster, and starts a controller."""
    for line in (*operating(" format "), *operating(" controller ")):
        shell.run(line)
