"""A broker's Spark runs a micro-batch before anybody waits for one."""

from lakelog.replication.server.warm_up import warm_up


def test_a_stream_without_news_runs_a_micro_batch(spark):
    """Also where files are by default in HDFS, as on YARN: the checkpoint is on the local disk."""
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    assert warm_up(session, 2)
    assert not session.streams.active


def test_a_stream_that_does_not_start_keeps_nobody_from_starting(spark, monkeypatch, caplog):
    def fails(*_):
        raise OSError("no such device")

    monkeypatch.setattr("lakelog.replication.server.warm_up.stream_segments", fails)
    assert not warm_up(spark, 2)
    assert "broker 2: the warm-up has failed" in caplog.text


def test_a_stream_that_brings_nothing_is_not_waited_for_forever(spark, monkeypatch):
    monkeypatch.setattr("lakelog.replication.server.warm_up._PATIENCE_SECONDS", 0)
    warm_up(spark, 2)
    assert not spark.streams.active
