"""Parse events to values and back in tasks: a batch of events at once, each with the schema it names.

Decoders are cached in the process by the contents of their schemas, so they never go stale; each task looks up the
schema of an id again. A column that can't be written is an error when the write is planned; a value that can't be
written fails its task.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.codec import HEADER_BYTES, MAGIC
from nadi.client.serializers.columns import MISFITS, Decoded, check_taken, reason
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.serializers.types import is_json
from nadi.client.values.options import DROP, FAIL, PERMISSIVE, ReadTarget
from nadi.client.values.target import format_of, stored_name
from nadi.errors import InvalidArgumentError, SerializationError, UnknownSchemaError
from nadi.limits import SCHEMA_CACHE_DECODERS
from nadi.throttled_log import SeldomWarning

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Decode = Callable[[Sequence[bytes]], Decoded]
T = TypeVar("T")
log = logging.getLogger(__name__)
_warn = SeldomWarning(log, "batches with events that can't be read: %d; the last: %s, can't be read as %s: %s")
_NONE = -1  # of events without a schema id
_decoders: dict[tuple[object, ...], Decode | str] = {}  # or why the schema is unreadable


class Parse(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class ValueParser:
    """Parses the events of one stream's segments, within one task. stream: its name with its scope."""

    def __init__(self, schemas: SchemaGroup, run: Parse, stream: str, target: ReadTarget) -> None:
        self._schemas, self._run, self._stream, self._target = schemas, run, stream, target
        self._known: dict[int, Decode | str] = {}

    def parse(self, events: pa.Array, segment_id: int, offsets: Numbers) -> Decoded:
        """Return the values of a segment's events; with DROPMALFORMED, of the readable ones only. SerializationError
        for an unreadable event with FAILFAST."""
        ids = schema_ids(events)
        distinct = np.unique(ids).tolist()
        parts: list[tuple[Numbers | None, Decoded]] = []
        for number in distinct:
            rows_of_schema = None if len(distinct) == 1 else np.flatnonzero(ids == number)
            selected = events if rows_of_schema is None else events.take(pa.array(rows_of_schema))
            parts.append((rows_of_schema, self._decoded(number, selected)))
        decoded = parts[0][1] if len(parts) == 1 else _joined(parts, len(events))
        if decoded.wrong:
            self._report(decoded, segment_id, offsets)
        if not decoded.wrong or self._target.options.mode != DROP:
            return decoded
        rows = np.arange(len(events)) if decoded.rows is None else decoded.rows
        readable = np.flatnonzero(~np.isin(rows, list(decoded.wrong)))
        return Decoded(decoded.values.take(pa.array(readable)), rows[readable], decoded.wrong)

    def _report(self, decoded: Decoded, segment_id: int, offsets: Numbers) -> None:
        """Raise or log the error of the first unreadable event."""
        first = min(decoded.wrong)
        offset = int(offsets[first])
        where = f"an event of stream {self._stream}, in segment {segment_id} at offset {offset:,}"
        format_name, why = self._target.options.format, decoded.wrong[first]
        if self._target.options.mode != FAIL:
            _warn(where, format_name, why)
            return
        raise SerializationError(
            f"{where}, can't be read as {format_name}: {why}. With 'value_mode' = {PERMISSIVE} its value is null, "
            f"with {DROP} it is left out"
        )

    def _decoded(self, number: int, events: pa.Array) -> Decoded:
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._decoder(number)
        if isinstance(known, str):
            return Decoded(
                pa.nulls(len(events), plain(self._target.kind)), None, dict.fromkeys(range(len(events)), known)
            )
        skipped = 0 if number == _NONE else HEADER_BYTES
        return known([event[skipped:] for event in events.to_pylist()] if skipped else events.to_pylist())

    def _decoder(self, number: int) -> Decode | str:
        target = self._target
        if number == _NONE:
            if target.definition is not None:
                return "it was written without a schema"
            schemaless = _schemaless(target.options.format)
            return _cached((target.kind, schemaless), lambda: _stored_decoder(target, schemaless))
        try:
            version = self._run(self._schemas.version(number))
            key = (target.kind, target.definition, version.format, version.digest)
            if key in _decoders:
                return _decoders[key]
            definition = self._run(self._schemas.definition(version))
        except UnknownSchemaError:
            return f"its schema {number} doesn't exist in the store"
        if version.format != stored_name(target.options.format):
            return f"it was written as {version.format}"
        return _cached(key, lambda: _stored_decoder(target, definition))


def schema_ids(events: pa.Array) -> Numbers:
    """Return the schema id of each event, _NONE for events without one.

    >>> schema_ids(pa.array([b"{}", MAGIC + bytes([0, 0, 1, 2]) + b"{}", MAGIC], pa.binary())).tolist()
    [-1, 258, -1]
    """
    ids = np.full(len(events), _NONE, np.int64)
    _, offsets, data = events.buffers()
    if len(events) == 0 or data is None:
        return ids
    offsets_ = np.frombuffer(offsets, np.int32)[events.offset : events.offset + len(events) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(offsets_[1:] - offsets_[:-1] >= HEADER_BYTES)
    at = at[content[offsets_[at]] == MAGIC[0]]
    at = at[content[offsets_[at] + 1] == MAGIC[1]]
    start = offsets_[at]
    ids[at] = sum(content[start + 2 + byte].astype(np.int64) << (8 * (3 - byte)) for byte in range(4))
    return ids


def _joined(parts: Sequence[tuple[Numbers | None, Decoded]], count: int) -> Decoded:
    rows = []
    wrong: dict[int, str] = {}
    for indices, decoded in parts:
        assert indices is not None
        rows.append(indices if decoded.rows is None else indices[decoded.rows])
        wrong |= {int(indices[number]): why for number, why in decoded.wrong.items()}
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows, kind="stable")
    values = pa.concat_arrays([decoded.values for _, decoded in parts]).take(pa.array(order))
    is_one_each = all(decoded.rows is None for _, decoded in parts)
    return Decoded(values, None if is_one_each else all_rows[order], wrong)


def _cached(key: tuple[object, ...], make: Callable[[], Decode | str]) -> Decode | str:
    decoder = _decoders.get(key)
    if decoder is None:
        decoder = make()
        while len(_decoders) >= SCHEMA_CACHE_DECODERS:
            del _decoders[next(iter(_decoders))]
        _decoders[key] = decoder
    return decoder


def _stored_decoder(target: ReadTarget, written: bytes) -> Decode | str:
    """Return the decoder for events of a stored definition, or the reason why it is unreadable."""
    format_, expected = format_of(target.options.format), target.definition
    problems = [] if expected is None or expected == written else format_.incompatibilities(expected, written)
    if problems:
        return f"the reader's schema can't read its schema: {problems[0]}"
    return format_.decoder(target.kind, expected or written, written)


def _schemaless(encoding: str) -> bytes:
    return json.dumps({"encoding": encoding, "schema": {}}).encode()


# --- values to events ---------------------------------------------------------------------------------


def check_column(given: pa.DataType, target: ReadTarget, name: str) -> None:
    """Raise InvalidArgumentError if a column of that type can't be written to the column `name`."""
    problem = _problem(given, target.kind, name)
    if problem is not None:
        raise InvalidArgumentError(
            f"the column {name!r} doesn't fit version {target.schema_id} of the stream's schema: {problem}"
        )


def _problem(given: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    types, expected = pa.types, plain(kind)
    if types.is_struct(kind):
        if not types.is_struct(given):
            return f"{path} is {given}, but must be a struct"
        fields = {field.name: field.type for field in given}
        names = [field.name for field in kind]
        for extra in fields.keys() - set(names):
            return f"{path}.{extra} is not a field of the schema, which has {', '.join(names)}"
        for field in kind:
            if field.name not in fields:
                if not field.nullable:
                    return f"{path}.{field.name} is required but missing"
                continue
            problem = _problem(fields[field.name], field.type, f"{path}.{field.name}")
            if problem is not None:
                return problem
        return None
    if types.is_list(kind) and (types.is_list(given) or types.is_large_list(given)):
        return _problem(given.value_type, kind.value_type, f"{path}.element")
    if types.is_map(kind) and types.is_map(given):
        return _problem(given.key_type, kind.key_type, f"{path}.key") or _problem(
            given.item_type, kind.item_type, f"{path}.value"
        )
    if plain(given) == expected:
        return None
    text = " (the text of its JSON)" if is_json(kind) else ""
    return f"{path} is {plain(given)}, but must be {expected}{text}: cast it"


def encoder(target: ReadTarget) -> Callable[[pa.Array], list[bytes]]:
    """Return a function that encodes values with all fields of the target, naming its schema if it is a stored one.
    SerializationError for a value that doesn't fit the schema."""
    name, header = target.options.format, b""
    if target.schema_id is not None:
        header = MAGIC + target.schema_id.to_bytes(HEADER_BYTES - len(MAGIC), "big")
    encode = format_of(name).encoder(target.kind, target.definition or _schemaless(name))

    def encoded(values: pa.Array) -> list[bytes]:
        try:
            check_taken(values)
            return [header + event for event in encode(values)]
        except (SerializationError, *MISFITS) as error:
            raise SerializationError(f"a row can't be written as {name}: {reason(error)}") from error

    return encoded
