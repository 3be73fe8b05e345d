"""Several values of one kind as one table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from nadi import display
from nadi.errors import InvalidArgumentError


class Table:
    """Shows itself in a notebook; `values` are what it was made of."""

    def __init__(self, values: tuple[Any, ...], title: str) -> None:
        self.values, self._title = values, title

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values)) or "nothing"

    def _repr_html_(self) -> str:
        return display.table(self.values, self._title, "" if self.values else "nothing")


def table(values: Iterable[Any], title: str = "") -> Table:
    """Make a table of bookmarks, slices, segments, loads, lags, …: values of one class, as a client returns them.

    >>> from nadi.client import SegmentRange
    >>> print(table([SegmentRange(0, 0.0, 1.0)]))
    SegmentRange(segment_id=0, low=0.0, high=1.0)
    """
    found = tuple(values)
    kinds = {type(one) for one in found}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidArgumentError(f"a table has values of one class, not of several ({names}): make a table of each")
    if found and not (dataclasses.is_dataclass(found[0]) or hasattr(found[0], "__struct_fields__")):
        raise InvalidArgumentError(f"a {type(found[0]).__name__} has no fields: give values that a client returned")
    return Table(found, title)
