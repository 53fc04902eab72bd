"""Carries out the faults of a soak on processes, on roots, and through the controller.

After each fault all processes run again and all roots are in their place, but replicas may be out of sync.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from lakelog.jobs.launch.server_process import ServerProcess
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.verification.faults.broker_process import BrokerProcess, ControllerProcess
from lakelog.verification.faults.cluster_health import ClusterHealth
from lakelog.verification.faults.cluster_processes import ClusterProcesses
from lakelog.verification.faults.soak_plan import Fault
from lakelog.verification.faults.soak_root_faults import RootFaults

# Waits until the check returns no fault. The text describes the wait.
Wait = Callable[[Callable[[], str], str], None]

_FENCED = "StaleBrokerEpochException"
_ALL_COMMITTED, _FROM = -1, 0.9  # an extent above 0.9 deletes all committed records

_Thing = TypeVar("_Thing")


class SoakFaults:
    """Carries out one fault at a time, so no two brokers are away at once.

    `wait` waits for a check, `let` waits a number of seconds. `roots` carries out the faults of roots. `deletable` is
    the topic whose records may be deleted. `not_in_order` counts the processes that did not stop with status 0.
    """

    def __init__(
        self, processes: ClusterProcesses, roots: RootFaults, health: ClusterHealth, admin: AdminClient, deletable: str,
        wait: Wait, let: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._processes = processes
        self._roots = roots
        self._health = health
        self._admin = admin
        self._deletable = deletable
        self._wait = wait
        self._let = let
        self.not_in_order = 0

    def prepare(self, fault: Fault) -> None:
        """Waits until the fault may begin. One that takes away a replica begins when all replicas have all records; the
        others may begin at any time. Raises TimeoutException.

        A full ISR is not enough: a broker that has lost records is still a member until somebody notices.
        """
        if fault.takes_replica:
            self._wait(self._health.lacks_members, f"before {fault.kind}: all replicas are in sync")
            self._wait(self._roots.lacks_repairs, f"before {fault.kind}: rotten files are repaired")
            bounds = self._look_at_bounds()
            self._wait(lambda: self._health.lacks_records(bounds), f"before {fault.kind}: all replicas have everything")

    def carry_out(self, fault: Fault) -> str:
        """Carries out the fault and returns a description. Raises the error that prevents it."""
        name = fault.kind.replace("-", "_")
        done: str = (getattr(self, "_" + name, None) or getattr(self._roots, name))(fault)
        return done

    def _kill_broker(self, fault: Fault) -> str:
        return self._kill([self._broker(fault)], fault)

    def _kill_controller(self, fault: Fault) -> str:
        return self._kill([self._controller()], fault)

    def _kill_both(self, fault: Fault) -> str:
        return self._kill([self._controller(), self._broker(fault)], fault)

    def _kill(self, victims: Sequence[ServerProcess], fault: Fault) -> str:
        for process in victims:
            process.kill()
        self._let(fault.lasts_s)
        for process in victims:
            process.start()
        return " and ".join(process.name for process in victims)

    def _freeze_broker(self, fault: Fault) -> str:
        return self._freeze(self._broker(fault), fault)

    def _freeze_controller(self, fault: Fault) -> str:
        return self._freeze(self._controller(), fault)

    # The same, but longer than a session time-out.
    _expire_broker, _expire_controller = _freeze_broker, _freeze_controller

    def _freeze(self, process: ServerProcess, fault: Fault) -> str:
        process.pause()
        try:
            self._let(fault.lasts_s)
        finally:
            process.resume()
        return process.name

    def _stop_broker(self, fault: Fault) -> str:
        return self._stop(self._broker(fault), fault)

    def _stop_controller(self, fault: Fault) -> str:
        return self._stop(self._controller(), fault)

    def _stop(self, process: ServerProcess, fault: Fault) -> str:
        status = process.stop()
        self.not_in_order += status != 0
        self._let(fault.lasts_s)
        process.start()
        killed = ": killed, because it did not stop in time" if status == -signal.SIGKILL else ""
        return f"{process.name}, status {status}{killed}"

    def _copy_broker(self, fault: Fault) -> str:
        """A second process of a broker is started beside it, with its id and its root, as from a copied machine. The
        first one is fenced and ends; the second one goes on as the broker."""
        first = self._broker(fault)
        second = self._processes.brokers[fault.broker] = first.start_copy()
        try:
            self._wait(lambda: "" if not first.is_running() else "it runs", f"{first.name} is fenced")
            self._wait(lambda: "" if first.has_said(_FENCED) else "it has ended otherwise", f"{first.name} is fenced")
        finally:
            first.kill()
        self._let(fault.lasts_s)
        return f"{second.name} twice: the first one is fenced"

    def _delete_records(self, fault: Fault) -> str:
        """Deletes records up to an offset in the first half of the log, or all committed ones."""
        found = self._partition(fault, self._deletable)
        bounds = self._look_at_bounds()
        start, end = bounds[found.topic_id_partition]
        before = _ALL_COMMITTED if fault.extent > _FROM else start + int((end - start) * fault.extent / 2)
        outcomes = self._admin.delete_records({(found.topic, found.partition): before})
        return f"{_name(found)} before {before}: {_word(outcomes[found.topic, found.partition])}"

    def _look_at_bounds(self) -> dict[TopicIdPartition, tuple[int, int]]:
        found: dict[TopicIdPartition, tuple[int, int]] = {}

        def lacks() -> str:
            try:
                found.update(self._health.bounds())
            except LakelogException as error:
                return f"{error.name}: {error}"
            return ""

        self._wait(lacks, "the leaders' logs can be read")
        return found

    def _reassign(self, fault: Fault) -> str:
        """Moves a partition from all brokers to two, and back to all: the third broker deletes its replica and copies
        it again. It does not wait for the copy, so the next fault may come before that."""
        found = self._partition(fault)
        few, all_of_them = fault.brokers[:2], fault.brokers
        self._wait(lambda: self._move(found, few), f"{_name(found)} may be moved to {few}")
        self._wait(lambda: self._lacks_move(found, few), f"{_name(found)} is moved to {few}")
        self._wait(lambda: self._move(found, all_of_them), f"{_name(found)} may be moved to {all_of_them}")
        return f"{_name(found)} to {few} and to {all_of_them}"

    def _move(self, found: PartitionRegistration, target: Sequence[int]) -> str:
        """Repeats the request if no controller has decided it, because it asks for the same."""
        try:
            outcomes = self._admin.alter_partition_reassignments({(found.topic, found.partition): target})
        except LakelogException as error:
            return f"{error.name}: {error}"
        outcome = outcomes[_name(found)]
        return "" if outcome.error is None else f"{outcome.error}: {outcome.message}"

    def _lacks_move(self, found: PartitionRegistration, target: Sequence[int]) -> str:
        now = next(r for r in self._health.partitions() if r.topic_id_partition == found.topic_id_partition)
        return "" if now.replicas == tuple(target) and not is_reassigning(now) else str(now)

    def _preferred_election(self, fault: Fault) -> str:
        try:
            outcomes = self._admin.elect_leaders("preferred")
        except LakelogException as error:
            return f"{error.name}: {error}"
        words = Counter(outcome.error or "elected" for outcome in outcomes.values())
        return ", ".join(f"{count} {word}" for word, count in sorted(words.items()))

    def _broker(self, fault: Fault) -> BrokerProcess:
        return self._processes.brokers[fault.broker]

    def _controller(self) -> ControllerProcess:
        """The active controller."""
        found: list[ControllerProcess] = []

        def lacks() -> str:
            active = self._health.active()
            found.extend([active] if active else [])
            return "" if active else "no controller is active"

        self._wait(lacks, "a controller is active")
        return found[-1]

    def _partition(self, fault: Fault, topic: str | None = None) -> PartitionRegistration:
        return _at(fault.place, [r for r in self._health.partitions() if topic in (None, r.topic)])


def _at(place: float, things: Sequence[_Thing]) -> _Thing:
    return things[int(place * len(things))]


def _name(found: PartitionRegistration) -> str:
    return found.name


def _word(outcome: int | LakelogException) -> str:
    return f"{outcome.name}: {outcome}" if isinstance(outcome, LakelogException) else str(outcome)
