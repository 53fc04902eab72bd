"""A fetcher ends its query: it waits for no news, and not for ever for a query that hangs."""

from types import SimpleNamespace

from lakelog.replication.server.fetcher.replica_fetcher import LoopHolder
from tests.hanging import Hanging, ends, in_background
from tests.processes import wait_until


def test_br_04_a_shutdown_does_not_wait_for_an_idle_micro_batch(fetcher):
    fetcher.it._loop = LoopHolder(60)
    waiting = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: fetcher.work.runs, "its first round")
    added = fetcher.writer.added
    fetcher.it.shutdown()
    assert ends(waiting)
    assert fetcher.writer.added == added, "no micro-batch follows: a store that hangs may keep the query from its stop"


def test_br_04_a_shutdown_waits_for_a_hanging_query_until_its_timeout(fetcher, caplog):
    stop, query = Hanging(), fetcher.writer.queries[0]
    query.stop, query.runId = stop, "run"
    fetcher.it._spark = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=lambda _: None))
    assert ends(in_background(lambda: fetcher.it.shutdown(0.05)))
    assert "does not wait any longer for the end of its micro-batch" in caplog.text
    stop.let_go()
    fetcher.it.shutdown()


def test_br_04_an_error_of_a_stopped_query_is_logged(fetcher, caplog):
    fetcher.writer.queries[0].stop = lambda: 1 / 0
    fetcher.it.shutdown()
    assert "ZeroDivisionError" in caplog.text
