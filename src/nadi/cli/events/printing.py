"""A reader's events on standard output, to its end, or to a limit; where it has no end, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nadi.cli.printing import warn
from nadi.errors import ClosedError, EpochGoneError, TruncatedError, UnavailableError

if TYPE_CHECKING:
    from nadi.cli.events.printer import Printer
    from nadi.client import SliceReader
    from nadi.model.event import EventBlock


def print_events(reader: SliceReader, printer: Printer, *, follow: bool) -> None:
    """Print them, and close the reader. follow: wait for a server that is away, and pass what was truncated away."""
    with reader:
        try:
            for segment_id, block in _patiently(reader) if follow else reader:
                sys.stdout.buffer.write(printer.lines(segment_id, block))
                sys.stdout.buffer.flush()
                if printer.is_done:
                    return
        except KeyboardInterrupt:
            if not follow:  # what is printed is not all
                raise


def _patiently(reader: SliceReader) -> Iterator[tuple[int, EventBlock]]:
    while True:
        try:
            found = reader.next_block()
        except (ClosedError, EpochGoneError):
            raise
        except TruncatedError as error:
            warn(f"missed, and going on after it: {error}")
        except UnavailableError as error:
            warn(f"trying again: {error}")
        else:
            if found is None:  # the stream is sealed
                return
            yield found
