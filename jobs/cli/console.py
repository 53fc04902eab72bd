"""What the verbs have in common: data on stdout, words on stderr, and a status that scripts can rely on."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from lakelog.jobs.cli.numbers import is_number
from lakelog.replication.errors import LakelogException

OK, FAILED, INTERRUPTED = 0, 1, 130
TABLE, JSON = "table", "json"

# Without a screen, and without COLUMNS, the lines of a table are not broken: programs want a row a line.
_NO_SCREEN = 10_000

Row = Mapping[str, object]


def run(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int], argv: list[str]) -> int:
    """The status of a verb: 0 done, 1 refused or failed, 2 called wrongly. An error is one sentence, and
    also an object on stdout where JSON is asked for."""
    args = argparse.Namespace()
    try:
        args = parser.parse_args(argv)
        status = work(args)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else OK
    except BrokenPipeError:  # `| head` has seen enough; at exit Python would flush once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except LakelogException as error:
        return _failed(error.name, str(error), args)
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _failed(type(error).__name__, words, args)
    return status


def _failed(name: str, words: str, args: argparse.Namespace) -> int:
    """Verbs print their JSON when they are done, so that the error is the only object on stdout."""
    say(f"lakelog: {name}: {words}")
    if getattr(args, "output", None) == JSON:
        print(json.dumps({"error": {"code": name, "message": words}}, indent=2), flush=True)
    return FAILED


def say(words: str) -> None:
    """Words for a person, on stderr."""
    print(words, file=sys.stderr, flush=True)


def add_all(parser: argparse.ArgumentParser) -> None:
    """The option of verbs whose tables have more columns than fit on 80 characters."""
    parser.add_argument("--all", action="store_true", help="show all columns of a table; JSON always has them all")


def show(rows: Sequence[Row], output: str = TABLE, columns: Sequence[str] = ()) -> None:
    """Rows as a table, or as JSON: a list of objects. The keys of the first row are the columns.

    `columns`: those that the table shows, if it is not to show them all.
    """
    if output == JSON:
        print(json.dumps(rows, indent=2))
    elif rows:
        Console(width=_width()).print(_table(rows, columns or list(rows[0])))


def _width() -> int | None:
    """The width of the screen; None if rich is to find out."""
    if sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else _NO_SCREEN


def _table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if any(is_number(row[name]) for row in rows) else "left"
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def log_to_stderr(who: str, level: str) -> None:
    """The log of our own packages at `level`, of all others from warnings on, each line with who says it."""
    logging.basicConfig(stream=sys.stderr, format=f"%(asctime)s %(levelname)s [{who}] %(message)s")
    logging.getLogger("lakelog").setLevel(level)
