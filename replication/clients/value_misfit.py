"""Why a value does not fit its schema, for the decoders of all kinds of schemas."""

from __future__ import annotations

from lakelog.replication.errors import one_line


class ValueMisfit(ValueError):
    """A value that does not fit its schema. `str()` names the field, what it has, and what is allowed."""

    def __init__(self, fault: str, place: str = "") -> None:
        super().__init__(fault)
        self.fault = fault
        self.place = place

    def within(self, place: str) -> ValueMisfit:
        """The same, found in a part of a larger value."""
        dot = "." if self.place and not self.place.startswith(("[", "{")) else ""
        return ValueMisfit(self.fault, f"{place}{dot}{self.place}")

    def __str__(self) -> str:
        # JSON can hold half of a surrogate pair, which Arrow's text cannot
        return one_line(f"{f'field {self.place}' if self.place else 'the value'} {self.fault}")
