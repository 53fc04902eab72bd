"""A fetcher's streaming query and rounds, as a test wants them."""

from lakelog.replication.config import Config
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId
from lakelog.replication.storage.delta.storage_root import StorageRoot

ROUND = "round"


class Query:
    """A streaming query that a test ends. `looks` counts how often it was asked whether it runs."""

    def __init__(self):
        self._is_active, self.looks = True, 0

    @property
    def isActive(self):  # noqa: N802
        self.looks += 1
        return self._is_active

    def end(self):
        self._is_active = False

    def exception(self):
        return "it ended"

    def stop(self):
        self.end()


class Writer:
    """Spark's stream writer: records the queries and the function that each calls for a micro-batch."""

    def __init__(self):
        self.queries, self.process, self.writeStream, self.error = [], None, self, None
        self.given, self.added = {}, []  # the rows of each micro-batch: appended, and behind

    def for_stream(self, _):
        self.added = []
        return self

    def frame(self):
        return self

    def add(self, appended, behind):
        self.added.append((list(appended), list(behind)))

    def queryName(self, name):  # noqa: N802
        self.name = name
        return self

    def foreachBatch(self, process):  # noqa: N802
        self.process = process
        return self

    def option(self, name, value):
        return self.options(**{name: value})

    def options(self, **given):
        self.given.update(given)
        return self

    def start(self):
        if self.error:
            raise self.error
        self.queries.append(Query())
        return self.queries[-1]


class Round:
    """A round that returns or raises the values that the test gives."""

    def __init__(self):
        self.answer, self.runs, self.delayed, self.news = False, [], [], False
        self.stops = 0
        self.rows, self.planned, self.plan_of, self.taken = ([], []), [], None, []
        self.is_far, self.answers = False, []  # of the next rounds
        self.has_appended = False

    def is_far_behind(self):
        return self.is_far

    def stream_rows(self):
        rows, self.rows = self.rows, ([], [])
        return rows

    def plan(self, headers, is_behind):
        self.planned.append((headers, is_behind))
        return self.plan_of

    def begin_micro_batch(self, plan):
        self.taken.append(plan)

    def is_round_due(self):
        """News are told once."""
        found, self.news = self.news, False
        return found

    def delay_all(self, error):
        self.delayed.append(error)

    def stop_following(self):
        self.stops += 1

    def run(self):
        self.runs.append(ROUND)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answers.pop(0) if self.answers else self.answer


class Elapsed:
    """Replaces the module `time`. The test moves it."""

    now = 1000.0

    def monotonic(self):
        return self.now


def fetcher_of(root, states, work, config=None):
    home = StorageRoot.of(root)
    key, checkpoints = BrokerIdAndFetcherId(1, 0), home.child("checkpoints")
    return ReplicaFetcher(None, 2, key, home, checkpoints, config or Config(), states, work, PausePoint())
