"""The column `append_time`: when the server took each row, by the segment's time index.

An entry of the index says that all bytes before an offset came before a moment. A row's time is the latest that the
first entry behind it leaves: never earlier than the true one, and later by less than 10 s, or than 1 s where 4 KiB came
in that time (`segmentstore.state.time_index`). Behind the last entry it is the time of the segment's last append. So
times never fall within a segment; those of the last seconds may be told later by up to 10 s when they are read again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.scan.connection import Client
from nadi.client.scan.pieces import Piece
from nadi.client.segments.located import list_moments
from nadi.errors import InvalidArgumentError
from nadi.naming import segment_name
from nadi.wire.moments import Moments, Numbers

_NONE = np.empty(0, np.int64)
_UNKNOWN = -1


class AppendTimes:
    """Those of a piece's rows; the index is fetched a page at a time, as rows come to need it."""

    def __init__(self, client: Client, scope: str, piece: Piece) -> None:
        self._client, self._piece = client, piece
        self._segment = segment_name(scope, piece.stream, piece.segment_id)
        self._page = Moments(_NONE, _NONE, False, 0, 0)

    def of(self, offsets: Numbers) -> pa.Array:
        """In ms since 1970, of rows in offset order; null where the index doesn't reach: in bytes that a version
        without it took, or that were truncated since."""
        found = np.full(len(offsets), _UNKNOWN, np.int64)
        low = 0
        while low < len(offsets):
            page = self._page
            if not page.is_last and (not len(page.offsets) or page.offsets[-1] <= offsets[low]):
                page = self._page = self._fetched(int(offsets[low]))
            known = len(offsets) if page.is_last else int(np.searchsorted(offsets, page.offsets[-1]))
            some = offsets[low:known]
            bounds = np.append(page.moments, page.appended_ms + 1) - 1
            bounds[bounds <= 0] = _UNKNOWN
            times = bounds[np.searchsorted(page.offsets, some, side="right")]
            found[low:known] = np.where(some < page.start, _UNKNOWN, times)
            low = known
        valid = np.packbits(found >= 0, bitorder="little")  # pa.array would import pandas, as in `int_array`
        return pa.Array.from_buffers(pa.timestamp("ms"), len(found), [pa.py_buffer(valid), pa.py_buffer(found)])

    def _fetched(self, start: int) -> Moments:
        stores = stores_of(self._client.manager)
        found = self._client.run(list_moments(stores, self._segment, start, self._piece.end))
        if found is None:
            raise InvalidArgumentError("the column 'append_time' is one that this server is too old to tell")
        return found
