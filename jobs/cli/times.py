"""Times on the command line: a timestamp as of ISO 8601, in UTC unless it says otherwise, or a duration until now."""

import argparse
import datetime as dt
import re
import time

_UNITS = ("days", "hours", "minutes", "seconds")
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_MOST_DIGITS = 15  # of milliseconds


def timestamp(text: str) -> float:
    """A type of argparse: a timestamp, in seconds since the epoch."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 2025-01-31T12:00:00.000") from None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def before_now(text: str) -> float:
    """A type of argparse: the time so long ago, in seconds since the epoch, by the clock of this machine."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PnDTnHnMnS, such as PT1H30M")
    try:
        span = dt.timedelta(**{unit: float(found[unit] or 0) for unit in _UNITS})
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than the time that there is") from None
    return time.time() - span.total_seconds()


def since(text: str) -> float:
    """A type of argparse: a time of either form that is over, in seconds since the epoch."""
    return _since_1970(before_now(text) if text.startswith("P") else timestamp(text), text)


def _since_1970(seconds: float, text: str) -> float:
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text!r} lies before 1970")
    if seconds > time.time():
        raise argparse.ArgumentTypeError(f"{text!r} lies in the future")
    return seconds


def past_time(text: str) -> float:
    """A type of argparse: a timestamp, or milliseconds since the epoch, that is over; in seconds since the epoch."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    try:
        found = int(text) / 1000 if is_number else timestamp(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time such as 2025-01-31T12:00:00 nor milliseconds since 1970"
        ) from None
    return _since_1970(found, text)


def local_time(seconds: float) -> str:
    """A time in seconds since the epoch, for people: that of this machine's zone, to the millisecond."""
    return dt.datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "milliseconds")
