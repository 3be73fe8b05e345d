"""What a request takes before it is answered: room, and turns while it is parsed.

A message of 2 MiB may hold a million empty parts: a tenth of a second to parse, and seconds to work on. No request
needs more parts of one kind than two epochs of a stream have segments, so parts are counted first and more are refused;
and a large one is parsed in portions, so that other tasks get their turns in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import DecodeError, Message

from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.limits import RPC_PARTS_MAX, RPC_PORTION_BYTES, RPC_PORTION_PARTS, RPC_ROOM_TIMEOUT_S

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
    """Memory for the requests of calls: `total_bytes` in all, of which `held_bytes` are in use. One address holds at
    most half of it, and waiting addresses take turns.

    gRPC hands over nothing of a request until it is asked to, and doesn't say how large it is; until then the bytes
    stay in the network. So only requests that have room are in memory.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.most_of_address_bytes = total_bytes // 2
        self.held_bytes = 0
        self._of_address: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[tuple[asyncio.Future[None], int]]] = OrderedDict()

    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @asynccontextmanager
    async def of(self, address: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold that much, capped at half of the total; UnavailableError if it isn't free in time."""
        size_bytes = min(size_bytes, self.most_of_address_bytes)
        if address not in self._waiting and self._fits(address, size_bytes):
            self._change(address, size_bytes)
        else:
            await self._turn(address, size_bytes)
        try:
            yield
        finally:
            self._change(address, -size_bytes)
            self._let_in()

    async def _turn(self, address: str, size_bytes: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append((turn, size_bytes))
        try:
            async with asyncio.timeout(RPC_ROOM_TIMEOUT_S):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # it was let in but is no longer wanted
                self._change(address, -size_bytes)
            self._let_in()  # who came after this one may fit
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    f"the requests of others took all room for {RPC_ROOM_TIMEOUT_S:.0f} s: try again"
                ) from error
            raise

    def _let_in(self) -> None:
        """Let in whoever fits, one of each address after the other."""
        has_let_in = True
        while has_let_in:
            has_let_in = False
            for address, turns in list(self._waiting.items()):
                while turns and turns[0][0].done():  # given up
                    turns.popleft()
                if turns and self._fits(address, turns[0][1]):
                    turn, size_bytes = turns.popleft()
                    self._change(address, size_bytes)
                    turn.set_result(None)
                    self._waiting.move_to_end(address)  # after the others next time
                    has_let_in = True
                if not turns:
                    del self._waiting[address]

    def _fits(self, address: str, size_bytes: int) -> bool:
        is_room = self.held_bytes + size_bytes <= self.total_bytes
        return is_room and self._of_address[address] + size_bytes <= self.most_of_address_bytes

    def _change(self, address: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._of_address[address] += size_bytes
        if not self._of_address[address]:
            del self._of_address[address]
