"""A signal ends a verb that waits for a controller: its request is withdrawn, so nobody carries it out later."""

import signal
import subprocess
import sys

import pytest

from lakelog.replication.storage.cluster import Cluster
from tests.processes import wait_until


def heeds_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ended(cluster: str, numbers: list[signal.Signals], before: str = "") -> tuple[int, list[str], str]:
    """Status and stderr of a verb that gets signals while it waits, and its request's id. `before` it is shell."""
    words = [sys.executable, "-m", "lakelog.jobs", "topics", "--cluster", cluster, "--create", "--topic", "t"]
    shell = ["sh", "-c", f'{before} exec "$@"', "sh", *words]
    # Whoever runs the tests may have made them ignore SIGHUP, and no shell can take that back.
    verb = subprocess.Popen(shell, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_its_terminal)
    admin = Cluster.open(cluster).admin

    def waits() -> bool:
        admin.refresh()
        return bool(admin.requests)

    try:
        wait_until(waits, "the request is there")
        for number in numbers:
            verb.send_signal(number)
        _, err = verb.communicate(timeout=60)
    finally:
        verb.kill()
    admin.refresh()
    (request,) = admin.requests
    assert request.outcomes["create_topic"].error == "TimeoutException"
    return verb.returncode, err.splitlines(), request.request_id


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_request_is_withdrawn_when_its_verb_is_ended(cluster: str, number: signal.Signals, status: int) -> None:
    returned, (first, last), request_id = ended(cluster, [number])
    assert returned == status
    assert first.startswith("lakelog: no controller is active")
    assert last == (
        f"lakelog: create_topic: request {request_id} is interrupted; it is withdrawn, and nothing of it was done"
    )


def test_a_verb_under_nohup_outlives_its_terminal(cluster: str) -> None:
    """The second signal ends it: the first one would have given another status."""
    assert ended(cluster, [signal.SIGHUP, signal.SIGTERM], "trap '' HUP;")[0] == 143


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["lakelog.jobs", "status", "--cluster", "none"], "lakelog.replication.errors"),
        (["lakelog.jobs", "status", "--cluster", "none"], "pyarrow.lib"),
        (["lakelog.jobs.launch.entry", "lakelog.verification.verbs.scenario", "none"], "lakelog.replication.errors"),
    ],
)
def test_ctrl_c_during_the_imports_is_status_130_and_silence(words: list[str], module: str) -> None:
    """Python tells on stderr what it has imported."""
    verb = subprocess.Popen([sys.executable, "-X", "importtime", "-m", *words], stderr=subprocess.PIPE, text=True)
    assert verb.stderr
    for line in verb.stderr:
        if line.split()[-1] == module:
            verb.send_signal(signal.SIGINT)
            break
    rest = verb.stderr.read().splitlines()
    assert verb.wait(timeout=60) == 130
    assert [line for line in rest if not line.startswith("import time:")] == []
