"""Sort a key's rows in the order of its stream, for operators that keep a state for each key.

Spark's shuffle doesn't preserve order: a group's rows arrive in the order of the tasks. A query's
batch reads each key from one segment, and a key's later segments have greater ids, so segment and offset order them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Row

_POSITION = ("segment_id", "offset")


def in_order(rows: pd.DataFrame | Iterable[pd.DataFrame | Row]) -> Iterator[Any]:
    """Return the rows of a key in the order in which they were written, as tuples whose fields are the columns.

    rows: what Spark passes to an operator for one key: a DataFrame of pandas (`applyInPandas`), several
    (`applyInPandasWithState`, `transformWithStateInPandas`), or Row objects (`transformWithState`). They need the
    columns `segment_id` and `offset` of the source, and `stream` if there are rows of several streams, which are then
    sorted stream by stream, as streams lack a common order. The key must be the events' routing key, or be determined
    by it: only events of one routing key are ordered. Holds the key's rows of this batch in memory. Raises
    InvalidArgumentError if a column is missing.

    >>> import pandas as pd
    >>> late = pd.DataFrame({"value": [5, 4], "segment_id": [1, 0], "offset": [0, 90]})
    >>> early = pd.DataFrame({"value": [3], "segment_id": [0], "offset": [60]})
    >>> [row.value for row in in_order([late, early])]
    [3, 4, 5]
    """
    parts: Iterable[Any] = [rows] if hasattr(rows, "itertuples") else rows  # pandas isn't a dependency
    found: list[Any] = []
    order: tuple[str, ...] = ()
    for part in parts:
        is_frame = hasattr(part, "itertuples")
        columns = part.columns if is_frame else part.__fields__
        if missing := [name for name in _POSITION if name not in columns]:
            raise InvalidArgumentError(
                f"rows can't be sorted without the column {missing[0]!r}: select segment_id and offset"
            )
        order = ("stream", *_POSITION) if "stream" in columns else _POSITION
        found.extend(part.itertuples(index=False) if is_frame else [part])
    found.sort(key=lambda row: tuple(getattr(row, name) for name in order))
    return iter(found)
