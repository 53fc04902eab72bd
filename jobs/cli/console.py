"""The output of all verbs: data on stdout, messages on stderr, and an exit status that scripts can rely on."""

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from errno import EIO, errorcode
from io import StringIO, UnsupportedOperation
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from lakelog.jobs.cli.json_log import JsonFormatter, log_json
from lakelog.jobs.cli.numbers import is_number
from lakelog.jobs.launch.entry import interruptible
from lakelog.replication.errors import LakelogException, one_line

OK, FAILED, INTERRUPTED = 0, 1, 130
TEXT, TABLE, JSON, HTML = "text", "table", "json", "html"

# Without a screen, and without COLUMNS, the lines of a table are not broken: programs want a row a line.
_NO_SCREEN = 10_000

Row = Mapping[str, object]
Receive = Callable[[str], None]

_RECEIVER: ContextVar[Receive | None] = ContextVar("receiver", default=None)


def run(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int], argv: list[str]) -> int:
    """Runs a verb and returns its exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted. Prints an
    error as one sentence to stderr, and with `-o json` also as an object to stdout."""
    args = argparse.Namespace()

    def verb() -> int:
        nonlocal args
        args = parser.parse_args(argv)
        return work(args)

    with interruptible():
        try:
            return run_and_flush(verb)
        except KeyboardInterrupt:
            return INTERRUPTED
        except LakelogException as error:
            return _print_error(error.name, f"{error.name}: {error}", str(error), args)
        except OSError as error:  # those of stores are LakelogExceptions
            reason = error.strerror or str(error)
            words = one_line(f"{error.filename}: {reason}" if error.filename else reason)
            return _print_error(errorcode.get(error.errno or EIO, "EIO"), words, words, args)


def run_and_flush(work: Callable[[], int]) -> int:
    """Runs work that writes to stdout, flushes stdout, and returns the work's status; FAILED if stdout cannot be
    written. It prints that error to stderr, unless the reader of a pipe has closed it."""
    try:
        status = work()
    except SystemExit as stop:  # argparse has said why
        status = stop.code if isinstance(stop.code, int) else OK
    except BrokenPipeError:  # `| head` has seen enough
        _close_stdout()
        return FAILED
    except OSError:
        if _is_stdout_open():
            raise
        return FAILED
    return status if _is_stdout_open() else FAILED


def _is_stdout_open() -> bool:
    """Returns whether stdout could be written. If not, prints why, and keeps Python from flushing it again when the
    process ends."""
    try:
        sys.stdout.flush()
        with contextlib.suppress(UnsupportedOperation):  # it is no file
            os.write(sys.stdout.fileno(), b"")  # an unbuffered stdout keeps no error of an earlier write
    except OSError as error:
        _close_stdout()
        if not isinstance(error, BrokenPipeError):  # `| head` has seen enough
            say(f"lakelog: standard output: {error.strerror}")
        return False
    return True


def _close_stdout() -> None:
    with contextlib.suppress(UnsupportedOperation):  # it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(name: str, words: str, message: str, args: argparse.Namespace) -> int:
    """Prints an error, and returns FAILED. Verbs print their JSON at their end, so the error is the only object on
    stdout."""
    if _logs_json():
        logging.getLogger("lakelog").error("%s", message, extra={"error": name})
    else:
        say(f"lakelog: {words}")
    if getattr(args, "output", None) != JSON:
        return FAILED
    with contextlib.suppress(OSError):  # stdout may be closed; the error is on stderr already
        print(json.dumps({"error": {"code": name, "message": message}}, indent=2), flush=True)
    return FAILED


@contextlib.contextmanager
def output_to(receive: Receive) -> Iterator[None]:
    """In this block the messages and the text of a verb go to `receive`, and not to stdout and stderr. It holds for
    this thread only, because several verbs may run in one process at the same time."""
    token = _RECEIVER.set(receive)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def say(words: str) -> None:
    """Prints a message for a person to stderr. If the log is JSON, it logs the message instead. It ignores a stderr
    that cannot be written, because no other place is left."""
    receive = _RECEIVER.get()
    if receive is not None:
        receive(words)
        return
    if _logs_json():
        logging.getLogger("lakelog").info("%s", words.removeprefix("lakelog: "))
        return
    with contextlib.suppress(OSError):
        print(words, file=sys.stderr, flush=True)


def is_interactive() -> bool:
    """Whether a person can be asked: standard input and stderr are terminals."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


def confirm(question: str) -> bool:
    """Asks a person at a terminal. Returns whether the answer is yes; any other answer, or none, is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _logs_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def add_all(parser: argparse.ArgumentParser) -> None:
    """Adds the option of verbs whose tables have more columns than fit on 80 characters."""
    parser.add_argument("--all", action="store_true", help="show all columns of a table; JSON always has them all")


class Lines(NamedTuple):
    """Lines for stdout, and their title for stderr, if they have one."""

    lines: Iterable[str]
    title: str = ""

    def show(self) -> None:
        """Prints the title, then the lines."""
        if self.title:
            say(self.title)
        receive = _RECEIVER.get()
        if receive is None:
            print("".join(f"{line}\n" for line in self.lines), end="", flush=True)
            return
        for line in self.lines:
            receive(line)


class Report(NamedTuple):
    """The result of a verb, which it prints as text, as a table or as JSON.

    `rows`: the rows of the table, and the objects in JSON. The keys of the first row are the columns.
    `columns`: the columns that the table shows; empty: all of them.
    `text`: the lines that Kafka's tool prints; None: the text is the table.
    `value`: the JSON; None: the list of the rows.
    """

    rows: Sequence[Row] = ()
    columns: Sequence[str] = ()
    text: Iterable[Lines] | None = None
    value: object = None

    def show(self, output: str = TABLE) -> None:
        """Prints the report in one form. If the screen is too narrow for the table, it prints each column of a row on a
        line of its own, with an empty line between two rows."""
        if output == JSON:
            print(json.dumps(self.rows if self.value is None else self.value, indent=2))
        elif output == TEXT and self.text is not None:
            for lines in self.text:
                lines.show()
        elif self.rows:
            _show_table(self.rows, self.columns or list(self.rows[0]))


def _show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    console, table = Console(width=_width(), markup=False, emoji=False), _table(rows, columns)
    if console.width >= _NO_SCREEN or _fits(table, console.width, rows, columns):
        console.print(table)
    else:
        print("\n\n".join("\n".join(f"{_head(name)} {_cell(row[name])}".rstrip() for name in columns) for row in rows))


def _fits(table: Table, width: int, rows: Sequence[Row], columns: Sequence[str]) -> bool:
    """Returns whether the table breaks no number and no word of a head; it may fold other values. To find out, it draws
    the table."""
    drawn = StringIO()
    Console(file=drawn, width=width, color_system=None, markup=False, emoji=False).print(table)
    numbers = {_cell(row[name]) for row in rows for name in columns if is_number(row[name])}
    return {*drawn.getvalue().split()} >= {word for name in columns for word in _head(name).split()} | numbers


def _head(name: str) -> str:
    return name.replace("_", " ")


def _width() -> int | None:
    """Returns the width of the screen; None if rich is to find out."""
    if sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else _NO_SCREEN


def _table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if any(is_number(row[name]) for row in rows) else "left"
        table.add_column(_head(name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def log_to_stderr(who: str, level: str, form: str = TEXT) -> None:
    """Logs our own packages at `level`, and all others from warnings on. Each line has `who`, the process: its kind,
    and its name if it has one, such as `broker 1`. In JSON these are the fields `"process": "broker"` and `"broker":
    "1"`.
    """
    logging.basicConfig(stream=sys.stderr, format=f"%(asctime)s %(levelname)s [{who}] %(message)s")
    logging.getLogger("lakelog").setLevel(level)
    if form == JSON:
        kind, _, name = who.partition(" ")
        log_json({"process": kind, **({kind: name} if name else {})})
