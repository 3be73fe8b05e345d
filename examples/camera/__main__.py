"""A camera whose pictures are a stream: thirty JPEG pictures a second, recorded, bookmarked, and played like a video.

Each picture is an event. When a car comes into sight, the recorder bookmarks the stream's end; when it is gone, it
makes a slice of what lies in between. In the end each slice is read and must have the pictures of its car, byte for
byte, and no others. `--page 9091 --stay` goes on recording until Ctrl-C, and serves the live page on which to watch it.
"""

from __future__ import annotations

import argparse
import itertools
import sys

from rich.console import Console

from examples.camera.recorder import digest, record
from examples.camera.scene import Car, cars
from examples.running import ExampleError, Place, bars, ended, parser, place

STREAM = "camera"
_MOST_S = 300  # so many digests are held to be compared
console = Console(highlight=False)


def main() -> int:
    made = parser("examples.camera", __doc__)
    made.add_argument("--seconds", type=float, default=20, help="to record (default: 20)")
    made.add_argument("--fps", type=int, default=30, help="pictures a second (default: 30)")
    made.add_argument("--stay", action="store_true", help="go on recording, and serve the page, until Ctrl-C")
    options = made.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if not 1 <= options.fps <= 60 or not 0 < options.seconds <= _MOST_S:
        raise ExampleError(f"the camera takes 1 to 60 pictures a second, for up to {_MOST_S} seconds")
    if options.stay and options.page is None:
        raise ExampleError("--stay is for the live page: say where with --page 9091")
    with place(options, "camera", console) as here:
        here.manager.create_stream(here.scope, STREAM)
        pictures = max(1, round(options.seconds * options.fps))
        with bars(console) as progress:
            numbers = progress.track(range(pictures), description=f"recording {here.scope}/{STREAM}")
            taken = record(here.manager, here.scope, STREAM, numbers, options.fps)
        is_right = check(here, taken, cars(pictures, options.fps))
        say_how_to_play(here, cars(pictures, options.fps), is_gone=options.controller is None and not options.stay)
        if options.stay:
            record(here.manager, here.scope, STREAM, itertools.count(pictures), options.fps)
        return is_right


def check(here: Place, taken: list[bytes], passed: list[Car]) -> bool:
    """Whether the stream, and the slice of each car, have the pictures that they should."""
    is_right = [digest(event) for event in here.events(STREAM)] == taken
    for one in passed:
        with here.manager.open_slice(here.scope, one.name) as reader:
            found = [digest(event) for _, block in reader for event in block.events()]
        is_right = is_right and found == taken[one.first : one.end]
    told = "as they were taken, byte for byte" if is_right else "[red]not as they were taken[/red]"
    console.print(f"pictures: {len(taken)}, slices of cars: {len(passed)}; they are {told}")
    return is_right


def say_how_to_play(here: Place, passed: list[Car], *, is_gone: bool) -> None:
    name = passed[0].name if passed else STREAM
    view = f"#/play/{here.scope}/{STREAM}" + (f"?slice={name}" if passed else "")
    if is_gone:
        console.print(
            f"its server ends with it; with --page 9091 --stay it goes on, to be watched at {view}", soft_wrap=True
        )
        return
    console.print(f"in a browser: {here.page or 'on the page of your server'}/{view}", soft_wrap=True)
    notebook = f'nadi.notebook.play(nadi.StreamManager("{here.controller}"), "{here.scope}", "{name}")'
    console.print(f"in a notebook: {notebook}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
