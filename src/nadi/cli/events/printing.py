"""A reader's events on standard output, to its end, or to a limit; where it has no end, until Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from threading import Thread, main_thread
from typing import TYPE_CHECKING

from nadi.cli.printing import warn
from nadi.errors import ClosedError, EpochGoneError, TruncatedError, UnavailableError

if TYPE_CHECKING:
    from nadi.cli.events.printer import Printer
    from nadi.client import SliceReader
    from nadi.model.event import EventBlock


def print_events(reader: SliceReader, printer: Printer, *, follow: bool, idle_s: float | None = None) -> None:
    """Print them, and close the reader. follow: wait for a server that is away, and pass what was truncated away.
    idle_s: end when nothing came for so long."""
    with reader:
        try:
            if follow:
                _end_with_the_pipe()
            for segment_id, block in _patiently(reader, idle_s) if follow else reader:
                sys.stdout.buffer.write(printer.lines(segment_id, block))
                sys.stdout.buffer.flush()
                if printer.is_done:
                    return
        except KeyboardInterrupt:
            if not follow:  # what is printed is not all
                raise


def _end_with_the_pipe() -> None:
    """End as at Ctrl-C when nobody reads the pipe any more, for what comes next may be long in coming."""
    try:
        fd = sys.stdout.fileno()
    except OSError:  # not a file
        return
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return

    def watch() -> None:
        pipe = select.poll()
        pipe.register(fd, 0)  # no event but that
        pipe.poll()
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    Thread(target=watch, daemon=True).start()


def _patiently(reader: SliceReader, idle_s: float | None) -> Iterator[tuple[int, EventBlock]]:
    came = time.monotonic()
    while True:
        left_s = None if idle_s is None else came + idle_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            return
        try:
            found = reader.next_block(left_s)
        except (ClosedError, EpochGoneError):
            raise
        except TruncatedError as error:
            warn(f"missed, and going on after it: {error}")
        except UnavailableError as error:
            if idle_s is None or time.monotonic() < came + idle_s:
                warn(f"trying again: {error}")
        else:
            if found is None:  # the stream is sealed
                return
            yield found
            came = time.monotonic()
