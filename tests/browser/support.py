"""Pictures for a stream, and somebody who writes while a browser looks on."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nadi.client import StreamManager


def png(red: int, side: int = 16) -> bytes:
    """A red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((red, 0, 0)) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def until(page: Any, condition: str, limit_s: float = 15.0) -> None:
    """Wait for a condition in JavaScript. Playwright's own way needs eval, which the page's policy forbids."""
    ends = time.monotonic() + limit_s
    while not page.evaluate(condition):
        assert time.monotonic() < ends, f"it never came that {condition}"
        page.wait_for_timeout(30)


@contextmanager
def writing(
    manager: StreamManager, scope: str, stream: str, event: Callable[[int], bytes], every_s: float = 0.05
) -> Iterator[None]:
    """Events are written all the while, each made of its number."""
    is_over = threading.Event()
    writer = manager.create_writer(scope, stream)

    def write_all() -> None:
        number = 0
        while not is_over.wait(every_s):
            writer.write_event(event(number), routing_key="a")
            number += 1
        writer.flush()

    thread = threading.Thread(target=write_all)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
