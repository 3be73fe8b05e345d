"""Scan: the events between two cuts of a stream for any library that reads Arrow, or in splits for many readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.arguments import check_strings, checking
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import check_boundary, check_cut
from nadi.client.reading.damage import RAISE, OnDamage, check_on_damage
from nadi.client.scan.connection import ScanClient, connection_of
from nadi.client.scan.pieces import ScanRange, chained, deal, pieces_of, split_evenly
from nadi.client.scan.positions import with_positions
from nadi.client.scan.rows import TYPES, Readable, ScanRows, arrow_schema, unnested_schema, why_missing
from nadi.client.scan.split import Split
from nadi.client.stream_cuts import cuts as places
from nadi.client.stream_cuts.slices import NamedSlice
from nadi.client.stream_cuts.timestamps import HEAD, TAIL
from nadi.client.values.options import value_options
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB, SCAN_SPLITS
from nadi.model.streamcut import StreamCut
from nadi.naming import EVENT_TIME, NO_UNIT, PER_SECOND, USUAL_UNIT, VALUE

_LEAST_BYTES = MIB  # of a split, unless max_bytes is smaller


class Scan(Readable):
    """The events between two cuts of a stream, `start` and `end`, which are fixed when the scan is created.

    `pyarrow.table(scan)`, `polars.DataFrame(scan)`, `duckdb.sql("from scan")` and any other reader of Arrow's C stream
    accept it; each use reads the events again.
    """

    def __init__(
        self, client: ScanClient, rows: ScanRows, start: StreamCut, end: StreamCut, pieces: Sequence[ScanRange]
    ) -> None:
        self.start, self.end = start, end
        self._client, self._rows, self._pieces = client, rows, tuple(pieces)

    @property
    def size_bytes(self) -> int:
        """The size in the stream in bytes, including event headers."""
        return sum(piece.size_bytes for piece in self._pieces)

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(self._client, self._pieces)

    def splits(self, count: int, *, max_bytes: int | None = None, ordered: bool = False) -> list[Split]:
        """Return at most `count` parts of about the same size, which together contain every row once.

        Segments are divided between events. max_bytes: the approximate maximum size of a part; it may increase the
        number of parts above `count`. ordered: all events of a key are in one part, in order. Parts have at least 1
        MiB, unless max_bytes is smaller, so a small scan has fewer parts.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= SCAN_SPLITS:
            raise InvalidArgumentError(f"count is {count!r}: it must be from 1 to {SCAN_SPLITS:,}")
        least = _LEAST_BYTES
        if max_bytes is not None:
            if ordered:
                raise InvalidArgumentError(
                    "max_bytes can't be combined with ordered, which doesn't divide a key's events"
                )
            if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
                raise InvalidArgumentError(f"max_bytes is {max_bytes!r}: it must be a positive number of bytes")
            count = max(count, -(-self.size_bytes // max_bytes))
            if count > SCAN_SPLITS:
                raise InvalidArgumentError(
                    f"max_bytes={max_bytes:,} makes {count:,} splits, more than the limit of {SCAN_SPLITS:,}: increase "
                    "it"
                )
            least = min(least, max_bytes)
        manager, scope = self._client.manager, self._rows.scope
        if ordered:
            chains = self._client.run(chained(manager, scope, self._pieces))
            parts = deal(self._pieces, count, least, chains)
        else:
            count = min(count, max(1, -(-self.size_bytes // least)))
            with why_missing(self._client):
                parts = self._client.run(split_evenly(manager, scope, self._pieces, count))
        connection = connection_of(manager)
        return [Split(connection, self._rows, part) for part in parts]


Place = StreamCut | datetime | str


@checking
def scan(
    manager: StreamManager,
    scope: str,
    stream: str | None = None,
    *,
    start: Place | None = None,
    end: Place | None = None,
    slice: str | NamedSlice | None = None,
    routing_keys: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    event_time_unit: str = USUAL_UNIT,
    value_format: str | None = None,
    value_schema: str | None = None,
    value_version: int | None = None,
    value_mode: str | None = None,
    unnest: bool = False,
    on_damage: OnDamage = RAISE,
) -> Scan:
    """Return a scan of the events between two cuts of a stream, for reading as Arrow.

    start, end: a cut, a time with a zone, or text as for `StreamCuts.named`; by default the stream's head and tail.
    slice: a named slice, instead of `stream`, `start` and `end`. routing_keys: only the segments that may contain them.

    columns: of event, scope, stream, segment_id, offset, position_before, position (texts of the cuts around an event),
    append_time, event_time, and value. By default event, segment_id and offset; with `value_format`, value instead of
    event. event_time_unit: of the times that writers note, s, ms, us or ns; or none, for plain numbers.

    value_format: json, msgpack, avro, protobuf or arrow: decode events with the stream's newest schema, or version
    `value_version` of it; or with `value_schema`, fields in Spark's DDL such as "meter string, wh double" (json and
    msgpack). value_mode: treatment of events that can't be decoded: PERMISSIVE makes the value null, DROPMALFORMED
    omits the event, FAILFAST raises SerializationError. unnest: make the fields of `value` columns.

    on_damage: "raise" raises DamagedDataError for damaged data, "skip" logs it and continues.

    >>> import nadi, pyarrow as pa
    >>> def total_wh(manager):
    ...     meters = nadi.scan(manager, "home", "meters", value_format="json", value_schema="wh long", unnest=True)
    ...     return pa.table(meters)["wh"].to_pylist()
    """
    thread, core = inside(manager)
    client = ScanClient(thread, core)
    check_on_damage(on_damage)
    value = value_options(value_format, value_schema, value_version, value_mode)
    names = _columns(columns, has_value=value is not None)
    _check_unit(event_time_unit, names)
    if unnest and VALUE not in names:
        raise InvalidArgumentError("unnest needs the column 'value': set value_format")
    keys = check_strings(routing_keys, "routing_keys") if routing_keys is not None else None
    if slice is not None:
        if stream is not None or start is not None or end is not None:
            raise InvalidArgumentError("slice can't be combined with stream, start or end")
        named = slice if isinstance(slice, NamedSlice) else client.run(core.slices(scope).get(slice))
        check_cut(named.start, scope, named.stream)
        stream, start, end = named.stream, named.start, named.end
    elif stream is None:
        raise InvalidArgumentError("no stream to scan: give stream or slice")
    stream_name = stream

    async def planned() -> Scan:
        first, last = await _cut(core, scope, stream_name, start, HEAD), await _cut(core, scope, stream_name, end, TAIL)
        target = None
        if value is not None:
            from nadi.client.values.target import target_of

            target = await target_of(core, value, scope, [stream_name], lambda _: True)
            assert target is not None, "every schema is accepted"
        rows = ScanRows(scope, names, event_time_unit, target, on_damage, unnest)
        if unnest:
            unnested_schema(arrow_schema(rows))  # raises InvalidArgumentError if a field can't be a column
        slices = await places.slices_between(core.cuts(scope, stream_name), first, last)
        if keys is not None and slices:
            slices = await places.slices_with_keys(core.cuts(scope, stream_name), slices, keys)
        pieces = await with_positions(core, rows, pieces_of(stream_name, slices))
        return Scan(client, rows, first, last, pieces)

    return client.run(planned())


async def _cut(manager: Any, scope: str, stream: str, place: Place | None, default: str) -> StreamCut:
    cuts = manager.cuts(scope, stream)
    if isinstance(place, StreamCut):
        check_cut(place, scope, stream)
        await check_boundary(stores_of(manager), place)
        return place
    if isinstance(place, datetime):
        cut: StreamCut = await cuts.at(place)
    else:
        cut = await cuts.named(default if place is None else place, end=default == TAIL)
    return cut


def _columns(given: Sequence[str] | None, *, has_value: bool) -> tuple[str, ...]:
    if given is None:
        return (VALUE if has_value else "event", "segment_id", "offset")
    names = check_strings(given, "columns")
    for name in names:
        if name not in TYPES and name != VALUE:
            raise InvalidArgumentError(f"{name[:40]!r} is not a column: use {', '.join(TYPES)} or {VALUE}")
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError(
            "columns has duplicates: list each once" if names else "columns is empty: list at least one"
        )
    if has_value != (VALUE in names):
        raise InvalidArgumentError(
            "value_format needs the column 'value': add it to columns"
            if has_value
            else "the column 'value' needs value_format"
        )
    return tuple(names)


def _check_unit(unit: str, columns: tuple[str, ...]) -> None:
    if unit not in (*PER_SECOND, NO_UNIT):
        raise InvalidArgumentError(f"event_time_unit is {unit!r}: it must be {', '.join(PER_SECOND)} or {NO_UNIT}")
    if unit != USUAL_UNIT and EVENT_TIME not in columns:
        raise InvalidArgumentError(f"event_time_unit needs the column {EVENT_TIME!r}: add it to columns")


def with_ranges(planned: Scan, pieces: Sequence[ScanRange]) -> Scan:
    """Return a scan of the same columns over other ranges of the stream, for callers that plan the ranges
    themselves."""
    return Scan(planned._client, planned._rows, planned.start, planned.end, pieces)
