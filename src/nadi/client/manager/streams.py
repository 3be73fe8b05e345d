"""StreamManager: scopes and streams, and the writers and readers of them.

One StreamManager is one client: one controller connection and one set of segment store connections,
shared by all it makes, and ended with it. Most of its calls lie in its three parts: `administration` makes and ends
scopes and streams, `event_streams` opens writers and readers, `structures` what is no event stream. Here is how a
client begins and ends, and the way to cuts, bookmarks, slices, reader groups and tables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from nadi.client.control.arguments import checked
from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import Credentials, security_of, split_uri
from nadi.client.manager.administration import Administration
from nadi.client.manager.event_streams import EventStreams
from nadi.client.manager.structures import Structures
from nadi.client.places.bookmarks import Bookmarks
from nadi.client.places.cuts import StreamCuts
from nadi.client.places.slices import NamedSlices
from nadi.client.readergroup.manager import ReaderGroupManager
from nadi.client.readergroup.reader import EventReader, Membership
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.reader import SliceReader
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import Table
from nadi.defaults import DEFAULT_URI
from nadi.errors import TruncatedError, UnavailableError
from nadi.model.streamcut import StreamCut

_LEAVING_TIMEOUT_S = 2.0
_CLOSING_TIMEOUT_S = 6.0  # a writer gives up leaving after 5 s, and says so


def controller_address(uri: str) -> str:
    """host:port of `tcp://host:port`, `tls://host:port`, `pravega://host:port` or plain `host:port`."""
    return split_uri(uri)[0]


@checked()
class StreamManager(Administration, EventStreams, Structures):
    """A client of the controller at `controller_uri`; make it inside a running event loop.

    credentials: Basic or Bearer; None takes them from the environment, if they are there. trust_store: for
    tls:// addresses, the PEM file (or folder) of the certificates to trust; None for those of the system.
    timeout: how many seconds one request waits for the server, and a call that is given no `timeout` of its own; that
    is for all of its requests together. None is 30, and 130 for changes of streams and scopes, which may take the
    server long. What takes longer ends with RequestTimeoutError.
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
            controller = ControllerClient(controller_address(controller_uri), security, timeout)
        self.controller = controller
        self.stores = SegmentStores(self.controller)
        EventStreams.__init__(self, blocking)
        Structures.__init__(self)
        self._memberships: list[Membership] = []  # of readers in their groups

    async def __aenter__(self) -> StreamManager:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything that this client made; what is not stored by now fails with ClosedError.

        Writers that noted times and readers of groups tell the server that they go. One that isn't there is waited for
        no longer than 6 s, however many they are.
        """
        try:
            with suppress(TimeoutError):  # who could not say that it goes is taken for dead in time
                async with asyncio.timeout(_CLOSING_TIMEOUT_S):
                    await asyncio.gather(self.end_event_streams(), *map(self._leave, self._memberships))
        finally:
            await self.end_structures()
            self.stores.close()
            await self.controller.close()
            await asyncio.sleep(0)  # let what was ended run out

    async def _leave(self, membership: Membership) -> None:
        try:
            await membership.end(_LEAVING_TIMEOUT_S)
        except UnavailableError:
            pass  # the other readers will take it offline

    # --- cuts, bookmarks, slices --------------------------------------------------------------

    def cuts(self, scope: str, stream: str) -> StreamCuts:
        """The stream's cuts: make, check, compare and measure them."""
        return StreamCuts(self.stores, scope, stream)

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Forget what lies before the cut; InvalidStreamCutError unless it is a boundary between events."""
        with suppress(TruncatedError):  # before the head: the controller refuses that
            await self.cuts(cut.scope, cut.stream).check(cut)
        await self.controller.truncate_stream(cut)

    def bookmarks(self, scope: str) -> Bookmarks:
        """The scope's bookmarks."""
        return Bookmarks(self.stores, scope)

    def slices(self, scope: str) -> NamedSlices:
        """The scope's named slices."""
        return NamedSlices(self.stores, scope)

    async def open_slice(
        self, scope: str, name: str, *, routing_keys: Sequence[str] | None = None, on_damage: OnDamage = RAISE
    ) -> SliceReader:
        """A reader of the slice of that name; SliceNotFoundError if there is none. routing_keys, on_damage: as of
        `create_reader`."""
        found = await self.slices(scope).get(name)
        return await self.create_reader(
            scope, found.stream, start=found.start, end=found.end, routing_keys=routing_keys, on_damage=on_damage
        )

    # --- reader groups, tables ----------------------------------------------------------------

    def reader_group_manager(self, scope: str) -> ReaderGroupManager:
        """To make and find the reader groups of a scope."""
        return ReaderGroupManager(self.stores, self.adopt, scope)

    def adopt(self, reader: EventReader) -> None:
        """A reader of a group: it leaves the group, and what it was given last is not done, when this client ends."""
        self._memberships = [known for known in self._memberships if not known.is_over]
        self._memberships.append(reader.membership)

    def table(self, scope: str, name: str) -> Table:
        """A key-value table of the scope; create it with its `create`."""
        return Table(self.stores, scope, name)
