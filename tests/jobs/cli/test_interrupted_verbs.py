"""A verb that a signal ends while it waits for a controller: nobody carries its request out later."""

import signal
import subprocess
import sys

import pytest

from lakelog.replication.storage.cluster import Cluster
from tests.processes import wait_until


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_request_is_withdrawn_when_its_verb_is_ended(cluster: str, number: signal.Signals, status: int) -> None:
    words = ["topics", "--cluster", cluster, "--create", "--topic", "t"]
    verb = subprocess.Popen([sys.executable, "-m", "lakelog.jobs", *words], stderr=subprocess.PIPE, text=True)
    admin = Cluster.open(cluster).admin

    def waits() -> bool:
        admin.refresh()
        return bool(admin.requests)

    try:
        wait_until(waits, "the request is there")
        verb.send_signal(number)
        _, err = verb.communicate(timeout=60)
    finally:
        verb.kill()
    admin.refresh()
    (request,) = admin.requests
    first, last = err.splitlines()
    assert first.startswith("lakelog: no controller is active")
    assert last == (
        f"lakelog: create_topic: request {request.request_id} is interrupted; it is withdrawn, and nothing of it was "
        "done"
    )
    assert (verb.returncode, request.outcomes["create_topic"].error) == (status, "TimeoutException")
