"""A key's rows in the order of its stream, for operators that keep a state for each key.

Spark's shuffle keeps no order: the rows of a group come as they arrive from the tasks, in several frames. A query's
batch reads no key from two segments, and a key's later segments have greater ids, so segment and offset order them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

_PLACE = ("segment_id", "offset")


def in_order(frames: pd.DataFrame | Iterable[pd.DataFrame]) -> Iterator[Any]:
    """The rows of a key in the order in which they were written, as tuples whose fields are the columns.

    frames: what Spark gives an operator for one key: a DataFrame of pandas (`applyInPandas`), or several of them
    (`applyInPandasWithState`, `transformWithStateInPandas`). They need the columns `segment_id` and `offset` of
    the source, and `stream` if there are rows of several streams: these come one stream after the other, as there
    is no order between them. The key must be the events' routing key, or a part of it that always goes with it:
    only events of one routing key have an order. The rows of the key in this batch are held in memory.
    Raises InvalidArgumentError if one of the columns is missing.

    >>> import pandas as pd
    >>> late = pd.DataFrame({"value": [5, 4], "segment_id": [1, 0], "offset": [0, 90]})
    >>> early = pd.DataFrame({"value": [3], "segment_id": [0], "offset": [60]})
    >>> [row.value for row in in_order([late, early])]
    [3, 4, 5]
    """
    import pandas as pd  # whoever has a frame has imported it; nadi doesn't need it otherwise

    several = [frames] if isinstance(frames, pd.DataFrame) else frames
    rows: list[Any] = []
    order: tuple[str, ...] = ()
    for frame in several:
        if missing := [name for name in _PLACE if name not in frame.columns]:
            raise InvalidArgumentError(
                f"rows can't be put in order without the column {missing[0]!r}: select segment_id and offset, too"
            )
        order = ("stream", *_PLACE) if "stream" in frame.columns else _PLACE
        rows.extend(frame.itertuples(index=False))
    rows.sort(key=lambda row: tuple(getattr(row, name) for name in order))
    return iter(rows)
