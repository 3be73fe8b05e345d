"""Pictures for a stream, somebody who writes while a browser looks on, and how fast a player shows what it plays."""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
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


Figures = Callable[[str, object], None]  # pytest's record_property: `--junitxml FILE -o junit_family=xunit1` has them


@dataclass(frozen=True, slots=True)
class Pace:
    """speed: seconds of the pictures' own clock in one of the wall's. frames_per_s: different pictures drawn."""

    speed: float
    frames_per_s: float
    seen_s: float


# The hand of the clock in the camera's pictures goes round once in eight seconds (examples/camera/scene.py): it is
# read off the canvas, so what is measured is what one sees.
_HAND = """(canvas) => {
    const scale = Math.min(canvas.width / 640, canvas.height / 360);
    const at = (x, y) => [(canvas.width - 640 * scale) / 2 + x * scale, (canvas.height - 360 * scale) / 2 + y * scale];
    const [x, y] = at(596, 44);
    const radius = Math.floor(22 * scale);
    if (radius < 5) return null;
    const { data } = canvas.getContext("2d").getImageData(x - radius, y - radius, 2 * radius, 2 * radius);
    let [right, down, count] = [0, 0, 0];
    for (let i = 0; i < data.length; i += 4) {
        if (data[i] < 150 || data[i + 1] > 130 || data[i + 2] > 130) continue;
        right += ((i / 4) % (2 * radius)) - radius;
        down += Math.floor(i / 4 / (2 * radius)) - radius;
        count += 1;
    }
    return count > 5 ? Math.atan2(right, -down) / (2 * Math.PI) : null;
}"""


def pace(page: Any, *, root: str = "document", for_s: float = 3.0) -> Pace:
    """Watch the camera's pictures in the player in `root` until they end, or for so long."""
    found = page.evaluate(
        f"""async () => {{
            const hand = {_HAND};
            const canvas = {root}.querySelector("canvas.fill");
            const player = {root}.querySelector(".player");
            const seen = [];
            let last = null;
            const ends = performance.now() + {json.dumps(for_s * 1000)};
            while (performance.now() < ends && player.dataset.mode === "playing") {{
                await new Promise((done) => requestAnimationFrame(done));
                const turned = hand(canvas);
                if (turned !== null && turned !== last) seen.push([performance.now(), (last = turned)]);
            }}
            return seen;
        }}"""
    )
    assert len(found) > 5, "no picture with a clock was drawn"
    turns = sum((after - before) % 1 for (_, before), (_, after) in pairwise(found))
    seen_s = (found[-1][0] - found[0][0]) / 1000
    return Pace(8 * turns / seen_s, (len(found) - 1) / seen_s, seen_s)
