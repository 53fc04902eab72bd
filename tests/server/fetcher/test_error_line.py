"""An error as one line."""

import pytest

from lakelog.replication.server.fetcher.error_line import error_line

STREAM_FAILED = """[STREAM_FAILED] Query [id = 4, runId = 5] terminated with exception: An exception was raised by the
Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 617, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^
ZeroDivisionError: a bug
of two lines

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
=== Streaming Query ==="""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("away"), "away"),
        (OSError("\n  away\n\tat java.lang.Thread.run"), "away"),
        (STREAM_FAILED, "ZeroDivisionError: a bug"),
        ("Traceback (most recent call last):\n  File", "Traceback (most recent call last):"),
        (OSError(), "OSError"),
        (None, "None"),
        ("x" * 500, "x" * 400 + " …"),
    ],
)
def test_an_error_is_one_line(error, line):
    assert error_line(error) == line
