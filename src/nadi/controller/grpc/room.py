"""Memory for the requests of calls: a call takes its place before it is read, and another before it is worked on.

gRPC hands over no part of a request until it is asked for one, and does not tell its size; its network holds it
meanwhile. So only what has a place is in memory. One address has half of all places at most, and addresses that wait
take turns; a small request needs no place that large ones could take up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from nadi.errors import UnavailableError
from nadi.limits import RPC_ROOM_TIMEOUT_S


class Room:
    """So many bytes in all; `held_bytes` now."""

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
        """One call's; it holds nothing yet."""
        return Place(self, address)

    def enter(self, place: Place) -> bool:
        """For places: hold what it wants, if that fits and nobody of its address was there before."""
        fits = place.address not in self._waiting and self._fits(place)
        if fits:
            self._change(place.address, place.size_bytes)
        else:
            self._waiting.setdefault(place.address, deque()).append(place)
        return fits

    def leave(self, address: str, size_bytes: int) -> None:
        """For places: hold that much no longer, and let in who waits for it."""
        self._change(address, -size_bytes)
        for address in list(self._waiting):
            places = self._waiting[address]
            while places and (places[0].is_given_up or self._fits(places[0])):
                place = places.popleft()
                if not place.is_given_up:
                    self._change(address, place.size_bytes)
                    place.let_in()
                    self._waiting.move_to_end(address)  # behind the others, the next time
                    break
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
    """`await place.take(size_bytes)` once, and `place.leave()` in any case."""

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
        """Wait for so much room, or half of all where it is more; UnavailableError where there is none in time."""
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

    def let_in(self) -> None:
        """For the room, which counts it as held already."""
        assert self._came is not None
        self._holds = True
        self._came.set_result(None)

    def leave(self) -> None:
        """Hold nothing any more; also more than once."""
        if self._holds:
            self._holds = False
            self._room.leave(self.address, self.size_bytes)
