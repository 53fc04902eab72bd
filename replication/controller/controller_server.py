"""A controller process: it is active while it holds the lease, and stands by otherwise.

Kafka: `KafkaController`. Any number may run. The holder of the lease in the `controller` table is active.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from lakelog.replication.controller.active_controller import ActiveController, overview, views
from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.controller.decision import DecisionInterrupted
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import (
    ControllerMovedException,
    FencedClusterRootException,
    InconsistentClusterRootException,
    LakelogException,
)
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.cluster_copier import ClusterCopier
from lakelog.replication.storage.delta.commit_listeners import CommitWaiter
from lakelog.replication.storage.tables.admin_table import AdminTable

logger = logging.getLogger(__name__)

_LEASE_STALENESS_SECONDS = 3.0  # age of a poll of the lease in an object store
_COPY_SECONDS = 2.0  # how long `stop` waits for the copies that are being written
_RENEWALS = 3  # in a session time-out, so that a late renewal does not lose the lease


class Controller:
    """One thread that watches the lease and the brokers' heartbeats, also while it stands by. [CE-01]"""

    def __init__(self, cluster: Cluster, controller_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.controller_id = controller_id
        self._cluster = cluster
        self._clock = clock
        self._session_timeout = cluster.config.controller_session_timeout_ms / 1000
        # A standby watches heartbeats all along: if controller and broker die together, both time-outs run together.
        self._liveness = Liveness(cluster.config.broker_session_timeout_ms, clock)
        self._seen: Lease | None = None
        self._seen_at = self._round_at = clock()
        # The live brokers at the last two moves of the lease, older first: its holder may not have seen later changes.
        self._brokers: tuple[Mapping[int, BrokerView], Mapping[int, BrokerView]] = ({}, {})
        self._held: Lease | None = None
        self._active: ActiveController | None = None
        self._errors = ErrorLog(logger, f"controller {controller_id}", clock)
        self._waiter = CommitWaiter().listen(AdminTable.folder(cluster.root).uri)
        # For controllers that share a process. Cleared, it freezes this one after its round, as SIGSTOP does a process.
        self.awake = threading.Event()
        self.awake.set()
        self._thread = threading.Thread(target=self._run, name=f"controller-{controller_id}", daemon=True)
        self._copier = ClusterCopier(cluster, clock)
        self.failure: FencedClusterRootException | None = None

    @property
    def is_active(self) -> bool:
        """Whether it is the active controller, as far as it knows."""
        return self._active is not None

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def seconds_since_round(self) -> float:
        """The seconds since its last round began; before the first one, since the controller was made."""
        return self._clock() - self._round_at

    @property
    def is_paused(self) -> bool:
        """Whether it is frozen."""
        return not self.awake.is_set()

    def start(self) -> None:
        """Stands for election. [CE-01]"""
        self._thread.start()
        logger.info("controller %s stands for election", self.controller_id)

    def kill(self) -> None:
        """Ends it without resigning, as SIGKILL ends a process. It gives up an unfinished decision."""
        self._waiter.stop()
        self.awake.set()
        self._thread.join()
        self._copier.stop()

    def stop(self) -> None:
        """Ends it. An active controller resigns, so that the next one need not wait for the lease. [CE-06]

        It gives up an unfinished decision. It waits for the thread at most `controller.session.timeout.ms`: the next
        controller's claims refuse all later writes. Then it waits a few seconds for the copies that are being written:
        a process that ends while one of its threads is in native code may crash.
        """
        self._waiter.stop()
        self.awake.set()
        self._thread.join(self._session_timeout)
        if self._held is not None:
            try:
                self._release_requests()
                self._cluster.lease.resign(self._held)
                logger.info("controller %s has resigned", self.controller_id)
            except LakelogException as error:
                logger.warning("controller %s: has not resigned: %s", self.controller_id, error)
            self._copier.stop(_COPY_SECONDS)
            self._stand_down()

    def _release_requests(self) -> None:
        if self._thread.is_alive():
            logger.warning("controller %s resigns, although its last round has not ended yet", self.controller_id)
        elif self._active is not None:
            self._active.requests.release()

    def _run(self) -> None:
        while self._waiter.wait(self._cluster.config.lakelog_poll_interval_ms):
            self.awake.wait()
            if not self._waiter.stopping.is_set():
                self.round()

    def round(self) -> None:
        """Runs `tick` and logs its errors. A deposed controller stands by. [EV-01] An active one copies the cluster's
        tables, also while its rounds fail."""
        self._round_at = self._clock()
        try:
            self.tick()
            self._errors.worked()
        except ControllerMovedException as error:
            self._stand_down_after(error)
        except DecisionInterrupted as interrupted:
            if not isinstance(interrupted.__cause__, InconsistentClusterRootException):
                logger.warning("controller %s gives up a decision: %s", self.controller_id, interrupted)
            if isinstance(interrupted.__cause__, ControllerMovedException):
                self._stand_down_after(interrupted.__cause__)
        except LakelogException as error:
            self._errors.failed(error)
        except Exception:  # an error of this code must not leave the cluster without a controller
            logger.exception("controller %s: unexpected error", self.controller_id)
        self._copy()

    def _copy(self) -> None:
        if self._held is None or self._active is None:
            return
        try:
            self._copier.poll(self._held.controller_epoch)
        except FencedClusterRootException as error:  # it came back
            logger.error("controller %s stops: %s", self.controller_id, error)
            self.failure = error
            self._copier.stop()
            self._waiter.stop()
        except Exception:  # an error of this code must not leave the cluster without a controller
            logger.exception("controller %s: unexpected error in the copies of the tables", self.controller_id)

    def _stand_down_after(self, error: ControllerMovedException) -> None:
        logger.warning("controller %s stands by: %s", self.controller_id, error)
        self._stand_down()

    def tick(self) -> None:
        """Runs one round, as the active controller or as a standby.

        Raises ControllerMovedException once another controller is elected, DecisionInterrupted if the lease cannot be
        renewed or the controller is stopped during a decision, and KafkaStorageException.
        """
        if self._held is not None and self._active is not None:
            self._serve(self._held, self._active)
        else:
            self._stand_by()

    def _stand_by(self) -> None:
        """Takes over once the lease has not moved for the session time-out, by its own clock. [CE-02, EV-04]"""
        brokers = views(self._cluster.poll_brokers(), self._liveness)
        seen = self._cluster.lease.watched(_LEASE_STALENESS_SECONDS)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
            self._brokers = (self._brokers[1], brokers)
        is_vacant = seen is None or seen.resigned
        if is_vacant or self._clock() - self._seen_at >= self._session_timeout:
            held = self._cluster.lease.elect(self.controller_id, seen)
            if held is not None:
                self._fail_over(held)

    def _fail_over(self, held: Lease) -> None:
        """Begins a term. It resigns after any error, because another controller may succeed. [CE-03, FO-01]"""
        self._held, self._seen_at = held, self._clock()
        active = ActiveController(self._cluster, self._liveness, held, self._clock, self._keep_lease)
        try:
            active.fail_over(self._brokers[0])
        except Exception:
            self._held = None
            self._cluster.lease.resign(held)
            raise
        self._active = active
        logger.info(
            "controller %s is active under controller epoch %d: %s",
            self.controller_id, held.controller_epoch, overview(active.context),
            extra={"epoch": held.controller_epoch},
        )  # fmt: skip

    def _serve(self, held: Lease, active: ActiveController) -> None:
        if self._is_renewal_due():
            self._renew(held)
            self._cluster.maintain()
        active.poll()

    def _is_renewal_due(self) -> bool:
        return self._clock() - self._seen_at >= self._session_timeout / _RENEWALS

    def _renew(self, held: Lease) -> None:
        """The time counts from before the write: others may have seen it long before its answer comes."""
        began_at = self._clock()
        self._held = self._cluster.lease.renew(held)
        self._seen_at = began_at

    def _keep_lease(self) -> None:
        """Renews the lease if that is due. A long decision calls this at each step.

        Raises DecisionInterrupted if the controller is being stopped, or if the lease cannot be renewed; then its cause
        is that error. [CE-02]
        """
        if self._waiter.stopping.is_set():
            raise DecisionInterrupted("the controller is being stopped")
        if self._held is not None and self._is_renewal_due():
            try:
                self._renew(self._held)
            except LakelogException as error:
                raise DecisionInterrupted(str(error)) from error

    def _stand_down(self) -> None:
        """Stands by again, and forgets the state of its term. [CE-06, EV-02]"""
        self._held, self._active, self._seen, self._brokers = None, None, None, ({}, {})
        self._copier.stop()
