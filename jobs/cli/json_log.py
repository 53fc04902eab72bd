"""Log lines as JSON: one object on each line, with the same names of fields.

It also turns output into JSON that goes to stderr past the log: Python's warnings, the stack traces of errors that
nobody catches, and lines that libraries print. `conf/log4j2-json.properties` gives the lines of the JVM the same
fields. Only lines that an interpreter or a library writes while it crashes stay as they are.
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

# The fields that a log call may give in its `extra`, besides those of its process.
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
        """The object as a line. A field without a value is left out."""
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
    except Exception:  # the text does not fit its values, and the line must be logged anyway
        return f"{record.msg} {record.args!r}"


def _error(record: logging.LogRecord) -> BaseException | None:
    """The error of a record: that of its stack trace, or else one of its values."""
    if record.exc_info and record.exc_info[1] is not None:
        return record.exc_info[1]
    values = record.args if isinstance(record.args, tuple) else ()
    return next((value for value in values if isinstance(value, BaseException)), None)


class JsonStderr(io.TextIOBase):
    """Writes each line that is printed to a stream, as a JSON object."""

    def __init__(self, stream: TextIO, fields: Mapping[str, object]) -> None:
        self._stream, self._fields = stream, fields
        self._begun = threading.local()  # the line that each thread has begun and not ended

    def writable(self) -> bool:
        """Always true."""
        return True

    def fileno(self) -> int:
        """The file of the stream, for processes that are started."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes the complete lines."""
        *lines, rest = f"{getattr(self._begun, 'line', '')}{text}".split("\n")
        self._begun.line = rest
        self._stream.write("".join(_as_object(line, self._fields) for line in lines if line.strip()))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()


def log_json(fields: Mapping[str, object]) -> None:
    """From now on turns all that this process writes to stderr into lines of JSON with these fields."""
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

    def unraisable(args: "sys.UnraisableHookArgs") -> None:
        error = args.exc_value or args.exc_type()
        logger.error("unexpected error in %r", args.object, exc_info=(args.exc_type, error, args.exc_traceback))

    logging.captureWarnings(True)
    sys.excepthook, threading.excepthook, sys.unraisablehook = of_process, of_thread, unraisable


@contextmanager
def jvm_with_json(broker: str) -> Iterator[None]:
    """A JVM that is started in this block logs lines of JSON with the id of its broker. Lines that it prints past
    log4j, which are those of Java itself, become JSON, too. It does not change a JVM that runs already, as under plain
    spark-submit, nor a log4j that the user has configured."""
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
    """Copies each line of the pipe to the kept stderr, until the last process has closed the pipe."""
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
