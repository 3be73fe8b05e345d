"""Helpers: pictures as events, background writers, and measurement of the player's pace."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nadi.client import StreamManager


def png(red: int, side: int = 16) -> bytes:
    """Return a red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((red, 0, 0)) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def until(page: Any, condition: str, limit_s: float = 60.0) -> None:
    """Wait for a condition in JavaScript. Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + limit_s
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"timeout: {condition}"
        page.wait_for_timeout(30)


@contextmanager
def writing(
    manager: StreamManager, scope: str, stream: str, event: Callable[[int], bytes], every_s: float = 0.05
) -> Iterator[None]:
    """Write numbered events until the end of the context."""
    stop = threading.Event()
    writer = manager.create_writer(scope, stream)

    def write_all() -> None:
        number = 0
        while not stop.wait(every_s):
            writer.write_event(event(number), routing_key="a")
            number += 1
        writer.flush()

    thread = threading.Thread(target=write_all)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


SLACK = 4 if "PYTEST_XDIST_WORKER" in os.environ else 1  # factor on time limits while other tests run
Figures = Callable[[str, object], None]  # pytest's record_property, for `--junitxml FILE -o junit_family=xunit1`


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured pace. shown_s: duration of the shown pictures in the recording. frames_per_s: distinct pictures."""

    shown_s: float
    seen_s: float
    frames_per_s: float

    def is_at(self, speed: float) -> bool:
        """Return whether the pace is this speed, within the accuracy of a busy machine."""
        if SLACK == 1:
            return abs(self.shown_s / speed - self.seen_s) < 0.5
        return speed / SLACK < self.shown_s / self.seen_s < speed * 1.5


# Reads a picture's number from the canvas, where sixteen squares encode it (examples/camera/scene.py), so that the
# measurement covers what is actually shown.
_NUMBER = """(canvas) => {
    const scale = Math.min(canvas.width / 640, canvas.height / 360);
    const left = (canvas.width - 640 * scale) / 2 + (320 - 96) * scale;
    const top = (canvas.height - 360 * scale) / 2 + (360 - 16.5) * scale;
    const { data } = canvas.getContext("2d").getImageData(left, top, 192 * scale, 1);
    const isLight = (bit) => data[4 * Math.floor((12 * bit + 4.5) * scale)] > 138;
    return Array.from({ length: 16 }, (_, bit) => isLight(bit)).reduce((number, is) => number * 2 + is, 0);
}"""


def pace(page: Any, fps: int, *, root: str = "document", for_s: float = 3.0) -> Pace:
    """Watch the camera's pictures in the player in `root` until they end, or for this long."""
    frames = page.evaluate(
        f"""async () => {{
            const numberOf = {_NUMBER};
            const canvas = {root}.querySelector("canvas.fill");
            const player = {root}.querySelector(".player");
            const seen = [];
            const ends = performance.now() + {json.dumps(for_s * 1000)};
            while (performance.now() < ends && player.dataset.mode === "playing") {{
                await new Promise((done) => requestAnimationFrame(done));
                const number = numberOf(canvas);
                if (number !== seen.at(-1)?.[1]) seen.push([performance.now(), number]);
            }}
            return seen;
        }}"""
    )
    assert len(frames) > 2, "no pictures were drawn"
    numbers = [number for _, number in frames]
    assert numbers == sorted(numbers)
    seen_s = (frames[-1][0] - frames[0][0]) / 1000
    return Pace((numbers[-1] - numbers[0]) / fps, seen_s, (len(frames) - 1) / seen_s)
