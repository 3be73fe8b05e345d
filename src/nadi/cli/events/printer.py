r"""Events as lines: plain, as JSON objects, or in a layout that the user gives, and only those that a pattern matches.

Places in a layout are `%s` the event, `%k` its key, `%o` its offset, `%S` its segment, `%t` when it came, and `%%`.
Keys aren't stored: a key is known where the events are JSON and have it in a field.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from nadi.cli.events.escapes import unescaped
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import Event
    from nadi.model.event import EventBlock

PLACES = "%s event, %k key, %o offset, %S segment, %t time of arrival"
Layout = Annotated[
    str | None,
    typer.Option("--format", help=rf"Print each event so, without a newline of its own: {PLACES}, %%, \n, \t."),
]
AsObjects = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line: segment, offset, and text or base64.")
]
KeyField = Annotated[
    str | None,
    typer.Option("--key-field", help="Field of JSON events that has the key, for %k and --json.", metavar="NAME"),
]
Grep = Annotated[
    str | None, typer.Option(help="Only events in which this regular expression is found.", metavar="REGEX")
]
Limit = Annotated[int | None, typer.Option("--limit", "-c", help="Stop after printing this many events.", min=1)]
Idle = Annotated[
    float | None, typer.Option(help="Stop when nothing came for so many seconds.", min=0.1, metavar="SECONDS")
]

CameBy: TypeAlias = Callable[[int, Sequence[int]], Sequence[int | None]]
_Column: TypeAlias = Callable[[int, list["Event"]], list[bytes]]
_PLACE = re.compile(rb"%(.|$)", re.DOTALL)


class Printer:
    """Makes lines of blocks. came_by: tells when events of a segment came, by their offsets."""

    def __init__(
        self,
        *,
        layout: str | None,
        as_objects: bool,
        key_field: str | None,
        grep: str | None,
        limit: int | None,
        came_by: CameBy,
    ) -> None:
        if layout is not None and as_objects:
            raise InvalidArgumentError("--format and --json exclude each other: choose one")
        from nadi.model.field_path import KEY_FIELD, parse_path

        self._key_path = None if key_field is None else parse_path(key_field, KEY_FIELD)
        self._came_by = came_by
        self._pattern = _compiled(grep) if grep is not None else None
        self._columns = self._columns_of(layout) if layout is not None else None
        if key_field is not None and not as_objects and (layout is None or b"%k" not in unescaped(layout)):
            raise InvalidArgumentError("--key-field has no effect without %k in --format, or --json")
        self._as_objects = as_objects
        self._left = limit

    @property
    def is_done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def lines(self, segment_id: int, block: EventBlock) -> bytes:
        """What is to be printed of a block."""
        if self._pattern is None and self._columns is None and not self._as_objects:
            plain = block.events()[: self._left]
            self._count(len(plain))
            return b"".join([event + b"\n" for event in plain])
        events = list(self._wanted(segment_id, block))
        self._count(len(events))
        if self._columns is not None:
            columns = [column(segment_id, events) for column in self._columns]
            return b"".join([part for row in zip(*columns, strict=True) for part in row])
        if self._as_objects:
            return b"".join([self._object(event) for event in events])
        return b"".join([event.data + b"\n" for event in events])

    # --- inside -----------------------------------------------------------------------------

    def _count(self, printed: int) -> None:
        if self._left is not None:
            self._left -= printed

    def _wanted(self, segment_id: int, block: EventBlock) -> Iterator[Event]:
        from itertools import islice

        from nadi.client.reading.reader import events_of

        pattern = self._pattern
        found = events_of(segment_id, block)
        return islice((event for event in found if pattern is None or pattern.search(event.data)), self._left)

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

        assert self._key_path is not None, "asked for only with one"
        return known_key_in(event.data, self._key_path)

    def _columns_of(self, layout: str) -> list[_Column]:
        columns: list[_Column] = []
        end = 0
        text = unescaped(layout)
        for place in _PLACE.finditer(text):
            columns += [_always(text[end : place.start()]), self._column(layout, place[1])]
            end = place.end()
        return [*columns, _always(text[end:])]

    def _column(self, layout: str, place: bytes) -> _Column:
        if place == b"%":
            return _always(b"%")
        if place == b"s":
            return lambda _, events: [event.data for event in events]
        if place == b"o":
            return lambda _, events: [b"%d" % event.offset for event in events]
        if place == b"S":
            return lambda segment_id, events: [_name_of(segment_id)] * len(events)
        if place == b"t":
            return lambda segment_id, events: [
                _time(moment) for moment in self._came_by(segment_id, [event.offset for event in events])
            ]
        if place == b"k":
            if self._key_path is None:
                raise InvalidArgumentError("%k needs --key-field, for keys aren't stored: name the field that has them")
            return lambda _, events: [(self._key(event) or "").encode() for event in events]
        raise InvalidArgumentError(
            f"{layout!r} has no such place as %{place.decode(errors='replace')}: there are {PLACES}, %%"
        )


def _always(text: bytes) -> _Column:
    return lambda _, events: [text] * len(events)


def _compiled(grep: str) -> re.Pattern[bytes]:
    try:
        return re.compile(grep.encode())
    except re.error as error:
        raise InvalidArgumentError(f"--grep {grep!r} is not a regular expression: {error}") from None


def _name_of(segment_id: int) -> bytes:
    from nadi.charts import name_of

    return name_of(segment_id).encode()


def _time(moment_ms: int | None) -> bytes:
    if moment_ms is None:
        return b"-"
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].encode() + b"Z"
