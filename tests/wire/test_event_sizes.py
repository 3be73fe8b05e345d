"""Encoding of event sizes and time index entries, and rejection of invalid ones."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import ProtocolError
from nadi.limits import MAX_LARGE_EVENT_BYTES
from nadi.wire import commands as wire
from nadi.wire.event_sizes import packed_sizes, sizes_in
from nadi.wire.time_index import moments_in, packed_moments

S = "a/b/0.#epoch.0"
REQUEST = wire.ListEventSizes(1, S, 100, 100, 10_000, 50, "")


@given(st.lists(st.tuples(st.sampled_from([8, 9, 20, 263, 264, 65_543, 65_544, 1 << 30]), st.integers(1, 30))))
def test_sizes_round_trip(runs: list[tuple[int, int]]) -> None:
    sizes = np.array([size for size, count in runs for _ in range(count)], np.int64)
    end = 5 + int(sizes.sum())
    reply = wire.EventSizesListed(1, S, packed_sizes(sizes), end, end)
    request = wire.ListEventSizes(1, S, 5, 5, end, len(sizes), "")
    assert sizes_in(request, reply).sizes.tolist() == sizes.tolist()


def test_few_bytes_are_sent() -> None:
    alike = np.repeat(np.array([108, 20, 5000], np.int64), [50_000, 7, 40_000])
    assert len(packed_sizes(alike)) < 60
    lengths = np.random.default_rng(1).integers(0, 200, 10_000) + 8
    assert len(packed_sizes(lengths)) < 10_100


def packed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


NONE = packed(1, b"", b"", b"")


@pytest.mark.parametrize(
    ("sizes", "reached", "checked"),
    [
        (b"", 100, 100),
        (b"\xc1", 100, 100),
        (packed(1, b"\2", b""), 110, 110),
        (packed(3, b"\0\0\2", b"", b""), 110, 110),
        (packed(2, b"\2", b"", b""), 110, 110),
        (packed(1, b"\2", b"\0", b""), 110, 110),
        (packed(1, b"\2", b"\0\0\0\0", b""), 110, 110),
        (packed(1, b"\2", b"\0\0\0\1", b"\0\0\0\2"), 110, 110),
        (packed(1, b"\2\2", b"\0\0\0\1" * 2, b"\0\0\0\2" * 2), 140, 140),
        (packed(1, b"\2", b"\0\0\0\0", b"\0\0\0\0"), 100, 100),
        (packed(1, b"\2", b"\0\0\0\0", b"\0\0\0\x33"), 610, 610),
        (packed(1, b"\2", b"\0\0\0\0", b"\xff\xff\xff\xff"), 610, 610),
        (packed(1, b"\2" * 51, b"", b""), 610, 610),
        (packed(4, (MAX_LARGE_EVENT_BYTES + 1).to_bytes(4), b"", b""), 110, 110),
        (packed(1, b"\2\2", b"", b""), 110, 110),
        (NONE, 90, 100),
        (NONE, 100, 99),
        (NONE, 100, 10_001),
        (packed(2, b"\xff\xff", b"", b""), 100 + 65_543, 100 + 65_543),
    ],
)
def test_invalid_sizes_are_rejected(sizes: bytes, reached: int, checked: int) -> None:
    with pytest.raises(ProtocolError):
        sizes_in(REQUEST, wire.EventSizesListed(1, S, sizes, reached, checked))


@given(st.binary(max_size=60), st.integers(-5, 400), st.integers(-5, 400))
def test_any_bytes_are_understood_or_refused(sizes: bytes, reached: int, checked: int) -> None:
    try:
        found = sizes_in(REQUEST, wire.EventSizesListed(1, S, sizes, reached, checked))
    except ProtocolError:
        return
    assert len(found.sizes) <= REQUEST.most


def test_empty_sizes_are_valid() -> None:
    found = sizes_in(REQUEST, wire.EventSizesListed(1, S, NONE, 100, 200))
    assert (len(found.sizes), found.reached, found.checked) == (0, 100, 200)
    assert packed_sizes(np.empty(0, np.int64)) == NONE


@pytest.mark.parametrize(
    ("moments", "is_last"),
    [
        (b"\0" * 17, True),
        (packed_moments([(5, 10), (5, 20)]), True),
        (packed_moments([(5, 10), (6, 10)]), True),
        (struct.pack(">4q", 7, 10, 6, 20), True),
        (b"", False),
    ],
)
def test_invalid_moments_are_rejected(moments: bytes, is_last: bool) -> None:
    with pytest.raises(ProtocolError):
        moments_in(wire.MomentsListed(1, "a/b/0.#epoch.0", moments, is_last, 0, 0))


def test_empty_moments_are_valid() -> None:
    found = moments_in(wire.MomentsListed(1, "a/b/0.#epoch.0", packed_moments([]), True, 9, 3))
    assert (found.moments.tolist(), found.offsets.tolist(), found.appended_ms, found.start) == ([], [], 9, 3)
