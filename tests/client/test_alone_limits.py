"""A connection that is lent where the system has no more to give."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from nadi.client import StreamManager
from nadi.client.segments import alone

from .test_alone import alone_of, lent, made, stored


def test_without_descriptors_it_is_not_lent(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", none_left)
    with made(manager, "descriptors") as writer:
        for _ in range(20):
            writer.write_event(b"x").result(60)
        assert not alone_of(writer).is_lent
    assert len(stored(manager, "descriptors", b"x")) == 20


def test_a_timeout_of_months(manager: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "LOOK_S", 3600.0)
    with made(manager, "months") as writer:
        for timeout in (1e7, threading.TIMEOUT_MAX):
            lent(writer)
            writer.write_event(b"x").result(timeout)
