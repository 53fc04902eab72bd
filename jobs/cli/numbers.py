"""Numbers on the command line: a number that is not allowed is refused with the least and the largest that are."""

import argparse
from collections.abc import Callable

MAX_INT, MAX_OFFSET = 2**31 - 1, 2**63 - 1


def whole_number(low: int = -MAX_INT, high: int = MAX_INT) -> Callable[[str], int]:
    """A type of argparse: a whole number from `low` to `high`, both allowed."""

    def number(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return number


def whole_numbers(low: int) -> Callable[[str], list[int]]:
    """A type of argparse: whole numbers from `low` on, with commas between them."""
    number = whole_number(low)
    return lambda text: list(map(number, text.split(",")))
