r"""Prints events as lines, as JSON objects or in a custom layout, optionally only those that match a pattern.

Fields of a layout are `%s` event, `%k` key, `%o` offset, `%S` segment, `%t` time of arrival, and `%%`. Keys aren't
stored: a key is known only if a field of JSON events contains it. `\n`, `\t`, `\0` and `\x1e` are escapes.

>>> unescaped(r"\x1e"), unescaped("|")
(b'\x1e', b'|')
"""

from __future__ import annotations

import base64
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from threading import Thread, main_thread
from typing import TYPE_CHECKING, TypeAlias

from nadi.cli.options import KeyField, Limit
from nadi.cli.printing import warn
from nadi.cli.session import choose_one, option
from nadi.errors import ClosedError, EpochExpiredError, InvalidArgumentError, TruncatedError, UnavailableError

if TYPE_CHECKING:
    from nadi.client import Event, SliceReader
    from nadi.model.event import EventBlock

FIELDS = "%s event, %k key, %o offset, %S segment, %t time of arrival"
PRINTING = {  # the options of `nadi read` and `nadi tail`
    "limit": Limit,
    "idle": option(float, "Stop after this many seconds without an event.", min=0.1, metavar="SECONDS"),
    "layout": option(str, rf"Layout of each event; a newline isn't added: {FIELDS}, %%, \n, \t.", "--format"),
    "as_objects": option(bool, "Print one JSON object per line: segment, offset, and text or base64.", "--json"),
    "key_field": KeyField,
    "grep": option(str, "Print only events that match this regular expression.", metavar="REGEX"),
}

CameBy: TypeAlias = Callable[[int, Sequence[int]], Sequence[int | None]]
_Column: TypeAlias = Callable[[int, list["Event"]], list[bytes]]
_FIELD = re.compile(rb"%(.|$)", re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_MEANINGS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


class Printer:
    """Formats blocks of events as lines. arrival_times: returns arrival times of a segment's events by offset."""

    def __init__(
        self,
        arrival_times: CameBy,
        *,
        layout: str | None = None,
        as_objects: bool | None = None,
        key_field: str | None = None,
        grep: str | None = None,
        limit: int | None = None,
    ) -> None:
        choose_one(format=layout is not None, is_json=as_objects)
        from nadi.model.field_path import KEY_FIELD, parse_path

        self._key_path = None if key_field is None else parse_path(key_field, KEY_FIELD)
        self._came_by = arrival_times
        try:
            self._pattern = re.compile(grep.encode()) if grep is not None else None
        except re.error as error:
            raise InvalidArgumentError(f"--grep {grep!r} is not a regular expression: {error}") from None
        self._columns = self._columns_of(layout) if layout is not None else None
        if key_field is not None and not as_objects and (layout is None or b"%k" not in unescaped(layout)):
            raise InvalidArgumentError("--key-field can't be used without %k in --format, or --json")
        self._as_objects = as_objects
        self._remaining = limit

    @property
    def is_done(self) -> bool:
        """Whether the limit has been reached."""
        return self._remaining == 0

    def lines(self, segment_id: int, block: EventBlock) -> bytes:
        """Format the block's events."""
        pattern = self._pattern
        if pattern is None and self._columns is None and not self._as_objects:
            plain = block.events()[: self._remaining]
            self._count(len(plain))
            return b"".join([event + b"\n" for event in plain])
        from nadi.client.reading.reader import events_of

        matching = (event for event in events_of(segment_id, block) if pattern is None or pattern.search(event.data))
        events = list(islice(matching, self._remaining))
        self._count(len(events))
        if self._columns is not None:
            columns = [column(segment_id, events) for column in self._columns]
            return b"".join([part for row in zip(*columns, strict=True) for part in row])
        if self._as_objects:
            return b"".join([self._object(event) for event in events])
        return b"".join([event.data + b"\n" for event in events])

    # --- internals --------------------------------------------------------------------------

    def _count(self, printed: int) -> None:
        if self._remaining is not None:
            self._remaining -= printed

    def _object(self, event: Event) -> bytes:
        import msgspec

        row: dict[str, int | str] = {"segment_id": event.segment_id, "offset": event.offset}
        if self._key_path is not None:
            key = self._key(event)
            if key is not None:
                row["key"] = key
        try:
            row["text"] = event.data.decode()
        except UnicodeDecodeError:
            row["base64"] = base64.b64encode(event.data).decode()
        return msgspec.json.encode(row) + b"\n"

    def _key(self, event: Event) -> str | None:
        from nadi.model.json_events import known_key_in

        assert self._key_path is not None, "only called with a key path"
        return known_key_in(event.data, self._key_path)

    def _columns_of(self, layout: str) -> list[_Column]:
        columns: list[_Column] = []
        end = 0
        text = unescaped(layout)
        for field in _FIELD.finditer(text):
            columns += [_always(text[end : field.start()]), self._column(layout, field[1])]
            end = field.end()
        return [*columns, _always(text[end:])]

    def _column(self, layout: str, field: bytes) -> _Column:
        from nadi.charts import name_of

        if field == b"k" and self._key_path is None:
            raise InvalidArgumentError("%k needs --key-field, as keys aren't stored: name the field that contains them")
        columns: dict[bytes, _Column] = {
            b"%": _always(b"%"),
            b"s": lambda _, events: [event.data for event in events],
            b"o": lambda _, events: [b"%d" % event.offset for event in events],
            b"S": lambda segment_id, events: [name_of(segment_id).encode()] * len(events),
            b"t": lambda segment_id, events: list(
                map(_time, self._came_by(segment_id, [event.offset for event in events]))
            ),
            b"k": lambda _, events: [(self._key(event) or "").encode() for event in events],
        }
        if field not in columns:
            name = field.decode(errors="replace")
            raise InvalidArgumentError(f"unknown field %{name} in {layout!r}: the fields are {FIELDS}, %%")
        return columns[field]


def _always(text: bytes) -> _Column:
    return lambda _, events: [text] * len(events)


def _time(moment_ms: int | None) -> bytes:
    if moment_ms is None:
        return b"-"
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].encode() + b"Z"


def unescaped(text: str) -> bytes:
    """Replace escapes in a text; InvalidArgumentError for unknown escapes."""

    def meaning(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape in _MEANINGS:
            return _MEANINGS[escape]
        if len(escape) == 3:
            return bytes.fromhex(escape[1:].decode())
        known = r"\n, \t, \r, \0, \\ and \xHH"
        raise InvalidArgumentError(f"unknown escape \\{escape.decode()} in {text!r}: the escapes are {known}")

    return _ESCAPE.sub(meaning, text.encode())


def print_events(reader: SliceReader, printer: Printer, *, follow: bool, idle_s: float | None = None) -> None:
    """Print a reader's events up to its end or the printer's limit, and close it.

    follow: continue until Ctrl-C, wait while the server is unavailable, and skip truncated events. idle_s: stop after
    this time without an event.
    """
    with reader:
        try:
            if follow:
                _end_with_pipe()
            for segment_id, block in _patiently(reader, idle_s) if follow else reader:
                sys.stdout.buffer.write(printer.lines(segment_id, block))
                sys.stdout.buffer.flush()
                if printer.is_done:
                    return
        except KeyboardInterrupt:
            if not follow:  # the output is incomplete
                raise


def _end_with_pipe() -> None:
    """End as on Ctrl-C when the reader of the pipe closes it, even if no further event arrives."""
    try:
        fd = sys.stdout.fileno()
    except OSError:  # not a file
        return
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return

    def watch() -> None:
        pipe = select.poll()
        pipe.register(fd, 0)  # reports only errors and hang-ups
        pipe.poll()
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    Thread(target=watch, daemon=True).start()


def _patiently(reader: SliceReader, idle_s: float | None) -> Iterator[tuple[int, EventBlock]]:
    last_event = time.monotonic()
    while True:
        remaining_s = None if idle_s is None else last_event + idle_s - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return
        try:
            block = reader.next_block(remaining_s)
        except (ClosedError, EpochExpiredError):
            raise
        except TruncatedError as error:
            warn(f"skipped events: {error}")
        except UnavailableError as error:
            if idle_s is None or time.monotonic() < last_event + idle_s:
                warn(f"retrying: {error}")
        else:
            if block is None:  # the stream is sealed
                return
            yield block
            last_event = time.monotonic()
