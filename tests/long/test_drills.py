"""Does the drills of `docs/drills.md` on the cluster of `docs/operations.md`, while something sends to it.

The cluster root is moved away instead of losing a permission, because the user root ignores permissions.
"""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import LakelogException, error_or
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.long.shell import of_page, operating, start_controller, wait_for_brokers
from tests.pages import PAGES
from tests.processes import wait_until

# In seconds:
PATIENCE = 120.0
SENDING = SCRUB = 900.0
AWAY = REST = 20.0


class Drill:
    """The cluster, its processes, and a producer that sends as the page says."""

    def __init__(self, shell):
        self.shell = shell
        start_controller(shell)
        shell.run(*operating(" controller "))
        self.brokers = {number: self.start(number) for number in (1, 2, 3)}
        wait_for_brokers(shell.cluster, 1, 2, 3)
        for line in operating(" topics "):
            shell.run(line)
        self.admin = AdminClient(shell.cluster)
        (line,) = of_page("drills.md", "producer-perf-test")
        self.records = int(re.search(r"--num-records (\d+)", line)[1])
        self.producer = shell.start(line)

    def start(self, broker):
        (line,) = operating(f"--broker-id {broker} --root /lake/broker-{broker} --rack")
        return self.shell.start(line.removesuffix("&"))

    def restart(self, *brokers):
        """Starts brokers that have ended."""
        for broker in brokers:
            assert self.brokers[broker].wait(PATIENCE) is not None
            self.brokers[broker] = self.start(broker)

    def partitions(self):
        found = error_or(self.admin.describe_topic, "orders")
        return () if isinstance(found, LakelogException) else found.partitions

    def wait(self, holds, what, patience=PATIENCE):
        """Waits until all partitions fulfil a condition."""
        wait_until(lambda: (found := self.partitions()) and all(map(holds, found)), what, patience)

    def wait_for_loss_of(self, broker):
        self.wait(lambda p: broker not in {p.leader, *p.isr}, f"broker {broker} is in no ISR")

    def wait_for_all(self):
        self.wait(lambda p: len(p.isr) == 3 and p.leader != NO_LEADER, "all replicas are in sync")

    def offsets(self):
        """The number of records. A leader that has just changed is asked again."""
        line = "lakelog get-offsets --cluster /lake/cluster --topic orders"
        wait_until(lambda: self.shell.tried(line).returncode == 0, "all leaders answer", PATIENCE)
        shown = self.shell.run(line)
        return sum(int(end) for end in re.findall(r"^orders:\d+:(\d+)$", shown, re.M))

    def alive(self):
        shown = self.shell.tried(*operating(" status ")).stdout
        return [int(broker) for broker in re.findall(r"^ +(\d) +alive", shown, re.M)]

    def verifies(self, broker):
        return self.shell.tried(f"lakelog dump-log --root /lake/broker-{broker} --verify").returncode == 0

    def format_anew(self, broker):
        """Deletes the root of a broker, and formats it again as the page says."""
        (line,) = re.findall(
            rf"`(lakelog format .* --root /lake/broker-{broker})`", PAGES["drills.md"].read_text("utf-8")
        )
        self.shell.run(f"rm -r /lake/broker-{broker}")
        self.shell.run(line)


def test_the_drills_hold(shell, tmp_path):
    drill = Drill(shell)
    a_leader_is_killed(drill)
    a_broker_freezes(drill)
    the_active_controller_is_killed(drill)
    a_root_is_lost(drill)
    the_cluster_root_cannot_be_reached(drill, tmp_path / "lake")
    assert drill.producer.wait(SENDING) == 0, "the producer reports no error"
    a_file_rots(drill, tmp_path / "lake" / "broker-3")
    assert drill.offsets() == drill.records, "every acknowledged record is there once"
    the_last_member_of_an_isr_loses_its_root(drill)


def a_leader_is_killed(drill):
    (line,) = of_page("drills.md", "what-if")
    told = json.loads(drill.shell.run(f"{line.replace('--kill 2', '--kill 1')} -o json"))
    drill.brokers[1].kill()
    drill.wait_for_loss_of(1)
    predicted = {change["partition"]: change["new_leader"] for change in told["changes"]}
    assert predicted == {partition.name: partition.leader for partition in drill.partitions()}
    drill.restart(1)
    drill.wait_for_all()


def a_broker_freezes(drill):
    drill.brokers[3].send_signal(signal.SIGSTOP)
    drill.wait_for_loss_of(3)
    drill.brokers[3].send_signal(signal.SIGCONT)
    drill.wait_for_all()


def the_active_controller_is_killed(drill):
    active = drill.admin.describe_controller().controller_id
    os.kill(int(active.split("-")[-2]), signal.SIGKILL)
    wait_until(lambda: drill.admin.describe_controller().controller_id != active, "another one takes over", PATIENCE)
    drill.shell.run(*operating(" controller "))


def a_root_is_lost(drill):
    drill.brokers[2].terminate()
    assert drill.brokers[2].wait(PATIENCE) == 0
    drill.format_anew(2)
    drill.restart(2)
    drill.wait_for_all()


def the_cluster_root_cannot_be_reached(drill, lake):
    before = drill.offsets()
    (lake / "cluster").rename(lake / "away")
    with suppress(subprocess.TimeoutExpired):
        drill.producer.wait(AWAY)
    assert not (lake / "cluster").exists(), "nobody makes another cluster in its place"
    (lake / "away").rename(lake / "cluster")
    drill.wait_for_all()
    wait_until(lambda: drill.offsets() > before, "sends go on", PATIENCE)


def a_file_rots(drill, root):
    """Nothing is sent or merged meanwhile, so the broker can notice it only when it reads all its files again."""
    log = ReplicaLog.open(StorageRoot.of(f"{root}/log"))
    wait_for_rest(log)
    largest = max(log.current().segments.values(), key=lambda segment: segment.file.size)
    path = root / "log" / largest.name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert not drill.verifies(3), "the command finds it"
    wait_until(lambda: drill.verifies(3), "the broker drops and fetches the records", SCRUB)
    assert largest.name not in log.refresh().segments
    drill.wait_for_all()
    drill.shell.run("lakelog log-dirs --cluster /lake/cluster --describe --verify")


def wait_for_rest(log):
    """Waits until a log has had no commit for some seconds."""
    seen, since = log.refresh().version, time.monotonic()

    def rests():
        nonlocal seen, since
        if log.refresh().version != seen:
            seen, since = log.current().version, time.monotonic()
        return time.monotonic() > since + REST

    wait_until(rests, "no more commits", PATIENCE)


def the_last_member_of_an_isr_loses_its_root(drill):
    for broker in (1, 3):
        drill.brokers[broker].terminate()
        assert drill.brokers[broker].wait(PATIENCE) == 0
    drill.wait(lambda p: p.isr == (2,), "broker 2 is in sync alone")
    drill.brokers[2].kill()
    drill.brokers[2].wait(PATIENCE)
    drill.format_anew(2)
    drill.restart(1, 2, 3)
    drill.wait(lambda p: p.leader == NO_LEADER, "nobody leads")
    wait_until(lambda: drill.alive() == [1, 2, 3], "all brokers are back", PATIENCE)
    drill.shell.run(*of_page("drills.md", "leader-election"))
    leaders = {p.partition: p.leader for p in drill.partitions()}
    assert leaders.pop(0) in (1, 3)
    assert set(leaders.values()) == {NO_LEADER}, "the others wait for a decision of their own"
