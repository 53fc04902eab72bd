"""A fetcher's query starts, ends by itself, is restarted, and is shut down."""

import dataclasses
import threading
from types import SimpleNamespace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.fetch_state import FollowerState, InitialFetchState
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.fetcher import follower_query, replica_fetcher
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.follower_query import CHECKPOINTS_IN_THE_BACKGROUND
from lakelog.replication.server.fetcher.replica_fetcher import LoopHolder, QueryStart
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from lakelog.replication.storage.delta.commit_listeners import notify_listeners
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.clock import Clock
from tests.hanging import Hanging, ends, in_background, raises
from tests.processes import wait_until
from tests.server.fetcher.streams import ROUND, Round, Writer, fetcher_of
from tests.server.quota_cache import QuotaCache
from tests.storage.logs import P0, P1, new_log

SHIPPED_BEGIN = QueryStart.begin
LED = PartitionRegistration("flights", "flights-id", 0, (1, 2), 1, 0, (1,))
FOLLOWED = PartitionRegistration("flights", "flights-id", 1, (1, 2), 2, 0, (2,))


@pytest.fixture
def fetch(root):
    """A round of a fetcher whose leader has published nothing yet. It does nothing and needs no Spark."""
    storage, pause_point, published, looks = StorageRoot.of(root), PausePoint(), [], []
    log = new_log(storage.child("log"))
    states = SharedFetchStates(Clock())
    leaders = ReplicaTable.create(storage)
    context = FetchContext(
        None, Config(), 2, log, 1, storage.child("leader"), lambda: looks.append(1) or leaders, lambda _: None,
        lambda _: None, FollowerWrites(log, "broker-2", published.append), pause_point,
        ReplicationQuotas(2, QuotaCache()), dict,
    )  # fmt: skip
    return SimpleNamespace(
        round=FetchRunner(context, states),
        states=states,
        pause_point=pause_point,
        published=published,
        looks=looks,
        log=log,
    )


def test_ft_03_ft_14_without_anything_to_fetch_nothing_is_read_and_nobody_is_woken(fetch):
    assert fetch.round.run() is False
    assert fetch.looks == []
    fetch.states.assign({P0: InitialFetchState("flights", 1, 0, 0)})
    assert fetch.round.run() is False
    assert fetch.states.all().get(P0).shown_state == FollowerState.TRUNCATING, "it waits for its leader"


@pytest.mark.parametrize("error", [KafkaStorageException("no route to host"), OSError("connection reset")], ids=repr)
def test_ft_06_a_fetch_that_fails_delays_all_its_partitions_and_tells(fetch, monkeypatch, caplog, error):
    fetch.states.assign({p: InitialFetchState("flights", 1, 0, 0) for p in (P0, P1)})
    monkeypatch.setattr(ReplicaTable, "poll", raises(error))
    for _ in range(2):
        assert fetch.round.run() is False
    said = f"{type(error).__name__}: {error}"
    assert {(s.shown_state, s.error) for s in fetch.states.all().values()} == {(FollowerState.DELAYED, said)}
    assert fetch.published == ["delayed"] * 2
    line = f"broker-2: {P0.topic_id}-0, {P1.topic_id}-1 are delayed: {said}"
    assert [record.getMessage() for record in caplog.records] == [line], "once, not in each round"


def test_ft_13_a_line_of_the_log_has_the_topic_and_no_stack_trace(fetch, monkeypatch, caplog):
    fetch.states.assign({P0: InitialFetchState("flights", 1, 0, 0)})
    fetch.log.refresh().topics.update({P0.topic_id: "flights"})
    monkeypatch.setattr(ReplicaTable, "poll", raises(OSError("away\n\tat java.lang.Thread.run(Thread.java:840)")))
    fetch.round.run()
    assert caplog.messages == ["broker-2: flights-0 is delayed: OSError: away"]


def test_a_fetcher_of_a_broker_that_was_killed_does_nothing_more(fetch):
    fetch.pause_point.kill()
    with pytest.raises(BrokerKilled):
        fetch.round.run()
    assert (fetch.looks, fetch.published) == ([], []), "not even a look at its leader"


@pytest.mark.parametrize("stop", ["remove", "shutdown"])
def test_fm_07_br_04_a_source_that_hangs_does_not_keep_a_broker_from_stopping_to_fetch(fetch, root, monkeypatch, stop):
    """The stop does not wait for the hanging round, which writes nothing when it goes on."""
    fetch.states.assign({P0: InitialFetchState("flights", 1, 0, 0)})
    source = Hanging(lambda *_: False)
    monkeypatch.setattr(ReplicaTable, "poll", source)
    made = fetcher_of(root, fetch.states, fetch.round)
    hung = in_background(lambda: made._fetch())
    assert source.is_entered.wait(30)
    assert ends(in_background({"remove": lambda: made.states.remove([P0]), "shutdown": made.shutdown}[stop]))
    assert len(made.states) == 0
    source.let_go()
    assert ends(hung)
    assert (fetch.log.refresh().version, fetch.published) == (0, [])


def test_ft_01_a_micro_batch_begins_its_rounds_after_the_step_under_way(fetcher):
    """The query has begun meanwhile. What the plan marks, a round under way would undo."""
    hanging = Hanging(lambda *_: fetcher.work.taken.append("the thread's round"))
    fetcher.work.run, run = hanging, fetcher.work.run
    fetcher.work.news = True
    under_way = in_background(fetcher.it.keep_running)
    assert hanging.is_entered.wait(30)
    fetcher.work.run = run
    first = in_background(lambda: fetcher.writer.process(None, 0))
    first.join(0.05)
    assert fetcher.work.taken == []
    hanging.let_go()
    assert ends(under_way)
    assert ends(first)
    assert fetcher.work.taken == ["the thread's round", None]


@pytest.fixture
def starting(root, monkeypatch):
    """A fetcher whose query is about to start: Spark analyses it."""
    writer, work = Writer(), Round()
    monkeypatch.setattr(follower_query, "HeaderStream", writer.for_stream)
    monkeypatch.setattr(replica_fetcher, "kill_if_stopped", lambda *_: None)
    writer.start, work.news = Hanging(writer.start), True
    it = fetcher_of(root, SharedFetchStates(Clock()), work, Config(replica_fetch_wait_max_ms=1))
    it._loop = LoopHolder(0.0)
    it.keep_running()
    assert writer.start.is_entered.wait(30)
    yield SimpleNamespace(it=it, writer=writer, work=work)
    writer.start.let_go()


def test_ft_01_rounds_go_on_while_the_query_starts_and_no_other_is_started(starting):
    for count in range(2, 5):
        starting.work.news = True
        starting.it.keep_running()
        assert starting.work.runs == [ROUND] * count
    starting.writer.start.let_go()
    wait_until(lambda: starting.it.keep_running() or starting.it._query is not None, "the query")
    assert len(starting.writer.queries) == 1


def test_ft_01_the_first_micro_batch_goes_on_although_the_start_of_its_query_has_not_returned(starting):
    """Spark begins it at once."""
    starting.it._loop.longest = 60
    first = in_background(lambda: starting.writer.process(None, 0))
    wait_until(lambda: starting.work.taken == [None], "the micro-batch")
    starting.it.keep_running()
    first.join(0.05)
    assert first.is_alive()
    starting.writer.start.let_go()
    starting.it.shutdown()
    assert ends(first)


def test_ft_01_a_query_for_whose_start_there_is_no_thread_is_tried_again(fetcher, monkeypatch, caplog):
    monkeypatch.setattr(QueryStart, "begin", SHIPPED_BEGIN)
    monkeypatch.setattr(threading.Thread, "start", raises(RuntimeError("can't start new thread")))
    fetcher.writer.queries[0].end()
    for _ in range(2):
        fetcher.time.now += 10
        fetcher.it.keep_running()
    assert "its query does not start: can't start new thread" in caplog.text
    monkeypatch.undo()
    fetcher.it.shutdown()


def test_br_04_a_shutdown_stops_a_query_that_was_about_to_start(starting):
    ending = in_background(starting.it.shutdown)
    ending.join(0.05)
    starting.writer.start.let_go()
    assert ends(ending)
    assert [query.isActive for query in starting.writer.queries] == [False]


def test_ft_01_ft_13_a_query_that_ends_is_started_again_after_a_backoff(fetcher, caplog):
    fetcher.work.stream_rows = raises(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        fetcher.writer.process(None, 0)
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    for _ in range(2):
        fetcher.it.keep_running()
        assert len(fetcher.writer.queries) == 1, "first a backoff"
        fetcher.time.now += 0.9
    assert caplog.messages == [
        "broker-2:ReplicaFetcherThread-0-1: its query has ended: it ended; the next start is in 1.0 s"
    ]
    fetcher.it.keep_running()
    assert len(fetcher.writer.queries) == 2
    fetcher.it.keep_running()
    assert len(fetcher.writer.queries) == 2, "it runs"


def test_a_checkpoint_is_on_the_local_disk_wherever_spark_has_its_files(fetcher, root):
    assert fetcher.writer.given["checkpointLocation"].startswith(f"file://{root}/checkpoints/ReplicaFetcherThread-0-1/")


def test_checkpoints_are_written_in_the_background(fetcher):
    assert CHECKPOINTS_IN_THE_BACKGROUND.items() <= fetcher.writer.given.items()


def test_br_04_a_fetcher_asks_once_a_second_and_at_a_failed_start_whether_spark_has_stopped(fetcher):
    """A stopped application leaves its queries active, and starts no others."""
    begun = len(fetcher.stops)
    for _ in range(16):
        fetcher.it.keep_running()
        fetcher.time.now += 0.125
    assert fetcher.stops[begun:] == [(None, 2, fetcher.it._pause_point)] * 2
    fetcher.writer.queries[0].end()
    fetcher.writer.error = ZeroDivisionError()
    fetcher.time.now += 1
    fetcher.it.keep_running()
    asked = len(fetcher.stops)
    fetcher.time.now += 2
    fetcher.it.keep_running()
    assert len(fetcher.stops) == asked + 1, "there is no query to look at"


def test_ft_01_ft_15_a_query_that_does_not_start_is_tried_again_later_each_time_and_the_rows_say_why(fetcher, caplog):
    fetcher.writer.queries[0].end()
    fetcher.writer.error = ZeroDivisionError("no worker\nat java.lang")
    fetcher.time.now += 1
    waits, began = [], fetcher.time.now
    for _ in range(180):
        fetcher.it.keep_running()
        if len(fetcher.work.delayed) > len(waits):
            waits.append(fetcher.time.now - began)
            began = fetcher.time.now
        fetcher.time.now += 0.125
    assert waits == [0, 1, 2, 4, 5, 5, 5]
    assert fetcher.work.delayed == ["its query has ended: it ended"] + ["its query does not start: no worker"] * 6
    assert len(caplog.messages) == 7, "a line a failure"
    fetcher.writer.error = None
    fetcher.time.now += 10
    fetcher.it.keep_running()
    assert [query.isActive for query in fetcher.writer.queries] == [False, True]


def test_ft_01_a_query_that_has_run_begins_with_the_first_backoff_again(fetcher, caplog):
    for number in range(3):
        fetcher.writer.queries[-1].end()
        fetcher.time.now += 1
        fetcher.it.keep_running()
        fetcher.time.now += 10
        fetcher.it.keep_running()
        if number == 1:
            fetcher.writer.process(None, 0)
    assert [line.rpartition("in ")[2] for line in caplog.messages] == ["1.0 s", "2.0 s", "1.0 s"]


def test_ft_06_ft_15_what_the_query_fails_with_delays_all_partitions_and_is_published(fetch):
    fetch.states.assign({p: InitialFetchState("flights", 1, 0, 0) for p in (P0, P1)})
    fetch.round.delay_all("its query has ended: no worker")
    found = {(s.shown_state, s.error) for s in fetch.states.all().values()}
    assert found == {(FollowerState.DELAYED, "its query has ended: no worker")}
    assert fetch.published == ["delayed"]


def test_ft_15_a_row_that_cannot_be_published_now_ends_nothing(fetch):
    """The broker publishes the row with its next rows."""
    fetch.states.assign({P0: InitialFetchState("flights", 1, 0, 0)})
    writes = FollowerWrites(fetch.log, "broker-2", raises(KafkaStorageException("disk full")))
    fetch.round._context = dataclasses.replace(fetch.round._context, writes=writes)
    fetch.round.delay_all("its query has ended: no worker")
    assert fetch.states.all().get(P0).shown_state == FollowerState.DELAYED


def test_ft_01_a_fetcher_attends_to_its_query_by_itself_until_it_is_shut_down(fetcher):
    """Its broker has to lead, and does not wait for a query."""
    fetcher.it.start()
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    wait_until(lambda: fetcher.work.delayed, "the end of the query is found")
    fetcher.time.now += 10
    wait_until(lambda: len(fetcher.writer.queries) == 2, "the query is started again")
    fetcher.it.shutdown()
    assert [query.isActive for query in fetcher.writer.queries] == [False, False]
    assert not [t for t in threading.enumerate() if t.name == "broker-2-ReplicaFetcherThread-0-1"]


def test_ft_01_before_its_query_has_begun_a_fetcher_fetches_new_segments_by_itself(fetcher):
    """A query takes seconds to begin; meanwhile its partitions would fall out of the ISR."""
    for news in (True, False, True):
        fetcher.work.news = news
        fetcher.it.keep_running()
    assert fetcher.work.runs == [ROUND, ROUND]
    fetcher.writer.process(None, 0)
    assert fetcher.work.runs == [ROUND] * 3
    assert fetcher.it._loop.take_if_free(), "it has handed the loop back"


def test_ft_01_new_segments_are_fetched_by_the_micro_batch_that_is_open(fetcher):
    fetcher.it._loop = LoopHolder(60)
    running = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: fetcher.work.runs, "its first round")
    for rounds in (2, 3):
        fetcher.work.news = True
        fetcher.it.keep_running()
        assert fetcher.work.news or len(fetcher.work.runs) == rounds, "the thread does not even look"
        fetcher.it._wake()
        wait_until(lambda rounds=rounds: len(fetcher.work.runs) == rounds, "a round for the news")
    assert fetcher.work.runs == [ROUND] * 3
    fetcher.it.shutdown()
    assert ends(running)


@pytest.mark.parametrize(
    ("first_append", "rounds"),
    [
        pytest.param(1, 3, id="a minute after the first record"),
        pytest.param(4, 6, id="also if it comes late"),
        pytest.param(None, 15, id="ten minutes without one"),
        pytest.param(15, 15, id="no longer for a last record"),
    ],
)
def test_ft_05_segments_after_the_longest_time_are_for_the_next_micro_batch(fetcher, first_append, rounds):
    """Otherwise a busy leader's followers would stay in one micro-batch forever. Each round takes 40 seconds."""
    fetcher.it._loop, run = LoopHolder(60), fetcher.work.run

    def takes_long():
        fetcher.time.now += 40
        fetcher.work.news = True
        fetcher.it._wake()  # news end the pause before the next poll
        again = run()
        fetcher.work.has_appended |= len(fetcher.work.runs) == first_append
        return again

    fetcher.work.run = takes_long
    fetcher.it._wake()
    assert ends(in_background(lambda: fetcher.writer.process(None, 0)))
    assert (fetcher.work.runs, fetcher.writer.added[1:]) == ([ROUND] * rounds, [([], [])])


def test_ft_01_segments_between_two_micro_batches_are_fetched_by_the_fetchers_thread(fetcher):
    """If Spark is slow to begin the next one, its partitions would fall out of the ISR."""
    fetcher.writer.process(None, 0)
    fetcher.work.runs.clear()
    fetcher.work.news = True
    for _ in range(2):
        fetcher.it.keep_running()
    assert fetcher.work.runs == [ROUND]


def test_ft_01_segments_that_come_while_the_first_micro_batch_runs_are_fetched(fetcher):
    """It may have looked at the leader's log before. The same micro-batch looks once more."""
    hanging = Hanging(fetcher.work.run)
    fetcher.work.run = hanging
    first = in_background(lambda: fetcher.writer.process(None, 0))
    assert hanging.is_entered.wait(30)
    fetcher.work.news = True
    fetcher.it.keep_running()
    hanging.let_go()
    assert ends(first)
    fetcher.it.keep_running()
    assert fetcher.work.runs == [ROUND] * 2


def test_ft_01_a_query_that_was_stopped_from_outside_is_started_again_though_its_micro_batch_is_open(fetcher):
    """Somebody has stopped it in Spark's UI. Its micro-batch has no follower."""
    fetcher.it._loop = LoopHolder(60)
    running = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: fetcher.work.runs, "its first round")
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    fetcher.it.keep_running()
    assert ends(running)
    fetcher.it.keep_running()
    assert (fetcher.work.stops, len(fetcher.writer.added)) == (1, 1)
    fetcher.time.now += 10
    fetcher.it.keep_running()
    assert len(fetcher.writer.queries) == 2


def test_ft_01_a_micro_batch_that_spark_begins_after_its_query_was_stopped_does_not_stay_open(fetcher):
    """Spark may have prepared it when somebody stopped the query."""
    fetcher.it._loop = LoopHolder(60)
    fetcher.it._loop.take_if_free()  # the thread is in a step
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    fetcher.it.keep_running()
    late = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: fetcher.it._loop._waiting, "it waits for the loop")
    fetcher.it.keep_running()
    assert ends(late)
    assert fetcher.work.runs == []


def test_ft_01_a_query_that_has_ended_waits_for_the_step_of_its_micro_batch(fetcher):
    """What its end changes, the step would see half."""
    fetcher.work.run, run = Hanging(fetcher.work.run), fetcher.work.run
    running = in_background(lambda: fetcher.writer.process(None, 0))
    assert fetcher.work.run.is_entered.wait(30)
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    fetcher.it.keep_running()
    assert (fetcher.work.stops, fetcher.work.delayed) == (0, [])
    fetcher.work.run.let_go()
    assert ends(running)
    fetcher.work.run = run
    fetcher.it.keep_running()
    assert (fetcher.work.stops, len(fetcher.work.delayed)) == (1, 1), "at once, without another look at the query"


def test_ft_05_an_open_micro_batch_polls_at_its_interval_and_at_once_if_more_is_left(fetcher, monkeypatch):
    """Other processes wake nobody here."""
    fetcher.it._loop, polls = LoopHolder(60), []
    monkeypatch.setattr(replica_fetcher, "until_poll", lambda milliseconds: polls.append(milliseconds) or 0.01)
    fetcher.work.answers = [True, True, False]
    running = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: len(fetcher.work.runs) == 3, "the rounds of a catch-up")
    wait_until(lambda: len(polls) > 3, "polls")
    assert len(fetcher.work.runs) == 3
    fetcher.work.news = True
    wait_until(lambda: len(fetcher.work.runs) == 4, "a round for the news")
    fetcher.it.shutdown()
    assert ends(running)
    assert set(polls) == {fetcher.it._config.lakelog_poll_interval_ms}


def test_ft_05_what_a_catch_up_has_left_waits_for_no_poll(fetcher, monkeypatch):
    fetcher.it._loop = LoopHolder(60)
    monkeypatch.setattr(replica_fetcher, "until_poll", lambda _: 50.0)
    fetcher.work.answers = [True, True, False]
    running = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: len(fetcher.work.runs) == 3, "the rounds of a catch-up")
    fetcher.it.shutdown()
    assert ends(running)


def test_do_01_a_commit_to_the_leader_s_log_wakes_the_open_micro_batch(fetcher, root, monkeypatch):
    fetcher.it._loop = LoopHolder(60)
    monkeypatch.setattr(replica_fetcher, "until_poll", lambda _: 50.0)
    running = in_background(lambda: fetcher.writer.process(None, 0))
    wait_until(lambda: fetcher.work.runs, "its first round")
    fetcher.work.news = True
    notify_listeners(StorageRoot.of(root).child("log").uri, "append")
    wait_until(lambda: len(fetcher.work.runs) == 2, "a round for the news")
    fetcher.it.shutdown()
    assert ends(running)


def test_ft_01_while_its_query_is_down_a_fetcher_fetches_new_segments_by_itself_again(fetcher):
    """A backoff takes seconds, and so does the next start."""
    fetcher.writer.process(None, 0)
    fetcher.work.runs.clear()
    fetcher.writer.queries[0].end()
    fetcher.time.now += 1
    fetcher.it.keep_running()
    assert fetcher.work.stops == 1, "a commit may have ended the query"
    fetcher.work.news = True
    fetcher.it.keep_running()
    assert (fetcher.work.runs, fetcher.work.stops) == ([ROUND], 1)


def test_ft_01_each_start_of_a_query_has_a_source_of_its_own_whose_first_micro_batch_has_no_rows(fetcher):
    assert fetcher.writer.added == [([], [])]
    fetcher.writer.process(None, 0)
    fetcher.writer.queries[0].end()
    for _ in range(2):
        fetcher.time.now += 10
        fetcher.it.keep_running()
    assert (len(fetcher.writer.queries), fetcher.writer.added) == (2, [([], [])])


def test_ft_05_each_micro_batch_starts_the_next_one_unless_it_fails(fetcher):
    fetcher.work.rows = ["appended"], ["behind"]
    fetcher.writer.process(None, 0)
    assert fetcher.writer.added == [([], []), (["appended"], ["behind"])]
    fetcher.work.stream_rows = raises(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        fetcher.writer.process(None, 1)
    assert len(fetcher.writer.added) == 2, "Spark ends the query"


PLAN = "the plan"
ROWS = {
    "nothing has come since": ([], [], [], None),
    "what rounds have appended is read, for the progress": (["a"], [], [("frame", False)], None),
    "what is behind is planned": ([], ["b"], [("frame", True)], PLAN),
    "both": (["a"], ["b"], [("frame", True)], PLAN),
}


@pytest.mark.parametrize(("appended", "behind", "planned", "taken"), ROWS.values(), ids=ROWS)
def test_ft_05_a_micro_batch_begins_with_the_plan_of_what_is_behind(fetcher, appended, behind, planned, taken):
    """Its first round goes by it."""
    fetcher.work.rows, fetcher.work.plan_of = (appended, behind), taken
    fetcher.writer.process("first", 0)
    fetcher.writer.process("frame", 1)
    assert (fetcher.work.planned, fetcher.work.taken) == (planned, [None, taken])
    fetcher.writer.process("frame", 2)
    assert (fetcher.work.planned, fetcher.work.taken[2:]) == (planned, [None]), "it has rows of its own"


def test_ft_05_what_is_behind_waits_for_no_plan(fetcher):
    """The fetcher's thread has it before the next micro-batch has its plan."""
    fetcher.work.rows = [], ["b"]
    fetcher.writer.process("first", 0)
    fetcher.work.runs.clear()
    fetcher.it.keep_running()
    assert len(fetcher.work.runs) == 1


ERRORS = {
    "Spark has no executor": ExecutorsFailed("Spark has no executor"),
    "job cancelled": ZeroDivisionError("job cancelled"),
}


@pytest.mark.parametrize("told", ERRORS)
def test_ft_05_ft_13_without_a_plan_a_micro_batch_runs_its_rounds_all_the_same(fetcher, caplog, told):
    """Somebody may cancel all jobs of Spark, or a cluster may have lost all its workers."""
    fetcher.work.rows, fetcher.work.plan = ([], ["b"]), raises(ERRORS[told])
    fetcher.writer.process("first", 0)
    fetcher.writer.process("frame", 1)
    assert (fetcher.work.taken, fetcher.work.runs) == ([None, None], [ROUND] * 2)
    assert caplog.messages == [f"broker-2:ReplicaFetcherThread-0-1: goes on without Spark's plan: {told}"]


def test_ft_05_what_is_far_behind_is_for_the_next_micro_batch_at_once(fetcher):
    fetcher.it._loop = LoopHolder(60)
    fetcher.work.is_far, fetcher.work.answer = True, True
    fetcher.work.rows = [], ["b"]
    assert ends(in_background(lambda: fetcher.writer.process("first", 0)))
    assert fetcher.writer.added[1:] == [([], ["b"])]


def test_ft_05_without_a_plan_a_micro_batch_takes_what_is_far_behind_itself(fetcher):
    """The next one would have no plan either: micro-batch would follow micro-batch, with a round each."""
    fetcher.work.rows = [], ["b"]
    fetcher.writer.process("first", 0)
    fetcher.it._loop = LoopHolder(60)
    fetcher.work.is_far, fetcher.work.answer = True, True
    fetcher.work.plan = raises(ExecutorsFailed("Spark has no executor"))
    running = in_background(lambda: fetcher.writer.process("frame", 1))
    wait_until(lambda: len(fetcher.work.runs) > 10, "many rounds in one micro-batch")
    fetcher.it.shutdown()
    assert ends(running)


def test_br_04_a_stop_that_cancels_the_plan_of_a_micro_batch_is_no_error(fetcher, caplog):
    fetcher.work.rows = [], ["b"]
    fetcher.writer.process("first", 0)

    def is_cancelled(*_):
        fetcher.it.shutdown()
        raise ZeroDivisionError("job cancelled")

    fetcher.work.plan = is_cancelled
    fetcher.writer.process("frame", 1)
    assert (fetcher.work.runs, len(fetcher.writer.added), caplog.messages) == ([ROUND], 2, [])


def test_ft_01_a_query_is_polled_once_a_second(fetcher):
    """Each poll is a call of the JVM."""
    for _ in range(30):
        fetcher.it.keep_running()
        fetcher.time.now += 0.1
    assert fetcher.writer.queries[0].looks == 3
