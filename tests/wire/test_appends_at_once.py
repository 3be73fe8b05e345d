"""Appends taken from a buffer in one go are those that come one by one, and nothing else is taken with them."""

from __future__ import annotations

import random
import struct

import pytest

from nadi.errors import ProtocolError
from nadi.wire import commands as wire
from nadi.wire.codec import encode, encode_alike
from nadi.wire.decoder import Decoder


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


def _fill(decoder: Decoder, piece: bytes) -> None:
    while piece:
        room = decoder.get_buffer()
        count = min(len(room), len(piece))
        room[:count] = piece[:count]
        decoder.filled(count)
        piece = piece[count:]


@pytest.mark.parametrize("seed", range(30))
def test_nothing_else_is_taken_and_nothing_is_left_out(seed: int) -> None:
    chance = random.Random(seed)
    sent = [_append(chance) if chance.random() < 0.8 else _other(chance) for _ in range(200)]
    stream = b"".join(map(encode, sent))
    decoder, came, position = Decoder(8_192), list[wire.Command](), 0
    while position < len(stream):
        piece = stream[position : position + chance.choice([1, 7, 100, 4_000])]
        position += len(piece)
        _fill(decoder, piece)
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


def test_what_it_leaves_is_refused_as_ever() -> None:
    """A size that isn't the frame's, or is below zero, or a frame that is too large."""
    good = encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7))
    wrong_size = good[:28] + struct.pack(">i", 400) + good[32:]
    below_zero = good[:28] + struct.pack(">i", -3) + good[32:]
    for bad in (wrong_size, below_zero):
        decoder = Decoder(8_192)
        _fill(decoder, good + bad)
        assert len(decoder.appends(10)) == 1
        assert decoder.appends(10) == []
        with pytest.raises(ProtocolError):
            next(decoder.commands())
    decoder = Decoder(8_192)
    decoder.max_frame_bytes = 20
    _fill(decoder, good)
    assert decoder.appends(10) == []
    with pytest.raises(ProtocolError, match="announces"):
        next(decoder.commands())


def test_one_of_an_older_peer_has_no_request_id() -> None:
    whole = encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7))
    older = struct.pack(">ii", wire.AppendBlockEnd.code, len(whole) - 16) + whole[8:-8]
    decoder = Decoder(8_192)
    _fill(decoder, older + whole)
    assert decoder.appends(10) == []
    assert getattr(next(decoder.commands()), "request_id", None) == -1
    assert len(decoder.appends(10)) == 1


def test_a_buffer_with_appends_handed_out_is_not_written_again() -> None:
    decoder = Decoder(8_192)
    _fill(decoder, encode(wire.AppendBlockEnd(bytes(16), 3, b"abc", 1, 1, 7)))
    (first,) = decoder.appends(10)
    _fill(decoder, encode(wire.AppendBlockEnd(bytes(16), 3, b"xyz", 1, 2, 7)))
    decoder.appends(10)
    assert bytes(first.data) == b"abc"


def test_acknowledgements_are_what_the_codec_makes_of_them() -> None:
    chance = random.Random(1)
    many = [wire.DataAppended(chance.randbytes(16), n, n - 1, -n, n << 40) for n in (0, 5, 1 << 20)]
    assert encode_alike(many) == b"".join(map(encode, many))
