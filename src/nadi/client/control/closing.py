"""Provide `async with` for the asyncio client's objects, as `blocking.face.Closing` does for the blocking client."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Self


class _Closes(Protocol):
    def close(self) -> Awaitable[None] | None: ...


class Closing:
    """An object that an `async with` block closes at its end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: _Closes, kind: object, error: object, trace: object) -> None:
        if (closing := self.close()) is not None:
            await closing
