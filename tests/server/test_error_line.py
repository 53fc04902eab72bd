"""An error as one line."""

import pytest

from lakelog.replication.server.executors import error_line

STREAM_FAILED = """[STREAM_FAILED] Query [id = 4, runId = 5] terminated with exception: An exception was raised by the
Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 617, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^
ZeroDivisionError: a bug
of two lines

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
=== Streaming Query ==="""

NO_WORKER = """An error occurred while calling o241.start.
: org.apache.spark.SparkException: the source does not start
\tat org.apache.spark.sql.streaming.DataStreamWriter.start(DataStreamWriter.scala:119)
Caused by: java.io.IOException: Cannot run program "python3": error=0, Failed to exec spawn helper: pid: 4
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\t... 32 more
Caused by: java.io.IOException: error=0, Failed to exec spawn helper: pid: 4, exit value: 1
\tat java.base/java.lang.ProcessImpl.forkAndExec(Native Method)
"""
NO_CAUSE = "An error occurred while calling o241.start.\n: java.io.IOException: away\n\tat java.lang.Thread.run"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("away"), "away"),
        (OSError("\n  away\n\tat java.lang.Thread.run"), "away"),
        (STREAM_FAILED, "ZeroDivisionError: a bug"),
        ("Traceback (most recent call last):\n  File", "Traceback (most recent call last):"),
        (NO_WORKER, "java.io.IOException: error=0, Failed to exec spawn helper: pid: 4, exit value: 1"),
        (NO_CAUSE, "java.io.IOException: away"),
        (f"{NO_WORKER}\n{STREAM_FAILED}", "ZeroDivisionError: a bug"),
        (OSError(), "OSError"),
        (None, "None"),
        ("x" * 500, "x" * 400 + " …"),
    ],
)
def test_an_error_of_spark_becomes_one_line(error, line):
    assert error_line(error) == line
