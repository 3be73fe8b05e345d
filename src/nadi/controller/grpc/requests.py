"""What a request takes before it is answered: room, turns while it is parsed, and for watches a place.

Parsing a request's bytes, in portions if it is large, so that other tasks get their turns in between.

A message of 2 MiB may hold a million empty parts: a tenth of a second to parse, and seconds to work on. No request
needs more parts of one kind than two epochs of a stream have segments, so parts are counted first and more are refused.

Memory for the requests of calls: a call takes room before its request is read, and again before it is worked on.

gRPC hands over nothing of a request until it is asked to, and doesn't say how large it is; until then the bytes stay in
the network. So only requests that have room are in memory. One address holds at most half of all room, and waiting
addresses take turns; a small request needs no room that large ones could use up.

Calls that are answered again and again until the client goes: how many there may be, and that each stays permitted.

One takes a place of all calls like any other for as long as it lasts. Besides, there are `SCALER_WATCHES_MAX` on all
connections and `SCALER_WATCHES_OF_CONNECTION` on one, so that a client's other calls aren't kept waiting by its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

from google.protobuf.message import DecodeError, Message

from nadi.controller.access import ControllerAccess
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.limits import (
    RPC_PARTS_MAX,
    RPC_PORTION_BYTES,
    RPC_PORTION_PARTS,
    RPC_ROOM_TIMEOUT_S,
    SCALER_PERMIT_S,
    SCALER_WATCHES_MAX,
    SCALER_WATCHES_OF_CONNECTION,
)

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_VARINT_MAX_BYTES = 10


async def parsed(kind: type[Message], raw: bytes, turn: Callable[[], Awaitable[None]]) -> Message:
    """Return the message; InvalidArgumentError if it isn't one or has too many parts. Await `turn` between portions."""
    try:
        if len(raw) <= RPC_PORTION_BYTES:
            message = kind.FromString(raw)
        else:
            message = kind()
            for begin, end in _portions(raw, 0, len(raw), kind.DESCRIPTOR):
                message.MergeFromString(raw[begin:end])
                await turn()
    except DecodeError as error:
        raise InvalidArgumentError(f"the request is no {kind.DESCRIPTOR.name}") from error
    for field, value in message.ListFields():
        if field.is_repeated and len(value) > RPC_PARTS_MAX:
            raise _too_many(field.name)
    return message


def _portions(raw: bytes, at: int, end: int, kind: Any) -> Iterator[tuple[int, int]]:
    """Start and end of each run of fields to parse together: few of them, or few bytes. (0, 0) is a pause."""
    begun, parts = at, 0
    counts = Counter[int]()
    while at < end:
        number, inside, following = _field(raw, at, end)
        counts[number] += 1
        if counts[number] > RPC_PARTS_MAX:
            raise _too_many(kind.fields_by_number[number].name if number in kind.fields_by_number else str(number))
        parts += 1
        if following - at > RPC_PORTION_BYTES:
            field = kind.fields_by_number.get(number)
            if field is not None and field.message_type is not None and raw[at] & 7 == _BYTES:
                for _ in _portions(raw, inside, following, field.message_type):
                    yield 0, 0
        at = following
        if at - begun >= RPC_PORTION_BYTES or parts >= RPC_PORTION_PARTS:
            yield begun, at
            begun, parts = at, 0
    if begun < end:
        yield begun, end


def _field(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Number of the field at this position, where its content starts, and where it ends."""
    tag, at = _varint(raw, at, end)
    form = tag & 7
    inside = at
    if form == _BYTES:
        length, inside = _varint(raw, at, end)
        at = inside + length
    elif form == _VARINT:
        _, at = _varint(raw, at, end)
    elif form in (_FIXED_32, _FIXED_64):
        at += 4 if form == _FIXED_32 else 8
    else:
        raise DecodeError(f"there are no fields of form {form}")
    if at > end:
        raise DecodeError("the message ends within a field")
    return tag >> 3, inside, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    if at < end and raw[at] < 0x80:  # nearly always
        return raw[at], at + 1
    found = 0
    for shift, place in enumerate(range(at, min(end, at + _VARINT_MAX_BYTES))):
        found |= (raw[place] & 0x7F) << 7 * shift
        if raw[place] < 0x80:
            return found, place + 1
    raise DecodeError("the message ends within a number")


def _too_many(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the request has more than {RPC_PARTS_MAX:,} parts in {what}: no stream has as many")


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


Replies = Callable[[Any], AsyncGenerator[Any, None]]


class Watches:
    """Those of one server."""

    def __init__(self) -> None:
        self._of_peer: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are under way."""
        return self._of_peer.total()

    async def answer(
        self, rpc: str, method: Replies, request: Any, context: Any, access: ControllerAccess | None
    ) -> None:
        """Send what `method` yields, as long as `access` permits it; UnavailableError where there are too many."""
        if access is not None:
            await access.permit(rpc, request, context)
        peer = context.peer()
        if self._of_peer[peer] >= SCALER_WATCHES_OF_CONNECTION or self.count >= SCALER_WATCHES_MAX:
            raise UnavailableError(
                f"there are too many calls of {rpc}: {SCALER_WATCHES_OF_CONNECTION} on a connection and "
                f"{SCALER_WATCHES_MAX} in all are taken; ask now and then instead, as KEDA does for triggers of the "
                "type external"
            )
        self._of_peer[peer] += 1
        sending = asyncio.create_task(_send(method(request), context))
        try:
            while not (await asyncio.wait([sending], timeout=SCALER_PERMIT_S))[0]:
                if access is not None:
                    await access.permit(rpc, request, context)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]


async def _send(replies: AsyncGenerator[Any, None], context: Any) -> None:
    async with aclosing(replies):
        async for reply in replies:
            await context.write(reply)
