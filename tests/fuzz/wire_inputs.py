"""Inputs for the wire protocol: valid frames of every command, damaged ones, and noise."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, get_type_hints

from nadi.wire import commands as wire
from nadi.wire import fields as f
from nadi.wire.codec import encode
from tests.fuzz.mutation import damaged, integer, noise

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


def _entry(chance: random.Random) -> f.TableEntry:
    return f.TableEntry(b"k" + noise(chance, 6), integer(chance, 64), noise(chance, 20))


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
    f.Keys: lambda c: _several(c, lambda d: f.TableKey(b"k" + noise(d, 6), integer(d, 64))),
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
    *(wire.ReadTableEntriesDelta, wire.LocateMoment, wire.UpdateTableToFreeRoom, wire.Scrub),
    *(wire.ReportKeys, wire.GetSegmentLoads, wire.LocateChunks, wire.ListMoments, wire.ListEventSizes),
    wire.IndexTimes,
]
_KINDS = list(_FIELDS)


def command(chance: random.Random) -> wire.Command:
    kind = chance.choice(REQUESTS if chance.random() < 0.9 else _KINDS)
    return kind(*[make(chance) for make in _FIELDS[kind]])


def _append(chance: random.Random) -> bytes:
    """A writer's whole conversation, so that damage reaches what lies behind the setup."""
    writer, segment = chance.choice(WRITERS), chance.choice(SEGMENTS)
    data = _data(chance)
    frames = encode(wire.SetupAppend(1, writer, segment, ""))
    number = integer(chance, 64)
    if chance.random() < 0.5:
        frames += encode(wire.AppendBlock(writer, data))
        return frames + encode(wire.AppendBlockEnd(writer, len(data), b"", chance.randrange(-1, 5), number, 2))
    return frames + encode(wire.AppendBlockEnd(writer, len(data), data, chance.randrange(-1, 5), number, 2))


def _known(chance: random.Random, frame: bytes) -> bytes:
    """A conditional append mostly after its writer's setup: else it ends the connection at once."""
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
