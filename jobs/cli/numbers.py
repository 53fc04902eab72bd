"""Numbers on the command line and in files. A number that is not allowed is refused with the least and the largest
that are."""

import argparse
from collections.abc import Callable, Iterable

MAX_INT, MAX_OFFSET = 2**31 - 1, 2**63 - 1
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MOST_DIGITS = 100  # int() refuses a text of more than 4,300 digits


def whole_number(low: int = -MAX_INT, high: int = MAX_INT) -> Callable[[str], int]:
    """A type of argparse: a whole number from `low` to `high`, both allowed."""

    def number(text: str) -> int:
        digits = text.removeprefix("-")
        is_readable = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        if not (is_readable and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return number


def whole_numbers(low: int) -> Callable[[str], list[int]]:
    """A type of argparse: whole numbers from `low` on, with commas between them."""
    number = whole_number(low)
    return lambda text: list(map(number, text.split(",")))


def with_commas(numbers: Iterable[int]) -> str:
    """Whole numbers as `whole_numbers` reads them, and as Kafka's tools print brokers."""
    return ",".join(map(str, numbers))


def size_text(size: int) -> str:
    """A number of bytes for people, to three digits or to the whole unit: 512 B, 1.5 KiB, 195 KiB."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{0 if unit == 0 or value >= 100 else 1}f} {_UNITS[unit]}"


def is_number(value: object) -> bool:
    """Whether a value is a number. `true` of JSON and YAML is an int in Python, but is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_natural(value: object) -> bool:
    """Whether a value is a whole number from 0 on."""
    return isinstance(value, int) and is_number(value) and value >= 0
