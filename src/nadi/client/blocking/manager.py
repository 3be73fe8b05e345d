"""The blocking StreamManager: it has the parts that the asyncio one has, and the thread in which that runs.

The thread ends with `close`, or with the process.
"""

from __future__ import annotations

import asyncio
import os

from nadi.client import aio
from nadi.client.blocking.administration import Administration
from nadi.client.blocking.cuts import Bookmarks, NamedSlices, StreamCuts, StreamTables
from nadi.client.blocking.event_streams import EventStreams
from nadi.client.blocking.face import Closing, by_hand, described, gives, opens
from nadi.client.blocking.openers import Structures
from nadi.client.blocking.readergroup import ReaderGroupManager
from nadi.client.blocking.readers import SliceReader
from nadi.client.blocking.structures import Table
from nadi.client.control.loop_thread import LoopThread
from nadi.client.control.security import Credentials
from nadi.defaults import DEFAULT_URI


@described(aio.StreamManager)
class StreamManager(Administration, EventStreams, Structures, Closing[aio.StreamManager]):
    """See nadi.client.aio.StreamManager."""

    cuts = gives(aio.StreamManager.cuts, StreamCuts)
    bookmarks = gives(aio.StreamManager.bookmarks, Bookmarks)
    slices = gives(aio.StreamManager.slices, NamedSlices)
    stream_tables = gives(aio.StreamManager.stream_tables, StreamTables)
    open_slice = opens(aio.StreamManager.open_slice, SliceReader)
    reader_group_manager = gives(aio.StreamManager.reader_group_manager, ReaderGroupManager)
    table = gives(aio.StreamManager.table, Table)

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
    ) -> None:
        thread = LoopThread(f"nadi client of {controller_uri}")
        try:
            core = thread.result(
                aio.StreamManager,
                controller_uri,
                credentials=credentials,
                trust_store=trust_store,
                validate_host_name=validate_host_name,
                timeout=timeout,
                blocking=True,
            )
        except BaseException:
            thread.close(asyncio.sleep(0))
            raise
        super().__init__(thread, core)

    @by_hand(aio.StreamManager.close)
    def close(self) -> None:
        self._thread.close(self._core.close())
