"""A camera whose pictures are a stream: thirty JPEG pictures a second, recorded, bookmarked, and played like a video.

Each picture is an event. When a car comes into sight, the recorder notes the stream's end as a bookmark; when it is gone,
it makes a slice of what lies in between. In the end each slice is read and must have the pictures of its car, byte for
byte, and no others. Play them on the live page: `--page 9091 --stay` serves it until Ctrl-C, and says where.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from datetime import datetime

from rich.console import Console

import nadi
from examples.camera.scene import Pass, passes, picture
from examples.running import ExampleError, Place, bars, ended, parser, place

STREAM = "camera"
console = Console(highlight=False)


def main() -> int:
    made = parser("examples.camera", __doc__)
    made.add_argument("--seconds", type=float, default=20, help="to record (default: 20)")
    made.add_argument("--fps", type=int, default=30, help="pictures a second (default: 30)")
    made.add_argument("--stay", action="store_true", help="go on recording, and serve the page, until Ctrl-C")
    options = made.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if options.seconds <= 0 or options.fps <= 0:
        raise ExampleError("a camera takes more than 0 pictures a second, for longer than 0 seconds")
    if options.stay and options.page is None:
        raise ExampleError("--stay is for the live page: say where with --page 9091")
    with place(options, "camera", console) as here:
        here.manager.create_stream(here.scope, STREAM)
        frames = max(1, round(options.seconds * options.fps))
        digests = record(here, frames, options.fps)
        is_right = check(here, digests, passes(frames, options.fps))
        where = f"#/play/{here.scope}/{STREAM}"
        first = next(iter(passes(frames, options.fps)), None)
        slices = f", the first car at {where}?slice={first.name}" if first is not None else ""
        console.print(f"on the live page it plays at {where}{slices}", soft_wrap=True)
        if options.stay:
            console.print(f"open http://127.0.0.1:{options.page}/{where} (Ctrl-C ends it)", soft_wrap=True)
            take(here, itertools.count(frames), options.fps)
        return is_right


def record(here: Place, frames: int, fps: int) -> list[bytes]:
    """Record so many pictures, with a bookmark and a slice for each car; return the pictures' digests."""
    with bars(console) as progress:
        task = progress.add_task(f"recording {here.scope}/{STREAM}", total=frames)
        return take(here, progress.track(range(frames), task_id=task), fps, passes(frames, fps))


def take(here: Place, numbers: object, fps: int, cars: list[Pass] | None = None) -> list[bytes]:
    """Take pictures at their times, and write each as an event."""
    manager, scope = here.manager, here.scope
    marks, slices = manager.bookmarks(scope), manager.slices(scope)
    writer = manager.create_writer(scope, STREAM)
    began, digests, starts = time.monotonic(), list[bytes](), dict[str, nadi.StreamCut]()
    begun_with = {car.first: car for car in cars or ()}
    ended_with = {car.end: car for car in cars or ()}
    assert hasattr(numbers, "__iter__")
    for taken, number in enumerate(numbers):
        time.sleep(max(0.0, began + taken / fps - time.monotonic()))
        if number in ended_with or number in begun_with:
            writer.flush()
            here_now = here.tail(STREAM)
            if (car := ended_with.get(number)) is not None:
                slices.create(car.name, starts[car.name], here_now, note="a car passes")
            if (car := begun_with.get(number)) is not None:
                starts[car.name] = here_now
                marks.create(f"{car.name}-comes", here_now, note="a car comes into sight")
        data = picture(number, fps, datetime.now().strftime("%H:%M:%S.%f")[:-3])
        digests.append(hashlib.sha256(data).digest())
        writer.write_event(data, routing_key="camera-1")
    writer.flush()
    return digests


def check(here: Place, digests: list[bytes], cars: list[Pass]) -> bool:
    """Whether the stream, and the slice of each car, have the pictures that they should."""

    def digests_of(events: list[bytes]) -> list[bytes]:
        return [hashlib.sha256(event).digest() for event in events]

    is_right = digests_of(here.events(STREAM)) == digests
    for car in cars:
        with here.manager.open_slice(here.scope, car.name) as reader:
            found = [event for _, block in reader for event in block.events()]
        is_right = is_right and digests_of(found) == digests[car.first : car.end]
    told = "as they were taken, picture by picture" if is_right else "[red]not as they were taken[/red]"
    console.print(f"{len(digests)} pictures and the slices of {len(cars)} cars are {told}")
    return is_right


if __name__ == "__main__":
    sys.exit(main())
