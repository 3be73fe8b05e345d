"""`async with` for whatever has a `close`: the base of the asyncio client's objects, as `blocking.face.Closing` is of
the blocking one's."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Self


class _Closes(Protocol):
    def close(self) -> Awaitable[None] | None: ...


class Closing:
    """An object that its `close` ends, also at the end of an `async with` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _Closes, kind: object, error: object, trace: object) -> None:
        if (closing := self.close()) is not None:
            await closing
