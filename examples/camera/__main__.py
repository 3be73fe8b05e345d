"""A camera whose pictures are a stream: thirty JPEG pictures a second, recorded, bookmarked, and played like a video.

Each picture is an event. When a car comes into sight, the recorder bookmarks the stream's end; when it is gone, it
creates a slice of the events in between. At the end each slice is read and must have exactly the pictures of its car,
byte for byte. `--page 9091 --stay` continues recording until Ctrl-C, and serves the live page for watching.
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
_MOST_S = 300  # digests of that many seconds are kept for comparison
console = Console(highlight=False)


def main() -> int:
    arguments = parser("examples.camera", __doc__)
    arguments.add_argument("--seconds", type=float, default=20, help="to record (default: 20)")
    arguments.add_argument("--fps", type=int, default=30, help="pictures a second (default: 30)")
    arguments.add_argument("--stay", action="store_true", help="continue recording, and serve the page, until Ctrl-C")
    options = arguments.parse_args()
    return ended(lambda: run(options), console)


def run(options: argparse.Namespace) -> bool:
    if not 1 <= options.fps <= 60 or not 0 < options.seconds <= _MOST_S:
        raise ExampleError(f"--fps must be from 1 to 60, and --seconds at most {_MOST_S}")
    if options.stay and options.page is None:
        raise ExampleError("--stay needs the live page: add --page 9091")
    with place(options, "camera", console) as here:
        here.manager.create_stream(here.scope, STREAM)
        pictures = max(1, round(options.seconds * options.fps))
        with bars(console) as progress:
            numbers = progress.track(range(pictures), description=f"recording {here.scope}/{STREAM}")
            taken = record(here.manager, here.scope, STREAM, numbers, options.fps)
        is_right = check(here, taken, cars(pictures, options.fps))
        print_how_to_play(here, cars(pictures, options.fps), is_gone=options.controller is None and not options.stay)
        if options.stay:
            record(here.manager, here.scope, STREAM, itertools.count(pictures), options.fps)
        return is_right


def check(here: Place, taken: list[bytes], passed: list[Car]) -> bool:
    """Return whether the stream, and each car's slice, have the expected pictures."""
    is_right = [digest(event) for event in here.events(STREAM)] == taken
    for passing in passed:
        with here.manager.open_slice(here.scope, passing.name) as reader:
            found = [digest(event) for _, block in reader for event in block.events()]
        is_right = is_right and found == taken[passing.first : passing.end]
    result = "equal to those taken, byte for byte" if is_right else "[red]different from those taken[/red]"
    console.print(f"pictures: {len(taken)}, slices of cars: {len(passed)}; they are {result}")
    return is_right


def print_how_to_play(here: Place, passed: list[Car], *, is_gone: bool) -> None:
    name = passed[0].name if passed else STREAM
    view = f"#/play/{here.scope}/{STREAM}" + (f"?slice={name}" if passed else "")
    if is_gone:
        console.print(
            f"its server has ended; with --page 9091 --stay it continues, for watching at {view}", soft_wrap=True
        )
        return
    console.print(f"in a browser: {here.page or 'on the page of your server'}/{view}", soft_wrap=True)
    notebook = f'nadi.notebook.play(nadi.StreamManager("{here.controller}"), "{here.scope}", "{name}")'
    console.print(f"in a notebook: {notebook}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
