"""The recorder: writes each picture as an event, in real time, with a bookmark and a slice for each car."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime

import nadi
from examples.camera.scene import car, picture

KEPT = 20_000  # digests of the latest pictures
KEY = "camera-1"  # one key: its pictures keep their order, however the segments are scaled


def record(manager: nadi.StreamManager, scope: str, stream: str, numbers: Iterable[int], fps: int) -> list[bytes]:
    """Take pictures with these numbers at that rate; return the `digest` of each, the latest ones if there are many.

    The stream's end is bookmarked before a car's first picture, as `car-1-comes`. A slice, `car-1`, extends from there
    to the end of its last picture. Once a second the writer notes the pictures' time (docs/event-time.md).
    """
    bookmarks, slices = manager.bookmarks(scope), manager.slices(scope)
    taken = deque[bytes](maxlen=KEPT)
    next_car, begins = 1, None
    with manager.create_writer(scope, stream) as writer:
        began_s, first = time.monotonic(), None
        for number in numbers:
            first = number if first is None else first
            time.sleep(max(0.0, began_s + (number - first) / fps - time.monotonic()))
            while number >= car(next_car, fps).end:
                if begins is not None:
                    writer.flush()
                    tail = manager.cuts(scope, stream).tail()
                    slices.create(car(next_car, fps).name, begins, tail, note="a car passes", tags=["car"])
                next_car, begins = next_car + 1, None
            if number == car(next_car, fps).first:
                writer.flush()
                begins = manager.cuts(scope, stream).tail()
                bookmarks.create(f"{car(next_car, fps).name}-comes", begins, note="a car comes into sight")
            now = datetime.now()
            data = picture(number, fps, f"{now:%H:%M:%S}.{now.microsecond // 100_000}")
            writer.write_event(data, routing_key=KEY)
            taken.append(digest(data))
            if number % fps == 0:
                writer.note_time(round(now.timestamp() * 1000))
    return list(taken)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
