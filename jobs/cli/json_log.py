"""Log lines as JSON: an object a line, with the same names of fields in each.

Also what would otherwise reach stderr past the log: Python's warnings, the stack traces of errors that nobody catches,
and what libraries print. `conf/log4j2-json.properties` gives the lines of the JVM the same fields. Only what an
interpreter or a library writes to the file while it crashes stays as it is.
"""

import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TextIO

from lakelog.replication.errors import LakelogException

# What a log call may name in its `extra`, besides what its process has.
EXTRA = ("partition", "partitions", "epoch", "error")

_OPTIONS = "SPARK_SUBMIT_OPTS"  # of the environment: options of the JVM of a driver
_LOG4J = "-Dlog4j2.configurationFile="
_LONGEST_LINE = 1 << 20
_STDERR = 2


class JsonFormatter(logging.Formatter):
    """Makes a record one line of JSON, in ASCII. `fields` are in each line."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """The object: a field that has no value is left out."""
        found: dict[str, object] = {
            "ts": _time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **self._fields,
        }
        error = _error(record)
        if error is not None:
            found["error"] = error.name if isinstance(error, LakelogException) else type(error).__name__
        found |= {name: record.__dict__[name] for name in EXTRA if name in record.__dict__}
        if record.exc_info and record.exc_info[0] is not None:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the text and its values do not go together: a line must come anyway
        return f"{record.msg} {record.args!r}"


def _error(record: logging.LogRecord) -> BaseException | None:
    """The error that a record is about: the one that it shows, or else one of its values."""
    if record.exc_info and record.exc_info[1] is not None:
        return record.exc_info[1]
    values = record.args if isinstance(record.args, tuple) else ()
    return next((value for value in values if isinstance(value, BaseException)), None)


class JsonStderr(io.TextIOBase):
    """Writes each line that is printed as an object to a stream."""

    def __init__(self, stream: TextIO, fields: Mapping[str, object]) -> None:
        self._stream, self._fields = stream, fields
        self._begun = threading.local()  # a line that each thread has begun

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The file of the stream, for processes that are started."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes the lines that are whole."""
        *lines, rest = f"{getattr(self._begun, 'line', '')}{text}".split("\n")
        self._begun.line = rest
        self._stream.write("".join(_as_object(line, self._fields) for line in lines if line.strip()))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()


def log_json(fields: Mapping[str, object]) -> None:
    """Makes all that this process writes to stderr from now on lines of JSON with these fields."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(fields))
    sys.stderr = JsonStderr(sys.stderr, fields)
    _log_all_errors()


def _log_all_errors() -> None:
    """Logs Python's warnings, and errors that end a thread or the process."""
    logger = logging.getLogger("lakelog")

    def of_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        logger.critical("unexpected error", exc_info=(kind, error, trace))

    def of_thread(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is not None:
            name = args.thread.name if args.thread else "?"
            logger.critical("unexpected error in thread %s", name, exc_info=(args.exc_type, error, args.exc_traceback))

    def without_a_caller(args: "sys.UnraisableHookArgs") -> None:
        error = args.exc_value or args.exc_type()
        logger.error("unexpected error in %r", args.object, exc_info=(args.exc_type, error, args.exc_traceback))

    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook, sys.unraisablehook = of_process, of_thread, without_a_caller


@contextmanager
def jvm_with_json(broker: str) -> Iterator[None]:
    """A block that starts a JVM, whose lines are JSON, with the id of its broker. What it prints past log4j, which are
    the words of Java itself, becomes such lines too. A JVM that runs already, as under plain spark-submit, is not
    changed; nor is log4j if the user has given it settings."""
    given, conf = os.environ.get(_OPTIONS, ""), os.environ.get("SPARK_CONF_DIR")
    file = Path(conf, "log4j2-json.properties") if conf else None
    if file is not None and file.exists() and _LOG4J not in given:
        os.environ[_OPTIONS] = f"{given} {_LOG4J}{file.resolve().as_uri()} -Dlakelog.broker={broker}".strip()
    kept, (reader, writer) = os.dup(_STDERR), os.pipe()
    os.dup2(writer, _STDERR)  # for the JVM, which inherits it
    os.close(writer)
    fields = {"process": "jvm", "broker": broker}
    threading.Thread(target=_relay, args=(reader, kept, fields), name="stderr-of-jvm", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)


def _relay(reader: int, kept: int, fields: Mapping[str, object]) -> None:
    """Writes each line to the stderr that was kept, until the last process has closed the pipe."""
    with open(reader, "rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            with suppress(OSError):  # a stderr that is closed must not hold up the JVM
                words = line.decode("utf-8", "replace").rstrip("\r\n")
                os.write(kept, line if _is_object(line) else _as_object(words, fields).encode())


def _is_object(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _as_object(words: str, fields: Mapping[str, object]) -> str:
    found = {"ts": _time(time.time()), "level": "WARNING", "logger": "stderr", "message": words, **fields}
    return f"{json.dumps(found)}\n"
