"""Sort a key's rows in the order of its stream, for operators that keep a state for each key.

Spark's shuffle doesn't preserve order: a group's rows arrive in several frames, in the order of the tasks. A query's
batch reads each key from one segment, and a key's later segments have greater ids, so segment and offset order them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

_POSITION = ("segment_id", "offset")


def in_order(frames: pd.DataFrame | Iterable[pd.DataFrame]) -> Iterator[Any]:
    """Return the rows of a key in the order in which they were written, as tuples whose fields are the columns.

    frames: what Spark passes to an operator for one key: a DataFrame of pandas (`applyInPandas`), or several
    (`applyInPandasWithState`, `transformWithStateInPandas`). They need the columns `segment_id` and `offset` of the
    source, and `stream` if there are rows of several streams, which are then sorted stream by stream, as streams have
    no common order. The key must be the events' routing key, or be determined by it: only events of one routing key
    are ordered. Holds the key's rows of this batch in memory. Raises InvalidArgumentError if a column is missing.

    >>> import pandas as pd
    >>> late = pd.DataFrame({"value": [5, 4], "segment_id": [1, 0], "offset": [0, 90]})
    >>> early = pd.DataFrame({"value": [3], "segment_id": [0], "offset": [60]})
    >>> [row.value for row in in_order([late, early])]
    [3, 4, 5]
    """
    import pandas as pd  # not a dependency: the caller has imported it

    several = [frames] if isinstance(frames, pd.DataFrame) else frames
    rows: list[Any] = []
    order: tuple[str, ...] = ()
    for frame in several:
        if missing := [name for name in _POSITION if name not in frame.columns]:
            raise InvalidArgumentError(
                f"rows can't be sorted without the column {missing[0]!r}: select segment_id and offset"
            )
        order = ("stream", *_POSITION) if "stream" in frame.columns else _POSITION
        rows.extend(frame.itertuples(index=False))
    rows.sort(key=lambda row: tuple(getattr(row, name) for name in order))
    return iter(rows)
