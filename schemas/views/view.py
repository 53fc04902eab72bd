"""Describes a view: its rows, its columns, and the tables that it reads."""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.schemas.table import Column


@dataclass(frozen=True)
class View:
    """A view over the tables of a cluster.

    It `needs` the rows of some tables: without their history there is no such view of an earlier time. Columns that it
    takes from the tables that it `uses` besides are null where their history does not reach back so far.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)
