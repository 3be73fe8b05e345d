"""Scan: what lies between two cuts of a stream, for whatever reads Arrow; and splits of it, read by many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.arguments import checking, several_texts
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import check_boundary, check_cut
from nadi.client.reading.damage import RAISE, OnDamage, check_on_damage
from nadi.client.scan.connection import ScanClient, connection_of
from nadi.client.scan.pieces import ScanRange, chained, deal, evenly, pieces_of
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

_LEAST_BYTES = MIB  # of a split, unless it may have no more than fewer


class Scan(Readable):
    """What lies between two cuts of a stream: from `start` to `end`, which stay what they were when it was made.

    `pyarrow.table(scan)`, `polars.DataFrame(scan)`, `duckdb.sql("from scan")` and whatever else reads Arrow's C stream
    take it as it is; each time it is read anew.
    """

    def __init__(
        self, client: ScanClient, rows: ScanRows, start: StreamCut, end: StreamCut, pieces: Sequence[ScanRange]
    ) -> None:
        self.start, self.end = start, end
        self._client, self._rows, self._pieces = client, rows, tuple(pieces)

    @property
    def size_bytes(self) -> int:
        """Bytes in the stream, events' headers included."""
        return sum(piece.size_bytes for piece in self._pieces)

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(self._client, self._pieces)

    def splits(self, count: int, *, max_bytes: int | None = None, ordered: bool = False) -> list[Split]:
        """Return at most `count` parts of about the same size, which together have every row once.

        Segments are cut between two events. max_bytes: of one part, about: then there are as many as that takes, even
        if these are more than `count`. ordered: all of a key is in one part, in order. Few come back where there is
        little to read: a part has a MiB or more, unless max_bytes is smaller.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= SCAN_SPLITS:
            raise InvalidArgumentError(f"a scan has from 1 to {SCAN_SPLITS:,} splits, not {count!r}")
        least = _LEAST_BYTES
        if max_bytes is not None:
            if ordered:
                raise InvalidArgumentError("max_bytes has no effect with ordered: a key's events aren't divided")
            if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
                raise InvalidArgumentError(f"max_bytes is a number of bytes, 1 or more, not {max_bytes!r}")
            count = max(count, -(-self.size_bytes // max_bytes))
            if count > SCAN_SPLITS:
                raise InvalidArgumentError(
                    f"max_bytes={max_bytes:,} makes {count:,} splits, and {SCAN_SPLITS:,} is the most: give more"
                )
            least = min(least, max_bytes)
        manager, scope = self._client.manager, self._rows.scope
        if ordered:
            chains = self._client.run(chained(manager, scope, self._pieces))
            parts = deal(self._pieces, count, least, chains)
        else:
            count = min(count, max(1, -(-self.size_bytes // least)))
            with why_missing(self._client):
                parts = self._client.run(evenly(manager, scope, self._pieces, count))
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
    """Return what lies between two cuts of a stream, to be read as Arrow.

    start, end: a cut, a time with a zone, or text as `StreamCuts.named` takes it; the stream's head and tail if not
    given. slice: a named slice, instead of `stream`, `start` and `end`. routing_keys: only segments that can hold them.

    columns: of event, scope, stream, segment_id, offset, position_before, position (texts of the cuts around an event),
    append_time, event_time, and value. By default event, segment_id and offset; with `value_format` value instead of
    event. event_time_unit: of the times that the stream's writers note, s, ms, us or ns; or none, for the numbers.

    value_format: json, msgpack, avro, protobuf or arrow: events become values of the stream's newest schema, or of
    `value_version`; or of `value_schema`, fields in Spark's DDL such as "meter string, wh double" (json and msgpack).
    value_mode: what becomes of an event that isn't such a value: PERMISSIVE makes it null, DROPMALFORMED leaves it out,
    FAILFAST raises SerializationError. unnest: the fields of `value` are columns of their own.

    on_damage: "raise" raises DamagedDataError at damaged data, "skip" logs it and continues after it.

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
        raise InvalidArgumentError("unnest has no effect without the column 'value', which needs value_format")
    keys = several_texts(routing_keys, "routing_keys") if routing_keys is not None else None
    if slice is not None:
        if stream is not None or start is not None or end is not None:
            raise InvalidArgumentError("stream, start and end have no effect with slice, which has its own")
        found = slice if isinstance(slice, NamedSlice) else client.run(core.slices(scope).get(slice))
        check_cut(found.start, scope, found.stream)
        stream, start, end = found.stream, found.start, found.end
    elif stream is None:
        raise InvalidArgumentError("say which stream to scan, or give slice=")
    of_stream = stream

    async def planned() -> Scan:
        first, last = await _cut(core, scope, of_stream, start, HEAD), await _cut(core, scope, of_stream, end, TAIL)
        target = None
        if value is not None:
            from nadi.client.values.target import target_of

            target = await target_of(core, value, scope, [of_stream], lambda _: True)
            assert target is not None, "whichever is found is wanted"
        rows = ScanRows(scope, names, event_time_unit, target, on_damage, unnest)
        if unnest:
            unnested_schema(arrow_schema(rows))  # InvalidArgumentError for fields that can't be columns
        slices = await places.slices_between(core.cuts(scope, of_stream), first, last)
        if keys is not None and slices:
            slices = await places.narrowed(core.cuts(scope, of_stream), slices, keys)
        pieces = await with_positions(core, rows, pieces_of(of_stream, slices))
        return Scan(client, rows, first, last, pieces)

    return client.run(planned())


async def _cut(manager: Any, scope: str, stream: str, place: Place | None, default: str) -> StreamCut:
    cuts = manager.cuts(scope, stream)
    if isinstance(place, StreamCut):
        check_cut(place, scope, stream)
        await check_boundary(stores_of(manager), place)
        return place
    if isinstance(place, datetime):
        found: StreamCut = await cuts.at(place)
    else:
        found = await cuts.named(default if place is None else place, end=default == TAIL)
    return found


def _columns(given: Sequence[str] | None, *, has_value: bool) -> tuple[str, ...]:
    if given is None:
        return (VALUE if has_value else "event", "segment_id", "offset")
    names = several_texts(given, "columns")
    for name in names:
        if name not in TYPES and name != VALUE:
            raise InvalidArgumentError(f"there is no column {name[:40]!r}: there are {', '.join(TYPES)}, {VALUE}")
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError("columns names one twice" if names else "columns names none: give one at least")
    if has_value != (VALUE in names):
        raise InvalidArgumentError(
            "value_format has no effect where columns leaves out 'value'"
            if has_value
            else "columns names 'value', which needs value_format"
        )
    return tuple(names)


def _check_unit(unit: str, columns: tuple[str, ...]) -> None:
    if unit not in (*PER_SECOND, NO_UNIT):
        raise InvalidArgumentError(f"event_time_unit is {unit!r}: it must be {', '.join(PER_SECOND)} or {NO_UNIT}")
    if unit != USUAL_UNIT and EVENT_TIME not in columns:
        raise InvalidArgumentError(f"event_time_unit has no effect where columns leaves out {EVENT_TIME!r}")


def of_pieces(planned: Scan, pieces: Sequence[ScanRange]) -> Scan:
    """The same columns of other pieces of the stream, for those that know by themselves what lies between two cuts."""
    return Scan(planned._client, planned._rows, planned.start, planned.end, pieces)
