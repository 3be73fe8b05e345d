"""Memory for the requests of calls: a call takes room before its request is read, and again before it is worked on.

gRPC hands over nothing of a request until it is asked to, and doesn't say how large it is; until then the bytes stay in
the network. So only requests that have room are in memory. One address holds at most half of all room, and waiting
addresses take turns; a small request needs no room that large ones could use up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from nadi.errors import UnavailableError
from nadi.limits import RPC_ROOM_TIMEOUT_S


class Room:
    """`total_bytes` in all, of which `held_bytes` are in use."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.most_of_address_bytes = total_bytes // 2
        self.held_bytes = 0
        self._of_address: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Place]] = OrderedDict()

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def place(self, address: str) -> Place:
        """A call's place, which holds nothing yet."""
        return Place(self, address)

    def enter(self, place: Place) -> bool:
        """For places: hold what it wants if that fits and nobody from its address is already waiting."""
        fits = place.address not in self._waiting and self._fits(place)
        if fits:
            self._change(place.address, place.size_bytes)
        else:
            self._waiting.setdefault(place.address, deque()).append(place)
        return fits

    def leave(self, address: str, size_bytes: int) -> None:
        """For places: release that much, and let in those waiting for it."""
        self._change(address, -size_bytes)
        self.look()

    def look(self) -> None:
        """For places, once room is free or one has given up: let in whoever fits, one of each address after the
        other."""
        has_let_in = True
        while has_let_in:
            has_let_in = False
            for address, places in list(self._waiting.items()):
                while places and places[0].is_given_up:
                    places.popleft()
                if places and self._fits(places[0]):
                    place = places.popleft()
                    self._change(address, place.size_bytes)
                    place.let_in()
                    self._waiting.move_to_end(address)  # after the others next time
                    has_let_in = True
                if not places:
                    del self._waiting[address]

    def _fits(self, place: Place) -> bool:
        size_bytes = place.size_bytes
        return (
            self.held_bytes + size_bytes <= self.total_bytes
            and self._of_address[place.address] + size_bytes <= self.most_of_address_bytes
        )

    def _change(self, address: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._of_address[address] += size_bytes
        if not self._of_address[address]:
            del self._of_address[address]


class Place:
    """Call `await place.take(size_bytes)` once, and `place.leave()` in any case."""

    __slots__ = ("_came", "_holds", "_room", "address", "size_bytes")

    def __init__(self, room: Room, address: str) -> None:
        self._room = room
        self.address = address
        self.size_bytes = 0
        self._holds = False
        self._came: asyncio.Future[None] | None = None

    @property
    def is_given_up(self) -> bool:
        return self._came is not None and self._came.done()

    async def take(self, size_bytes: int) -> None:
        """Wait for that much room, capped at half of the total; UnavailableError if none is free in time."""
        self.size_bytes = min(size_bytes, self._room.most_of_address_bytes)
        self._holds = self._room.enter(self)
        if not self._holds:
            self._came = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(RPC_ROOM_TIMEOUT_S):
                    await self._came
            except TimeoutError as error:
                raise UnavailableError(
                    f"the requests of others took all room for {RPC_ROOM_TIMEOUT_S:.0f} s: try again"
                ) from error
            finally:
                if not self._holds:
                    self._room.look()  # who came after this one may fit

    def let_in(self) -> None:
        """For the room, which already counts it as held."""
        assert self._came is not None
        self._holds = True
        self._came.set_result(None)

    def leave(self) -> None:
        """Release what is held; calling it again does nothing."""
        if self._holds:
            self._holds = False
            self._room.leave(self.address, self.size_bytes)
