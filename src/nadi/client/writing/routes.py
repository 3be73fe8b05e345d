"""Which of a writer's segments takes a routing key: its table between two scalings, with past lookups cached.

A table never changes. When a segment is replaced the writer makes another, so code that worked on events without the
writer's lock knows by the table alone whether its work is still valid.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from nadi.errors import InvalidArgumentError
from nadi.model.keyspace import key_position

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
Codes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint16]]"
NO_KEY = 0xFFFF  # the code of events without a routing key; a stream has at most 10,000 segments
CACHED_KEYS = 100_000


class Routes(Generic[T]):
    """table: (low, high, segment) for each piece of the key space; a segment's code is its index in `segments`."""

    def __init__(self, table: Iterable[tuple[float, float, T]]) -> None:
        self.table = sorted(table, key=lambda piece: piece[1])
        self.segments = list(dict.fromkeys(segment for _, _, segment in self.table))
        self.code_of = {segment: code for code, segment in enumerate(self.segments)}
        self._highs = [high for _, high, _ in self.table]
        self._known = _KnownCodes(self)

    def segment(self, key: str) -> T:
        """The segment with the smallest high end that is not below the key's position."""
        if not isinstance(key, str):
            raise InvalidArgumentError(f"a routing key is a str, not {type(key).__name__}")
        index = min(bisect_left(self._highs, key_position(key)), len(self.table) - 1)
        return self.table[index][2]

    def codes(self, keys: list[str | None]) -> Codes:
        """The code of each key's segment, or NO_KEY."""
        import numpy as np

        try:
            return np.frombuffer(b"".join(map(self._known.__getitem__, keys)), np.uint16)
        except TypeError:  # a list, say, which can't be a dict's key
            kind = next(type(key).__name__ for key in keys if not isinstance(key, str | None))
            raise InvalidArgumentError(f"a routing key is a str, not {kind}") from None


class _KnownCodes(dict[str | None, bytes]):
    """Two bytes for each key, which are joined faster than numbers are put into an array. Filled as keys are
    looked up, from any thread."""

    def __init__(self, routes: Routes[Any]) -> None:
        super().__init__({None: _code(NO_KEY)})
        self._routes = routes
        self._code_of = {segment: _code(code) for segment, code in routes.code_of.items()}

    def __missing__(self, key: str | None) -> bytes:
        if len(self) >= CACHED_KEYS:  # not a cache of cachetools: 0.2 us more per event, and for one thread only
            self.clear()
        code = _code(NO_KEY) if key is None else self._code_of[self._routes.segment(key)]
        self[key] = code
        return code


def _code(number: int) -> bytes:
    return number.to_bytes(2, sys.byteorder)
