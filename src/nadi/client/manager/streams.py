"""StreamManager: scopes and streams, and the writers and readers of them.

One StreamManager is one client: one controller connection and one set of segment store connections,
shared by all it makes, and ended with it. Most of its calls lie in its three parts: `administration` makes and ends
scopes and streams, `event_streams` opens writers and readers, `structures` everything else. Here is how a
client begins and ends, and the way to cuts, bookmarks, slices, reader groups and tables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import Credentials, security_of, split_uri
from nadi.client.definitions.stream_tables import StreamTables
from nadi.client.manager.administration import Administration
from nadi.client.manager.event_streams import EventStreams
from nadi.client.manager.structures import Structures
from nadi.client.places.bookmarks import Bookmarks
from nadi.client.places.cuts import StreamCuts
from nadi.client.places.slices import NamedSlices
from nadi.client.readergroup.manager import ReaderGroupManager
from nadi.client.readergroup.reader import EventReader, Membership, membership_of
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import SliceReader
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import Table
from nadi.defaults import DEFAULT_URI
from nadi.errors import TruncatedError, UnavailableError
from nadi.model.streamcut import StreamCut

_LEAVING_TIMEOUT_S = 2.0
_CLOSING_TIMEOUT_S = 6.0  # a writer gives up leaving after 5 s, and says so


@checked()
class StreamManager(Administration, EventStreams, Structures, Closing):
    """A client of the controller at `controller_uri`. The asyncio client must be created in a running event loop; the
    blocking one has its own thread, which ends with `close`, or with the process.

    credentials: Basic or Bearer; None takes them from the environment, if they are set. trust_store: for
    tls:// addresses, the PEM file (or folder) of the certificates to trust; None for the system's.
    timeout: seconds that one request may take, and also, for all of its requests together, a call that isn't given
    its own `timeout`. None means 30, and 130 for changes of streams and scopes, which may take the server long.
    Whatever takes longer fails with RequestTimeoutError.
    """

    def __init__(
        self,
        controller_uri: str = DEFAULT_URI,
        *,
        credentials: Credentials | None = None,
        trust_store: str | os.PathLike[str] | None = None,
        validate_host_name: bool = True,
        timeout: float | None = None,
        controller: ControllerClient | None = None,
        blocking: bool = False,
    ) -> None:
        if controller is None:
            security = security_of(controller_uri, credentials, trust_store, validate_host_name)
            controller = ControllerClient(split_uri(controller_uri)[0], security, timeout)
        self._controller = controller
        self._stores = SegmentStores(self._controller)
        EventStreams.__init__(self, blocking)
        Structures.__init__(self)
        self._memberships: list[Membership] = []  # of readers in their groups

    async def close(self) -> None:
        """Close everything that this client created: every wait ends with ClosedError, and writes not stored yet fail
        with it.

        Writers that noted times and readers of groups sign off at the server; if it is down, that takes
        no longer than 6 s, however many there are.
        """
        try:
            with suppress(TimeoutError):  # who could not say that it goes is taken for dead in time
                async with asyncio.timeout(_CLOSING_TIMEOUT_S):
                    await asyncio.gather(self._end_event_streams(), *map(self._leave, self._memberships))
        finally:
            await self._end_structures()
            self._stores.close()
            await self._controller.close()
            await asyncio.sleep(0)  # let what was ended run out

    async def _leave(self, membership: Membership) -> None:
        with suppress(UnavailableError):  # then the other readers will take it offline
            await membership.end(_LEAVING_TIMEOUT_S)

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """Return the stream's cuts, to create, check, compare and measure them."""
        return StreamCuts(self._stores, scope, stream)

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Delete all events before the cut; InvalidStreamCutError unless it is a boundary between events."""
        with suppress(TruncatedError):  # before the head: the controller refuses that
            await self.cuts(cut.scope, cut.stream).check(cut)
        await self._controller.truncate_stream(cut)

    def bookmarks(self, scope: str) -> Bookmarks:
        """Return the scope's bookmarks."""
        return Bookmarks(self._stores, scope)

    def slices(self, scope: str) -> NamedSlices:
        """Return the scope's named slices."""
        return NamedSlices(self._stores, scope)

    def stream_tables(self, scope: str) -> StreamTables:
        """Return the scope's stream tables, which say how streams are read as tables; `nadi.stream_table` reads one."""
        return StreamTables(self._stores, scope)

    async def open_slice(
        self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None, on_damage: OnDamage = RAISE
    ) -> SliceReader:
        """Create a reader of the named slice; SliceNotFoundError if there is none.

        routing_keys, on_damage: as in `create_reader`.
        """
        found = await self.slices(scope).get(name)
        return await self.create_reader(
            scope, found.stream, start=found.start, end=found.end, routing_keys=routing_keys, on_damage=on_damage
        )

    # --- reader groups, tables ----------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """Return the manager of the scope's reader groups, to create and find them."""
        return ReaderGroupManager(self._stores, self._adopt, scope)

    def _adopt(self, reader: EventReader) -> None:
        """A reader of a group: it leaves the group, and what it was given last is not done, when this client ends."""
        self._memberships = [known for known in self._memberships if not known.is_over]
        self._memberships.append(membership_of(reader))

    def table(self, scope: str, name: str) -> Table:
        """Return a key-value table of the scope; create it with its `create`."""
        return Table(self._stores, scope, name)


def stores_of(manager: StreamManager) -> SegmentStores:
    """The connections of a client, for those who do more with them than users can; its `controller` is another."""
    return manager._stores
