"""Consumers in processes of their own share a topic while one is killed and one is stopped: no record is missing, and
none is committed twice."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.errors import CommitFailedException
from tests.clients.world import World
from tests.processes import SPAWN, wait_until
from tests.storage.logs import P0, P1, TOPIC, fill

SESSION = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 150, "auto_offset_reset": "earliest"}


def consume(uri, name, out, ending):
    """Writes what it gets, and again once that is committed, a line each."""
    with (
        open(out, "a", buffering=1) as lines,
        Consumer(uri, "g", client_id=name, enable_auto_commit=False, **SESSION) as c,
    ):
        c.subscribe([TOPIC])
        while not ending.is_set():
            records = c.poll(0.1)
            got = list(zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True))
            if not got:
                continue
            lines.write(json.dumps(["got", got]) + "\n")
            try:
                c.commit()
                lines.write(json.dumps(["committed", got]) + "\n")
            except CommitFailedException:
                lines.write(json.dumps(["refused", got]) + "\n")


class Processes:
    """Three consumers, and a producer of one record a time."""

    def __init__(self, folder):
        self.world = World(str(folder / "root"))
        self.files = {name: folder / name for name in ("killed", "stopped", "spared")}
        self.ending = SPAWN.Event()
        self.sent = {P0: 0, P1: 0}
        self.of = {}

    def start(self, name):
        self.files[name].touch()
        arguments = (self.world.uri, name, str(self.files[name]), self.ending)
        self.of[name] = SPAWN.Process(target=consume, args=arguments, daemon=True)
        self.of[name].start()

    def signal(self, name, number):
        os.kill(self.of[name].pid, number)

    def send(self):
        for partition in self.sent:
            fill(self.world.logs[1], partition, 1, producer_id=1000 + self.sent[partition])
            self.sent[partition] += 1
            self.world.say(self.sent[partition], partition)

    def told(self, what, *names):
        """The records of these lines; a process that was killed may have written half of the last one."""
        found = []
        for name in names or self.files:
            whole = [line for line in self.files[name].read_text().splitlines(keepends=True) if line.endswith("\n")]
            found += [tuple(r) for kind, records in map(json.loads, whole) if kind == what for r in records]
        return found

    def gets(self, name, more=1):
        """Sends until the consumer has got so many records more."""
        count = len(self.told("got", name)) + more
        wait_until(lambda: self.send() or len(self.told("got", name)) >= count, f"{name} gets records")

    def everything(self):
        return {(p.partition, offset) for p, count in self.sent.items() for offset in range(count)}

    def stop(self):
        self.ending.set()
        for process in self.of.values():
            process.join(10)
            process.kill()


def test_ap_04_each_record_is_committed_once_while_members_die_and_freeze(tmp_path: Path):
    processes = Processes(tmp_path)
    try:
        for name in ("killed", "stopped"):
            processes.start(name)
        for name in ("killed", "stopped"):
            processes.gets(name, 3)
        processes.signal("stopped", signal.SIGSTOP)
        processes.start("spared")
        processes.gets("spared", 3)  # the stopped member's partition has moved
        processes.signal("killed", signal.SIGKILL)
        processes.signal("stopped", signal.SIGCONT)
        processes.gets("stopped", 3)  # as a new member
        processes.gets("spared", 3)
        survivors = ("stopped", "spared")
        wait_until(
            lambda: processes.everything() <= set(processes.told("committed") + processes.told("got", "killed")),
            "every record is read",
        )
    finally:
        processes.stop()
    committed = Counter(processes.told("committed"))
    assert [record for record, times in committed.items() if times > 1] == []
    unsure = set(processes.told("got", "killed")) - set(processes.told("committed", "killed"))
    assert processes.everything() - set(committed) <= unsure, "its commit may have landed unseen"
    for name in survivors:
        answered = processes.told("committed", name) + processes.told("refused", name)
        assert sorted(answered) == sorted(processes.told("got", name))
        assert not set(processes.told("committed", name)) & set(processes.told("committed", "killed"))
