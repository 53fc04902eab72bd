"""An error as one line for the log and the row of a replica: those of Spark go on with plans and stack traces."""

from __future__ import annotations

from itertools import dropwhile

_MOST = 400  # characters
_TRACEBACK = "Traceback (most recent call last):"


def error_line(error: object) -> str:
    """The Python error that a stack trace in the text ends with, or else the first line of the text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    trace = list(dropwhile(lambda line: _TRACEBACK not in line, lines))[1:]
    raised = next((line for line in trace if not line[0].isspace()), None)
    line = (raised or (lines[0] if lines else type(error).__name__)).strip()
    return line if len(line) <= _MOST else f"{line[:_MOST]} …"
