"""Fuzzing of the wire protocol: the decoder alone, and the port of a live server."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, get_type_hints

from nadi.errors import ProtocolError
from nadi.wire import commands as wire
from nadi.wire import fields as f
from nadi.wire.codec import encode
from tests.fuzz.report import EACH_S, Finding, Report, damaged, integer, memory_bytes, noise
from tests.support.decoder import Decoder

SEGMENTS = ("a/b/0.#epoch.0", "a/b/1.#epoch.0", "a/b/4.#epoch.1", "a/t_kvtable/0.#epoch.0", "a/none/0.#epoch.0")
WRITERS = tuple(bytes([n]) * 16 for n in range(4))
_HEADER = struct.Struct(">ii")


def _text(chance: random.Random) -> str:
    if chance.random() < 0.8:
        return chance.choice(SEGMENTS)
    return chance.choice(("", "a", "//", "é" * 3, "x" * 300, "a/b/0.#epoch.0#transaction." + "0" * 32, "\0"))


def _data(chance: random.Random) -> bytes:
    events = [noise(chance, 30) for _ in range(chance.randrange(4))]
    framed = b"".join(_HEADER.pack(0, len(event)) + event for event in events)
    return framed if chance.random() < 0.8 else noise(chance, 100)


def _entry(chance: random.Random) -> f.WireTableEntry:
    return f.WireTableEntry(b"k" + noise(chance, 6), integer(chance, 64), noise(chance, 20))


def _several(chance: random.Random, make: Callable[[random.Random], Any]) -> tuple[Any, ...]:
    return tuple(make(chance) for _ in range(chance.randrange(4)))


_MAKERS: dict[Any, Callable[[random.Random], Any]] = {
    f.I8: lambda c: integer(c, 8),
    f.I32: lambda c: integer(c, 32),
    f.I64: lambda c: integer(c, 64),
    f.Bool: lambda c: c.random() < 0.5,
    f.Uuid: lambda c: c.choice(WRITERS) if c.random() < 0.9 else c.randbytes(16),
    f.Str: _text,
    f.Blob: lambda c: noise(c, 40),
    f.View: _data,
    f.Rest: _data,
    f.Strs: lambda c: _several(c, _text),
    f.I64s: lambda c: _several(c, lambda d: integer(d, 64)),
    f.Keys: lambda c: _several(c, lambda d: f.WireTableKey(b"k" + noise(d, 6), integer(d, 64))),
    f.Entries: lambda c: _several(c, _entry),
    f.Merged: lambda c: _several(c, lambda d: (_text(d), integer(d, 64))),
    f.Updates: lambda c: _several(
        c, lambda d: f.AttributeUpdate(d.choice(WRITERS), integer(d, 8), integer(d, 64), integer(d, 64))
    ),
    f.TableKeyRange: lambda c: (noise(c, 5), noise(c, 5), noise(c, 5)),
}
_FIELDS = {
    kind: [_MAKERS[get_type_hints(kind, include_extras=True)[name]] for name in kind.__struct_fields__]
    for kind in wire.CODES.values()
}
REQUESTS: list[type[wire.Command]] = [
    *(wire.Hello, wire.SetupAppend, wire.ConditionalAppend, wire.ReadSegment, wire.GetStreamSegmentInfo),
    *(wire.CreateSegment, wire.CreateTransientSegment, wire.CreateTableSegment, wire.SealSegment, wire.DeleteSegment),
    *(wire.DeleteTableSegment, wire.UpdateSegmentPolicy, wire.GetSegmentAttribute, wire.UpdateSegmentAttribute),
    *(wire.TruncateSegment, wire.LocateOffset, wire.MergeSegments, wire.MergeSegmentsBatch, wire.GetTableSegmentInfo),
    *(wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable, wire.ReadTableKeys, wire.ReadTableEntries),
    *(wire.ReadTableEntriesDelta, wire.LocateMoment, wire.UpdateTableToFreeSpace, wire.Scrub),
    *(wire.ReportKeys, wire.GetSegmentLoads, wire.LocateChunks, wire.ListMoments, wire.ListEventSizes),
    wire.IndexTimes,
]
_KINDS = list(_FIELDS)


def command(chance: random.Random) -> wire.Command:
    kind = chance.choice(REQUESTS if chance.random() < 0.9 else _KINDS)
    return kind(*[make(chance) for make in _FIELDS[kind]])


def _append(chance: random.Random) -> bytes:
    """A writer's complete conversation, so that damage reaches commands after the setup."""
    writer, segment = chance.choice(WRITERS), chance.choice(SEGMENTS)
    data = _data(chance)
    frames = encode(wire.SetupAppend(1, writer, segment, ""))
    number = integer(chance, 64)
    if chance.random() < 0.5:
        frames += encode(wire.AppendBlock(writer, data))
        return frames + encode(wire.AppendBlockEnd(writer, len(data), b"", chance.randrange(-1, 5), number, 2))
    return frames + encode(wire.AppendBlockEnd(writer, len(data), data, chance.randrange(-1, 5), number, 2))


def _known(chance: random.Random, frame: bytes) -> bytes:
    """Return a conditional append, mostly after its writer's setup: without it, the connection ends at once."""
    if _HEADER.unpack_from(frame)[0] != wire.ConditionalAppend.code or chance.random() < 0.1:
        return frame
    return encode(wire.SetupAppend(1, frame[8:24], chance.choice(SEGMENTS), "")) + frame


def wire_input(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.05:
        return noise(chance)
    whole = _append(chance) if chance.random() < 0.2 else _known(chance, encode(command(chance)))
    if kind < 0.4:
        return whole
    if kind < 0.7:  # damaged inside a frame that is whole
        code, _ = _HEADER.unpack_from(whole)
        payload = damaged(chance, whole[8:])
        return _HEADER.pack(code, len(payload)) + payload
    return damaged(chance, whole)


HELLO = encode(wire.Hello(17, 5))
PROBE = encode(wire.KeepAlive())  # echoed as soon as it is read, so all earlier input was read
_BARRIER = "barrier/barrier/0.#epoch.0"
BARRIER = encode(wire.SealSegment(1, _BARRIER, ""))  # answered when all earlier input was handled
BATCH = 32


def decode_all(seed: int, inputs: int) -> Report:
    """Feed a decoder in random chunks: it returns commands or raises ProtocolError."""
    chance, report = random.Random(seed), Report("wire decoder", seed)
    each = max(1, inputs // 20)
    for number in range(inputs):
        if number % each == 0:
            report.memory.append(memory_bytes())
        data = wire_input(chance)
        if chance.random() < 0.3:
            data += wire_input(chance)
        decoder = Decoder(chance.choice((4096, 8192, 1 << 16)))
        began = time.monotonic()
        outcome, position = "commands", 0
        try:
            while position < len(data):
                size = chance.choice((1, 3, 8, 20, 1000)) if chance.random() < 0.5 else len(data)
                decoder.receive(data[position : position + size])
                position += size
        except ProtocolError:
            outcome = "refused"
        except Exception as error:
            raise Finding(f"decoder, seed {seed}, input {number}: {data.hex()}") from error
        report.saw(outcome, time.monotonic() - began, f"input {number}")
    report.memory.append(memory_bytes())
    return report


class Kind(Enum):
    HANDLED = "handled"  # whole requests
    REFUSED = "refused"  # something that ends the connection
    INCOMPLETE = "cut short"  # it would swallow the following input


_TAKEN = frozenset((*REQUESTS, wire.KeepAlive, wire.AppendBlockEnd))


def _kind(data: bytes) -> Kind:
    """The expected outcome of an input on an intact connection."""
    try:
        commands = Decoder(4096).receive(data)
    except ProtocolError:
        return Kind.REFUSED
    position = 0
    while position + 8 <= len(data):
        position += 8 + int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
    if position != len(data):
        return Kind.INCOMPLETE
    block = commands and type(commands[-1]) is wire.AppendBlock
    taken = {type(command) for command in commands} <= _TAKEN | {wire.AppendBlock}
    return Kind.HANDLED if taken and not block else Kind.REFUSED


async def fuzz_port(address: tuple[str, int], pid: int, seed: int, inputs: int, connections: int = 8) -> Report:
    """Send inputs to a live server, over connections that each handle a batch and may end with a bad input.

    A probe after each shows which was read. If one unexpectedly ends the connection, it is counted,
    and the inputs after it are sent again on the next.
    """
    chance, report = random.Random(seed), Report("wire port", seed)
    left = inputs
    each = max(1, inputs // 20)

    async def one_connection() -> None:
        nonlocal left
        waiting: deque[bytes] = deque()
        last: list[bytes] = []
        while waiting or last or left > 0:
            while len(waiting) < BATCH and left > 0 and not last:
                left -= 1
                if left % each == 0:
                    report.memory.append(memory_bytes(pid))
                data = wire_input(chance)
                (waiting if _kind(data) is Kind.HANDLED else last).append(data)
            began = time.monotonic()
            try:
                async with asyncio.timeout(EACH_S):
                    read, ended = await _converse(address, list(waiting), *last)
            except TimeoutError:
                shown = [data.hex() for data in (*waiting, *last)]
                raise Finding(f"wire port, seed {seed}: no answer within {EACH_S} s to one of {shown}") from None
            took = (time.monotonic() - began) / (read + 1)
            for number in range(read):
                waiting.popleft()
                outcome = "ended its connection" if ended and number == read - 1 else Kind.HANDLED.value
                report.saw(outcome, took, "a batch")
            if not ended and last:
                data = last.pop()
                report.saw(_kind(data).value, took, data.hex())

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one_connection())
    report.memory.append(memory_bytes(pid))
    return report


async def _converse(address: tuple[str, int], batch: list[bytes], last: bytes = b"") -> tuple[int, bool]:
    """Return how many inputs of the batch were handled, and whether one ended the connection; if none did, `last` is
    sent as the last of this connection, which the server must then close.
    """
    reader, writer = await asyncio.open_connection(*address)
    answers, echoes, handled = Decoder(), 0, False
    try:
        writer.write(HELLO + b"".join(data + PROBE for data in batch) + BARRIER)
        while not handled:
            received = await reader.read(1 << 16)
            if not received:
                return min(echoes + 1, len(batch)), True
            for command in answers.receive(received):
                echoes += type(command) is wire.KeepAlive
                handled = handled or (type(command) is wire.NoSuchSegment and command.segment == _BARRIER)
        if last:
            writer.write(last)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        return min(echoes + 1, len(batch)), True
    else:
        return len(batch), False
    finally:
        writer.close()
