"""Encoding and decoding of commands: golden frames, every command, any chunking, any damage."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nadi.errors import ProtocolError
from nadi.limits import MAX_FRAME_RECEIVED_BYTES
from nadi.wire import commands as wire
from nadi.wire import fields as f
from nadi.wire.append import APPEND_BYTES, append_frame, append_parts
from nadi.wire.codec import encode, encode_alike
from tests.support.decoder import Decoder

GOLDEN = Path(__file__).parents[1] / "golden" / "wire_frames.txt"
W = bytes(range(16))
S = "a/b/0.#epoch.0"
T = "a/t_kvtable/0.#epoch.0"
MIN = f.NO_VERSION
HI = bytes.fromhex("00000000000000026869")

COMMANDS: dict[str, wire.Command] = {
    "Hello(15,5) Rust": wire.Hello(15, 5),
    "Hello(17,5) server": wire.Hello(17, 5),
    "KeepAlive": wire.KeepAlive(),
    "SetupAppend req=1": wire.SetupAppend(1, W, S, ""),
    "AppendSetup req=1 never-written": wire.AppendSetup(1, S, W, MIN),
    'AppendBlockEnd Rust, one event "hi", last=1, req=2': wire.AppendBlockEnd(W, 10, HI, 1, 1, 2),
    "DataAppended ev=1 prev=MIN req=2 off=10": wire.DataAppended(W, 1, MIN, 2, 10),
    'ConditionalAppend Java ev=1 off=10 "hi" req=3': wire.ConditionalAppend(W, 1, 10, 0, b"hi", 3),
    "ConditionalCheckFailed ev=1 req=3": wire.ConditionalCheckFailed(W, 1, 3),
    "ReadSegment off=0 len=1024 req=4": wire.ReadSegment(S, 0, 1024, "", 4),
    "SegmentRead 10 bytes atTail req=4": wire.SegmentRead(S, 0, True, False, HI, 4),
    "SegmentRead end of sealed off=10 req=4": wire.SegmentRead(S, 10, False, True, b"", 4),
    "NoSuchSegment req=5": wire.NoSuchSegment(5, S),
    "UpdateTableEntries k=v insert, req=6": wire.UpdateTableEntries(6, T, "", (f.WireTableEntry(b"k", -1, b"v"),)),
    "TableEntriesUpdated [0] req=6": wire.TableEntriesUpdated(6, (0,)),
    "ReadTableEntriesDelta from=0 n=10 req=7": wire.ReadTableEntriesDelta(7, T, "", 0, 10),
    "TableEntriesDeltaRead {k:v}@0 end=19 req=7": wire.TableEntriesDeltaRead(
        7, T, (f.WireTableEntry(b"k", 0, b"v"),), False, True, 19
    ),
    "LocateMoment at=1 req=8": wire.LocateMoment(8, S, 1, 0, ""),
    "Scrub start req=9": wire.Scrub(9, S, True, ""),
    "ScrubReported {} req=9": wire.ScrubReported(9, S, b"{}"),
    "ReportKeys 0.5 of 3": wire.ReportKeys(W, 3, b"\x3f\xe0" + bytes(6)),
    "GetSegmentLoads after=s req=9": wire.GetSegmentLoads(9, S, "", "s"),
    "SegmentLoads [] req=9": wire.SegmentLoads(9, S, b"\x90", True),
    "LocateChunks 5 to 9 req=9": wire.LocateChunks(9, S, 5, 9, ""),
    "ListMoments 5 to 9 req=9": wire.ListMoments(9, S, 5, 9, ""),
    "MomentsListed [] req=9": wire.MomentsListed(9, S, b"", True, 7, 5),
    "IndexTimes of 2 from 5 req=9": wire.IndexTimes(9, S, 2, 5, b"", ""),
    "TimesIndexed to 9 req=9": wire.TimesIndexed(9, S, 9),
    "ListEventSizes 5 to 9 req=9": wire.ListEventSizes(9, S, 5, 7, 9, 3, ""),
    "EventSizesListed [] req=9": wire.EventSizesListed(9, S, b"\x94\x01\xc4\x00\xc4\x00\xc4\x00", 5, 7),
    "ChunksLocated [] req=9": wire.ChunksLocated(9, S, "file:///a", "m", b"\x90", True),
    "MomentLocated off=10 sealed req=8": wire.MomentLocated(8, S, 10, True),
    "UpdateTableToFreeSpace k=v insert, make, req=9": wire.UpdateTableToFreeSpace(
        9, T, "", (f.WireTableEntry(b"k", -1, b"v"),), True
    ),
}


def golden() -> dict[str, bytes]:
    rows = (line.split(" | ") for line in GOLDEN.read_text().splitlines() if line)
    return {name: bytes.fromhex(frame) for name, frame in rows}


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(name: str) -> None:
    frame = golden()[name]
    assert encode(COMMANDS[name]) == frame
    assert Decoder().receive(frame) == [COMMANDS[name]]


def test_every_code_is_there_once() -> None:
    kinds = {kind for kind in vars(wire).values() if isinstance(kind, type) and issubclass(kind, wire.Command)}
    assert len(wire.CODES) == len([kind for kind in kinds if kind.code]) == 81
    assert all(kind.code == code for code, kind in wire.CODES.items())


i64 = st.integers(-(1 << 63), (1 << 63) - 1)
blob = st.binary(max_size=40)
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
uuid = st.binary(min_size=16, max_size=16)
key = st.builds(f.WireTableKey, st.binary(min_size=1, max_size=10), i64)
table_entry = st.builds(f.WireTableEntry, st.binary(min_size=1, max_size=10), i64, blob)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    f.I8: st.integers(-128, 127),
    f.I32: st.integers(-(1 << 31), (1 << 31) - 1),
    f.I64: i64,
    f.Bool: st.booleans(),
    f.Uuid: uuid,
    f.Str: text,
    f.Blob: blob,
    f.View: blob,
    f.Rest: blob,
    f.Strs: st.lists(text, max_size=3).map(tuple),
    f.I64s: st.lists(i64, max_size=3).map(tuple),
    f.Keys: st.lists(key, max_size=3).map(tuple),
    f.Entries: st.lists(table_entry, max_size=3).map(tuple),
    f.Updates: st.lists(st.builds(f.AttributeUpdate, uuid, st.integers(0, 4), i64, i64), max_size=3).map(tuple),
    f.Merged: st.lists(st.tuples(text, i64), max_size=3).map(tuple),
    f.TableKeyRange: st.tuples(blob, blob, blob),
}


def commands_of(kind: type[wire.Command]) -> st.SearchStrategy[wire.Command]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, *[STRATEGIES[hints[name]] for name in kind.__struct_fields__])


any_command = st.sampled_from(sorted(wire.CODES)).flatmap(lambda code: commands_of(wire.CODES[code]))


def plain(command: wire.Command) -> wire.Command:
    values = [getattr(command, name) for name in command.__struct_fields__]
    return type(command)(*[bytes(v) if isinstance(v, memoryview) else v for v in values])


@pytest.mark.parametrize("code", sorted(wire.CODES))
def test_every_command_round_trips(code: int) -> None:
    @settings(max_examples=15, deadline=None)
    @given(commands_of(wire.CODES[code]))
    def check(command: wire.Command) -> None:
        assert [plain(c) for c in Decoder().receive(encode(command))] == [command]

    check()


@settings(max_examples=150, deadline=None)
@given(st.lists(any_command, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_any_chunking_gives_the_same_commands(commands: list[wire.Command], sizes: list[int]) -> None:
    data = b"".join(map(encode, commands))
    decoder = Decoder(64)
    received: list[wire.Command] = []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        received += decoder.receive(data[position : position + size])
        position += size
        turn += 1
    assert [plain(c) for c in received] == commands  # views stay valid after later frames came


def test_limits() -> None:
    with pytest.raises(ProtocolError):
        Decoder().receive(b"\0\0\0\x09" + (MAX_FRAME_RECEIVED_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError):
        encode(wire.SegmentRead(S, 0, False, False, bytes(17 << 20)))
    with pytest.raises(ProtocolError, match="63"):
        Decoder().receive(b"\0\0\0\x3f\0\0\0\0")


def test_trailing_fields_of_older_and_newer_peers() -> None:
    frame = encode(wire.CreateSegment(1, S, 2, 1, "", 77))
    older = frame[:4] + (len(frame) - 16).to_bytes(4, "big") + frame[8:-8]
    assert Decoder().receive(older) == [wire.CreateSegment(1, S, 2, 1, "", 0)]
    newer = frame[:4] + (len(frame) - 8 + 3).to_bytes(4, "big") + frame[8:] + b"new"
    assert Decoder().receive(newer) == [wire.CreateSegment(1, S, 2, 1, "", 77)]


def test_modified_utf_8_of_java() -> None:
    raw = b"\xc0\x80\xed\xa0\xbd\xed\xb8\x80"  # NUL and an emoji as two surrogates
    payload = (9).to_bytes(8, "big") + len(raw).to_bytes(2, "big") + raw
    frame = (21).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload
    assert Decoder().receive(frame) == [wire.SegmentCreated(9, "\0\U0001f600")]


@given(st.lists(st.binary(max_size=9)), st.integers(1, 1000), st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_appends_frame_is_what_the_codec_makes(pieces: list[bytes], events: int, last: int) -> None:
    joined = b"".join(pieces)
    frame = b"".join(append_frame(W, [*pieces], len(joined), events, last, 77))
    assert frame == encode(wire.AppendBlockEnd(W, len(joined), joined, events, last, 77))
    assert len(frame) == APPEND_BYTES + len(joined)


def test_append_blocks_are_reassembled() -> None:
    frames = golden()
    split = Decoder().receive(frames["split block"] + frames["split end"])
    padded = Decoder().receive(frames["padded block"] + frames["padded end"])
    stored = bytes.fromhex("00000000000000046161616100000000000000066262626262 62".replace(" ", ""))
    for (block, end), expected in ((split, stored), (padded, stored[:12])):
        assert isinstance(block, wire.AppendBlock)
        assert isinstance(end, wire.AppendBlockEnd)
        assert b"".join(append_parts(block, end)) == expected
    exact = wire.AppendBlock(W, HI)
    assert b"".join(append_parts(exact, wire.AppendBlockEnd(W, 10, b"", 1, 1))) == HI
    for block, end in (
        (exact, wire.AppendBlockEnd(bytes(16), 10, b"", 1, 1)),
        (exact, wire.AppendBlockEnd(W, 11, b"", 1, 1)),
        (exact, wire.AppendBlockEnd(W, 5, b"", 1, 1)),
        (exact, wire.AppendBlockEnd(W, 0, b"", 1, 1)),
    ):
        with pytest.raises(ProtocolError):
            append_parts(block, end)


# --- appends taken from a buffer in one go are those that come one by one, and nothing else is taken -----------


def fill(decoder: Decoder, piece: bytes) -> None:
    while piece:
        room = decoder.get_buffer()
        count = min(len(room), len(piece))
        room[:count] = piece[:count]
        decoder.filled(count)
        piece = piece[count:]


def _append(chance: random.Random) -> wire.Command:
    data = chance.randbytes(chance.choice([0, 1, 20, 3_000]))
    return wire.AppendBlockEnd(chance.randbytes(16), len(data), data, chance.randrange(9), chance.randrange(99), 7)


def _other(chance: random.Random) -> wire.Command:
    return chance.choice(
        [
            wire.KeepAlive(),
            wire.AppendBlock(chance.randbytes(16), chance.randbytes(50)),
            wire.ConditionalAppend(chance.randbytes(16), 1, 2, 0, chance.randbytes(30), 3),
            wire.SetupAppend(4, chance.randbytes(16), "scope/stream/0.#epoch.0", ""),
        ]
    )


@pytest.mark.parametrize("seed", range(10))
def test_fast_path_returns_exactly_the_appends(seed: int) -> None:
    chance = random.Random(seed)
    sent = [_append(chance) if chance.random() < 0.8 else _other(chance) for _ in range(200)]
    stream = b"".join(map(encode, sent))
    decoder, came, position = Decoder(8_192), list[wire.Command](), 0
    while position < len(stream):
        piece = stream[position : position + chance.choice([1, 7, 100, 4_000])]
        position += len(piece)
        fill(decoder, piece)
        while True:
            most = chance.choice([1, 3, 50])
            appends = decoder.appends(most)
            assert len(appends) <= most
            came += appends
            if appends:
                assert decoder.frame_bytes == len(encode(appends[-1]))
                continue
            command = next(decoder.commands(), None)
            if command is None:
                break
            came.append(command)
            assert decoder.frame_bytes == len(encode(command))
    assert list(map(encode, came)) == list(map(encode, sent))


@pytest.mark.parametrize("seed", range(10))
def test_acknowledgements_received_in_any_pieces_are_in_order(seed: int) -> None:
    chance = random.Random(seed)
    sent: list[wire.Command] = [
        wire.DataAppended(chance.randbytes(16), n, n - 1, 7, n << 40) if chance.random() < 0.8 else _other(chance)
        for n in range(200)
    ]
    frames = list(map(encode, sent))
    short = frames.index(next(frame for frame in frames if len(frame) == 56))
    frames[short] = frames[short][:7] + bytes([40]) + frames[short][8:-8]  # an older peer omits the offset
    sent[short] = replace(sent[short], current_segment_write_offset=-1)
    stream, decoder, came, position = b"".join(frames), Decoder(8_192), list[wire.Command](), 0
    while position < len(stream):
        piece = stream[position : position + chance.choice([1, 7, 100, 4_000])]
        position += len(piece)
        fill(decoder, piece)
        commands = decoder.commands()
        while True:
            came += decoder.acknowledgements()
            command = next(commands, None)
            if command is None:
                break
            came.append(command)
    assert list(map(encode, came)) == list(map(encode, sent))
    assert not decoder.pending_bytes


def test_frames_left_by_the_fast_path_are_rejected() -> None:
    """A size that differs from the frame's, a negative size, or a frame that is too large."""
    good = encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7))
    wrong_size = good[:28] + struct.pack(">i", 400) + good[32:]
    below_zero = good[:28] + struct.pack(">i", -3) + good[32:]
    for bad in (wrong_size, below_zero):
        decoder = Decoder(8_192)
        fill(decoder, good + bad)
        assert len(decoder.appends(10)) == 1
        assert decoder.appends(10) == []
        with pytest.raises(ProtocolError):
            next(decoder.commands())
    decoder = Decoder(8_192)
    decoder.max_frame_bytes = 20
    fill(decoder, good)
    assert decoder.appends(10) == []
    with pytest.raises(ProtocolError):
        next(decoder.commands())


def test_append_of_an_older_peer_has_no_request_id() -> None:
    whole = encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7))
    older = struct.pack(">ii", wire.AppendBlockEnd.code, len(whole) - 16) + whole[8:-8]
    decoder = Decoder(8_192)
    fill(decoder, older + whole)
    assert decoder.appends(10) == []
    assert getattr(next(decoder.commands()), "request_id", None) == -1
    assert len(decoder.appends(10)) == 1


def test_a_buffer_with_appends_handed_out_is_not_written_again() -> None:
    decoder = Decoder(8_192)
    fill(decoder, encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7)))
    (first,) = decoder.appends(10)
    fill(decoder, encode(wire.AppendBlockEnd(bytes(16), 3, b"xyz", 1, 2, 7)))
    decoder.appends(10)
    assert bytes(first.data) == b"abc"


def test_acknowledgements_are_what_the_codec_makes_of_them() -> None:
    chance = random.Random(1)
    many = [wire.DataAppended(chance.randbytes(16), n, n - 1, -n, n << 40) for n in (0, 5, 1 << 20)]
    assert encode_alike(many) == b"".join(map(encode, many))
