"""The blocking faces of slice readers and of tables of single keys."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.reading.lending import Lending
from nadi.client.reading.watermarks import TimeWindow
from nadi.client.tables.table import ANY_VERSION, TableValue
from nadi.errors import ClosedError, DamagedDataError
from nadi.model.event import EventBlock
from nadi.model.streamcut import StreamCut


class SliceReader:
    """See nadi.client.aio.SliceReader; iterate over it for (segment id, EventBlock)."""

    def __init__(self, thread: LoopThread, core: aio.SliceReader) -> None:
        self._thread, self._core = thread, core
        self._lending: Lending[Any] = Lending()
        self._asks = True  # before the first block, and after an end or an error

    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        """(segment id, events), None at the end; RequestTimeoutError if nothing came in time."""
        if self._core.is_closed:
            raise ClosedError("this reader was closed")
        if self._asks:
            self._thread.call(self._core.lend_to, self._lending)
            self._asks = False
        try:
            found = self._lending.take(timeout)
        except TimeoutError:
            raise self._core.nothing_for(timeout) from None
        if isinstance(found, tuple):
            if self._lending.wants_word:
                self._thread.call(self._core.look)
            return found
        self._asks = True
        if found is not None:
            raise found
        return None

    def __iter__(self) -> Iterator[tuple[int, EventBlock]]:
        while True:
            found = self.next_block()
            if found is None:
                return
            yield found

    def position(self) -> StreamCut:
        """The boundary between what was given out and what was not; start there to go on."""

        async def position() -> StreamCut:
            return self._core.position()

        return self._thread.run(position())

    @property
    def skipped(self) -> list[DamagedDataError]:
        """With on_damage="skip": what was damaged and is gone past, the last 1,000 places."""
        return list(self._core.skipped)

    def current_time_window(self, position: StreamCut | None = None) -> TimeWindow:
        """In which event time `position()`, or a position before it, stands; read from the stream's watermarks."""
        return self._thread.run(self._core.current_time_window(position))

    def close(self) -> None:
        """End at once; who waits in `next_block` gets ClosedError."""

        async def close() -> None:
            self._core.close()

        try:
            self._thread.run(close())
        except ClosedError:
            pass  # the client, closed before, has closed this

    def __enter__(self) -> SliceReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Table:
    """See nadi.client.aio.Table."""

    def __init__(self, thread: LoopThread, core: aio.Table) -> None:
        self._thread, self._core = thread, core

    def create(self) -> bool:
        """Make the table; False if it existed."""
        return self._thread.run(self._core.create())

    def delete(self) -> None:
        """Delete it with all that it holds; SegmentNotFoundError if there is none."""
        self._thread.run(self._core.delete())

    def get(self, key: bytes) -> TableValue | None:
        """The key's value and version, or None."""
        return self._thread.run(self._core.get(key))

    def put(self, key: bytes, value: bytes, version: int = ANY_VERSION) -> int:
        """The new version; ConditionFailedError unless the key's version still is `version` (ABSENT: none)."""
        return self._thread.run(self._core.put(key, value, version))

    def remove(self, key: bytes, version: int = ANY_VERSION) -> None:
        """Remove the key; ConditionFailedError unless its version still is `version`."""
        self._thread.run(self._core.remove(key, version))
