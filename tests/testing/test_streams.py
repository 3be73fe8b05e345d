"""Helpers that fill, read and await events."""

from __future__ import annotations

import threading

import pytest

from nadi.client import StreamManager
from nadi.client.serializers import Json
from nadi.errors import RequestTimeoutError
from nadi.testing import await_events, fill_stream, read_stream
from tests.support.waiting import until


def test_fill_and_read(nadi_manager: StreamManager, nadi_scope: str) -> None:
    first = fill_stream(nadi_manager, nadi_scope, "s", (b"%d" % i for i in range(3)), "k", segments=2)
    assert len(first.positions) == 2
    second = fill_stream(nadi_manager, nadi_scope, "s", [3, 4], ["k", "k"], serializer=Json())
    assert read_stream(nadi_manager, nadi_scope, "s") == [b"0", b"1", b"2", b"3", b"4"]
    assert read_stream(nadi_manager, nadi_scope, "s", end=first) == [b"0", b"1", b"2"]
    assert read_stream(nadi_manager, nadi_scope, "s", start=first, end=second, serializer=Json()) == [3, 4]


def test_waiting_for_events(nadi_manager: StreamManager, nadi_scope: str) -> None:
    start = fill_stream(nadi_manager, nadi_scope, "s", [b"old"], "k")
    later = threading.Thread(
        target=lambda: fill_stream(nadi_manager, nadi_scope, "s", [1, 2, 3], "k", serializer=Json())
    )
    later.start()
    assert await_events(nadi_manager, nadi_scope, "s", 2, start=start, serializer=Json()) == [1, 2]
    later.join()

    def message() -> str:
        with pytest.raises(RequestTimeoutError) as raised:
            await_events(nadi_manager, nadi_scope, "s", 5, timeout=0.5)
        return str(raised.value)

    until(lambda: message().startswith("4 of 5 "))  # a slow machine may read fewer in so short a time
    nadi_manager.seal_stream(nadi_scope, "s")
    with pytest.raises(RequestTimeoutError):
        await_events(nadi_manager, nadi_scope, "s", 5)
