"""Where segments and servers are: what each server tells clients by itself, whichever has the active controller.

Clients ask at the very moment at which a server dies, and some keep the answer: Pravega's Java client for 20 seconds.
Other servers notice a death three seconds later. So the store that has a segment is rung first, and named once it takes
a connection, or goes on to beat: a client may reach what can't be reached from here. Otherwise the answer waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence

from nadi.controller.engine.tasks import Shared
from nadi.errors import UnavailableError
from nadi.limits import (
    CLUSTER_DEAD_KEPT,
    CLUSTER_RING_S,
    CLUSTER_WHERE_AT_ONCE,
    CLUSTER_WHERE_LOOK_S,
    CLUSTER_WHERE_S,
)
from nadi.naming import segment_name
from nadi.runtime import Runtime
from nadi.wire.rpc import controller_pb2 as pb

Address = tuple[str, int]
_RESET = struct.pack("ii", 1, 0)  # on, 0 s


async def takes_connections(address: Address) -> bool:
    """Whether a server listens there; one that stands still does, too. The connection is reset: one that is closed in
    order keeps its port for a minute, and a few hundred each second would leave none. Then nobody could be reached any
    more."""
    try:
        async with asyncio.timeout(CLUSTER_RING_S):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError, ValueError):  # the last: it can't be an address
        return False
    if (connection := writer.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class Directory:
    """find: returns (host, port) of the store that has a segment, for clients, or None while it is between two servers;
    raises UnavailableError if this server can't know. controllers: returns (host, port) of the gRPC doors of all
    servers. own: the address of this server's store. lives_since: whether the server that was at an address at a time
    of the monotonic clock was surely alive after that. ring: see `takes_connections`."""

    def __init__(
        self,
        find: Callable[[str], Address | None],
        controllers: Callable[[], Sequence[Address]],
        own: Callable[[], Address],
        lives_since: Callable[[Address, float], bool],
        runtime: Runtime,
        ring: Callable[[Address], Awaitable[bool]] = takes_connections,
    ) -> None:
        self._find, self._controllers, self._own, self._lives_since = find, controllers, own, lives_since
        self._runtime = runtime
        self._rings = Shared(runtime, ring, age_s=0.0, most=CLUSTER_DEAD_KEPT)
        self._waiting = 0

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        stream = request.streamInfo
        segment = segment_name(stream.scope, stream.stream, request.segmentId)
        began, is_waiting = self._runtime.monotonic(), False
        try:
            while True:
                address = self._find(segment)
                if address is not None and await self._is_there(address, began) and self._find(segment) == address:
                    return pb.NodeUri(endpoint=address[0], port=address[1])
                is_late = self._runtime.monotonic() >= began + CLUSTER_WHERE_S
                if is_late or not (is_waiting or self._waiting < CLUSTER_WHERE_AT_ONCE):
                    said = "takes no connections" if address is not None else "is between two servers"
                    raise UnavailableError(f"the store that has {segment} {said}: try again")
                self._waiting += not is_waiting
                is_waiting = True
                await self._runtime.sleep(CLUSTER_WHERE_LOOK_S)
        finally:
            self._waiting -= is_waiting

    async def _is_there(self, address: Address, began: float) -> bool:
        """Whether it takes connections, or lives and can't be reached from here."""
        return address == self._own() or await self._rings.get(address) or self._lives_since(address, began)

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port) for host, port in self._controllers()])
