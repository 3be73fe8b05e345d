"""The blocking face: the classes of `nadi.client.aio` with the same names and arguments, without await.

Each method hands its coroutine to the client's loop thread and waits. StreamManager has the same parts as there, and
what it makes has its faces in modules of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from nadi.client import aio
from nadi.client.blocking.administration import Administration
from nadi.client.blocking.cuts import Bookmarks, NamedSlices, StreamCuts
from nadi.client.blocking.event_streams import EventStreams
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.blocking.openers import Structures
from nadi.client.blocking.readergroup import ReaderGroupManager
from nadi.client.blocking.readers import SliceReader, Table
from nadi.client.control.security import Credentials
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.defaults import DEFAULT_URI


class StreamManager(Administration, EventStreams, Structures):
    """See nadi.client.aio.StreamManager; its thread ends with `close`, or with the process."""

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._thread = LoopThread(f"nadi client of {controller_uri}")

        async def make() -> aio.StreamManager:
            return aio.StreamManager(
                controller_uri,
                credentials=credentials,
                trust_store=trust_store,
                validate_host_name=validate_host_name,
                timeout=timeout,
                blocking=True,
            )

        try:
            self._core = self._thread.run(make())
        except BaseException:
            self._thread.close(_nothing())
            raise

    def close(self) -> None:
        """End everything that this client made; every wait ends with ClosedError."""
        self._thread.close(self._core.close())

    def __enter__(self) -> StreamManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """The stream's cuts: make, check, compare and measure them."""
        return StreamCuts(self._thread, self._core.cuts(scope, stream))

    def bookmarks(self, scope: str) -> Bookmarks:
        """The scope's bookmarks."""
        return Bookmarks(self._thread, self._core.bookmarks(scope))

    def slices(self, scope: str) -> NamedSlices:
        """The scope's named slices."""
        return NamedSlices(self._thread, self._core.slices(scope))

    def open_slice(
        self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None, on_damage: OnDamage = RAISE
    ) -> SliceReader:
        """A reader of the slice of that name; SliceNotFoundError if there is none. routing_keys, on_damage: as of
        `create_reader`."""
        core = self._core.open_slice(scope, name, routing_keys=routing_keys, on_damage=on_damage)
        return SliceReader(self._thread, self._thread.run(core))

    # --- reader groups, tables ----------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """To make and find the reader groups of a scope."""
        return ReaderGroupManager(self._thread, self._core.reader_group_manager(scope))

    def table(self, scope: str, name: str) -> Table:
        """A key-value table of the scope; create it with its `create`."""
        return Table(self._thread, self._core.table(scope, name))


async def _nothing() -> None:
    pass
