"""A store's moments, told wrongly."""

from __future__ import annotations

import struct

import pytest

from nadi.errors import ProtocolError
from nadi.wire import commands as wire
from nadi.wire.moments import moments_in, packed_moments


@pytest.mark.parametrize(
    ("moments", "is_last", "why"),
    [
        (b"\0" * 17, True, "17 bytes"),
        (packed_moments([(5, 10), (5, 20)]), True, "not in order"),
        (packed_moments([(5, 10), (6, 10)]), True, "not in order"),
        (struct.pack(">4q", 7, 10, 6, 20), True, "not in order"),
        (b"", False, "more are to come"),
    ],
)
def test_moments_that_cannot_be_are_refused(moments: bytes, is_last: bool, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        moments_in(wire.MomentsListed(1, "a/b/0.#epoch.0", moments, is_last, 0, 0))


def test_no_moments_are_some() -> None:
    found = moments_in(wire.MomentsListed(1, "a/b/0.#epoch.0", packed_moments([]), True, 9, 3))
    assert (found.moments.tolist(), found.offsets.tolist(), found.appended_ms, found.start) == ([], [], 9, 3)
