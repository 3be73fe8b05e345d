"""Appends on a connection in any order and shape, compared with a model of the protocol.

Two connections take turns, with the same writers: commands received together, however split into packets, must have the
same outcome as one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import NO_VERSION
from tests.segmentstore.harness import Peer, connect, open_store

pytestmark = pytest.mark.uvloop

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
WRITERS = [bytes([number]) * 16 for number in range(3)]
_PARTIAL, _PADDING = -2, -1


@dataclass
class Segment:
    data: bytes = b""
    is_sealed: bool = False
    numbers: dict[bytes, int] = field(default_factory=dict)  # by writer


@dataclass
class Session:
    segment: str
    stored: int = NO_VERSION
    acknowledged: int = NO_VERSION
    refused_with: type[wire.Command] | None = None


class Ended(Exception):
    """The connection is closed by a command. is_sure: no later command has had an effect."""

    def __init__(self, *, is_sure: bool) -> None:
        self.is_sure = is_sure


class Model:
    """The expected contents and replies of the store."""

    def __init__(self) -> None:
        self.segments = {name: Segment() for name in SEGMENTS}

    def clone(self) -> Model:
        twin = Model()
        twin.segments = {
            name: Segment(segment.data, segment.is_sealed, dict(segment.numbers))
            for name, segment in self.segments.items()
        }
        return twin

    def state(self) -> dict[str, tuple[bytes, bool, dict[bytes, int]]]:
        return {name: (one.data, one.is_sealed, one.numbers) for name, one in self.segments.items()}

    def take(self, command: Any, sessions: dict[bytes, Session]) -> Any:
        """Return the expected reply to a command. sessions: those of its connection."""
        match command:
            case wire.SetupAppend():
                sessions[command.writer_id] = session = Session(command.segment)
                segment = self.segments.get(command.segment)
                if segment is None:
                    session.refused_with = wire.NoSuchSegment
                    return wire.NoSuchSegment, command.request_id
                session.stored = session.acknowledged = segment.numbers.get(command.writer_id, NO_VERSION)
                return wire.AppendSetup(command.request_id, command.segment, command.writer_id, session.stored)
            case Whole():
                if command.events <= 0:
                    raise Ended(is_sure=True)
                return self._append(command.writer, command.data, command.last, command.request_id, sessions)
            case wire.ConditionalAppend():
                data = command.event_type.to_bytes(4) + len(command.data).to_bytes(4) + bytes(command.data)
                number, offset = command.event_number, command.expected_offset
                return self._append(command.writer_id, data, number, command.request_id, sessions, offset)
            case wire.ConditionalBlockEnd():
                number, offset, after = command.event_number, command.expected_offset, command.after_event_number
                data = bytes(command.data)
                return self._append(command.writer_id, data, number, command.request_id, sessions, offset, after)
            case wire.SealSegment() if self.segments[command.segment].is_sealed:
                return wire.SegmentIsSealed, command.request_id
            case wire.SealSegment():
                self.segments[command.segment].is_sealed = True
                return wire.SegmentSealed(command.request_id, command.segment)
            case wire.GetStreamSegmentInfo():
                return wire.StreamSegmentInfo, command.request_id, len(self.segments[command.segment].data)
        raise AssertionError(command)

    def _append(
        self,
        writer: bytes,
        data: bytes,
        last: int,
        request_id: int,
        sessions: dict[bytes, Session],
        offset: int | None = None,
        after: int = NO_VERSION,
    ) -> Any:
        session = sessions.get(writer)
        if session is None:
            raise Ended(is_sure=True)
        if session.refused_with not in (None, wire.InvalidEventNumber):
            return session.refused_with, request_id
        segment = self.segments[session.segment]
        if segment.is_sealed:
            session.refused_with = wire.SegmentIsSealed
            return wire.SegmentIsSealed, request_id
        if segment.numbers.get(writer, NO_VERSION) != session.stored or last < session.stored:
            session.refused_with = wire.InvalidEventNumber
        if session.refused_with is wire.InvalidEventNumber:
            raise Ended(is_sure=False)
        if after not in (NO_VERSION, session.stored) or offset not in (None, len(segment.data)):
            return wire.ConditionalCheckFailed(writer, last, request_id)
        segment.data += data
        segment.numbers[writer] = session.stored = last
        reply = wire.DataAppended(writer, last, session.acknowledged, request_id, len(segment.data))
        session.acknowledged = last
        return reply


@dataclass
class Whole:
    """An append without a condition; `sent` is the form in which it is sent."""

    writer: bytes
    data: bytes
    events: int
    last: int
    request_id: int
    sent: bytes


class Chance:
    """Generates commands, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._next_id = 0

    def command(self, model: Model, sessions: dict[bytes, Session]) -> Any:
        chance = self.random
        self._next_id += 1
        request_id, writer = self._next_id, chance.choice(WRITERS)
        session = sessions.get(writer)
        kind = chance.random()
        if kind < 0.08 or (session is None and kind < 0.995):
            name = chance.choice(SEGMENTS) if chance.random() < 0.97 else "scope/missing/0.#epoch.0"
            return wire.SetupAppend(request_id, writer, name, "")
        last = session.stored if session is not None else 0
        if chance.random() < 0.995:
            last = max(last, 0) + chance.choice([1, 1, 1, 2, 100])
        else:
            last = max(last - chance.choice([0, 1]), NO_VERSION)
        length = len(model.segments[session.segment].data) if session and session.segment in model.segments else 0
        offset = length if chance.random() < 0.7 else max(0, length + chance.choice([-1, 1, 100]))
        data = chance.randbytes(chance.choice([0, 1, 30, 30, 30, 30, 30, 400, 5_000, 30_000]))
        if chance.random() < 0.005:
            data = chance.randbytes(chance.choice([150_000, 300_000]))
        if kind < 0.84:
            return self._whole(writer, data, last, request_id)
        if kind < 0.91:
            return wire.ConditionalAppend(writer, last, offset, chance.choice([0, 7]), data, request_id)
        if kind < 0.97:
            after = chance.choice([NO_VERSION, session.stored if session else 0, last])
            return wire.ConditionalBlockEnd(writer, last, offset, data, request_id, after)
        if kind < 0.972:
            return wire.SealSegment(request_id, chance.choice(SEGMENTS), "")
        return wire.GetStreamSegmentInfo(request_id, chance.choice(SEGMENTS), "")

    def _whole(self, writer: bytes, data: bytes, last: int, request_id: int) -> Whole:
        chance = self.random
        events = chance.choice([1, 1, 5]) if chance.random() < 0.998 else chance.choice([0, -1])
        if chance.random() < 0.7:
            sent = encode(wire.AppendBlockEnd(writer, len(data), data, events, last, request_id))
            return Whole(writer, data, events, last, request_id, sent)
        whole = chance.randint(0, len(data))
        area, rest = data[:whole], data[whole:]
        if chance.random() < 0.5:  # an event whose head is in the block
            cut = chance.randint(0, len(rest))
            area += _PARTIAL.to_bytes(4, signed=True) + cut.to_bytes(4) + rest[:cut]
            rest = rest[cut:]
        elif chance.random() < 0.5:
            padding = chance.randint(0, 50)
            area += _PADDING.to_bytes(4, signed=True) + padding.to_bytes(4) + bytes(padding)
        block = wire.AppendBlock(writer, area)
        end = wire.AppendBlockEnd(writer, whole, rest, events, last, request_id)
        return Whole(writer, data, events, last, request_id, encode(block) + encode(end))


def bytes_of(command: Any) -> bytes:
    return command.sent if isinstance(command, Whole) else encode(command)


async def send_in_pieces(peer: Peer, data: bytes, chance: random.Random) -> None:
    largest = chance.choice([len(data), len(data), 100_000, 3_000, 50])
    count = 0
    while data and not peer.is_closing:
        size = chance.randint(1, largest)
        peer.send_raw(data[:size])
        data = data[size:]
        count += 1
        if count < 300 and chance.random() < 0.3:
            await asyncio.sleep(0)


def assert_is(reply: Any, expected: Any) -> None:
    if not isinstance(expected, tuple):
        assert reply == expected
        return
    assert isinstance(reply, expected[0]), (reply, expected)
    assert reply.request_id == expected[1]
    if len(expected) > 2:
        assert reply.write_offset == expected[2]


async def all_from(peer: Peer) -> list[wire.Command]:
    """Receive commands until the connection is closed."""
    came: list[wire.Command] = []
    with contextlib.suppress(ConnectionError):
        while True:
            came.append(await peer.receive())
    return came


async def found_in(store: SegmentStore, peer: Peer) -> dict[str, tuple[bytes, bool, dict[bytes, int]]]:
    found = {}
    for name in SEGMENTS:
        info = await peer.ask(wire.GetStreamSegmentInfo(1, name, ""))
        numbers = {writer: await peer.setup(name, writer) for writer in WRITERS}
        numbers = {writer: number for writer, number in numbers.items() if number != NO_VERSION}
        found[name] = await peer.read_all(name), info.is_sealed, numbers
    return found


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
async def test_appends_in_any_order_and_shape(tmp_path: Path, seed: int) -> None:
    chance = Chance(seed)
    model = Model()
    async with open_store(tmp_path, 1) as (store, first):
        address = store.address
        for name in SEGMENTS:
            await first.create(name)
        peers, sessions = [first, await connect(address)], [dict[bytes, Session](), dict[bytes, Session]()]
        for _ in range(12):
            which = chance.random.randrange(2)
            peer, mine = peers[which], sessions[which]
            commands, replies, states = [], [], []
            ended: Ended | None = None
            for _ in range(chance.random.choice([1, 5, 50, 200])):
                command = chance.command(model, mine)
                commands.append(command)
                try:
                    reply = model.take(command, mine)
                    if ended is None:
                        replies.append(reply)
                except Ended as end:
                    ended = ended or end
                    if end.is_sure:
                        break
                if ended is not None:
                    states.append(model.clone().state())
            await send_in_pieces(peer, b"".join(map(bytes_of, commands)), chance.random)
            if ended is None:
                for reply in replies:
                    assert_is(await peer.receive(), reply)
                continue
            came = await all_from(peer)
            for answer, reply in zip(came, replies, strict=False):  # the last ones may be lost
                assert_is(answer, reply)
            assert len(came) <= len(replies) or not ended.is_sure
            peers[which] = await connect(address)
            mine.clear()
            found = await found_in(store, peers[which])
            for writer in WRITERS:  # as last set up by `found_in`
                number = found[SEGMENTS[-1]][2].get(writer, NO_VERSION)
                mine[writer] = Session(SEGMENTS[-1], number, number)
            if ended.is_sure:
                assert found == model.state()
            else:
                assert found in states
                model.segments = {name: Segment(*one) for name, one in found.items()}
        third = await connect(address)
        assert await found_in(store, third) == model.state()
        third.close()
        peers[1].close()
    async with open_store(tmp_path, 1) as (store, peer):
        assert await found_in(store, peer) == model.state()
