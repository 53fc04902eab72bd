"""Shortens an error to one line for the log and the replica row: Spark's errors hold plans and stack traces."""

from __future__ import annotations

from itertools import dropwhile

_MOST = 400  # characters
_CAUSES = (": ", "Caused by: ")  # py4j's first line only names the call; Java's errors follow, the deepest one last
TRACEBACK = "Traceback (most recent call last):"


def error_line(error: object) -> str:
    """The Python error at the end of a stack trace in the text, else Java's deepest cause, else the first line; at most
    400 characters of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    trace = list(dropwhile(lambda line: TRACEBACK not in line, lines))[1:]
    raised = next((line for line in trace if not line[0].isspace()), None)
    causes = [line.removeprefix(start) for line in lines for start in _CAUSES if line.startswith(start)]
    line = (raised or next(reversed(causes), None) or next(iter(lines), None) or type(error).__name__).strip()
    return line if len(line) <= _MOST else f"{line[:_MOST]} …"
