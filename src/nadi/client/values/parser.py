"""Events to values and back, in the tasks: a batch of events at once, each under the schema that it names.

What is made to read a schema's events is kept in the process, by what the schemas are, so that it never goes stale;
which schema a number stands for is asked anew by each task. What is wrong with the columns of rows to write is an error
when the write is planned; what only shows in a row fails its task.
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
_warn = SeldomWarning(log, "%d batches had events that can't be read: %s, can't be read as %s: %s")
_NONE = -1  # of events that name no schema
_decoders: dict[tuple[object, ...], Decode | str] = {}  # or what keeps the schema from being read


class Parse(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class ValueParser:
    """Reads the events of one stream's segments, within one task. stream: its name with its scope."""

    def __init__(self, schemas: SchemaGroup, run: Parse, stream: str, target: ReadTarget) -> None:
        self._schemas, self._run, self._stream, self._target = schemas, run, stream, target
        self._known: dict[int, Decode | str] = {}

    def parse(self, events: pa.Array, segment_id: int, offsets: Numbers) -> Decoded:
        """Return the values of a segment's events, with DROPMALFORMED of those alone that can be read;
        SerializationError for one that can't be, with FAILFAST."""
        ids = schema_ids(events)
        distinct = np.unique(ids).tolist()
        parts: list[tuple[Numbers | None, Decoded]] = []
        for number in distinct:
            mine = None if len(distinct) == 1 else np.flatnonzero(ids == number)
            some = events if mine is None else events.take(pa.array(mine))
            parts.append((mine, self._decoded(number, some)))
        whole = parts[0][1] if len(parts) == 1 else _joined(parts, len(events))
        if whole.wrong:
            self._tell(whole, segment_id, offsets)
        if not whole.wrong or self._target.options.mode != DROP:
            return whole
        rows = np.arange(len(events)) if whole.rows is None else whole.rows
        kept = np.flatnonzero(~np.isin(rows, list(whole.wrong)))
        return Decoded(whole.values.take(pa.array(kept)), rows[kept], whole.wrong)

    def _tell(self, decoded: Decoded, segment_id: int, offsets: Numbers) -> None:
        """Raise or log what is wrong with the first of the events."""
        first = min(decoded.wrong)
        offset = int(offsets[first])
        where = f"an event of stream {self._stream}, in segment {segment_id} at offset {offset:,}"
        read, why = self._target.options.format, decoded.wrong[first]
        if self._target.options.mode != FAIL:
            _warn(where, read, why)
            return
        raise SerializationError(
            f"{where}, can't be read as {read}: {why}. With 'value_mode' = {PERMISSIVE} its value is null, "
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
                return "it names no schema: it was written without one"
            schemaless = _schemaless(target.options.format)
            return _kept((target.kind, schemaless), lambda: _stored_decoder(target, schemaless))
        try:
            version = self._run(self._schemas.version(number))
            key = (target.kind, target.definition, version.format, version.digest)
            if key in _decoders:
                return _decoders[key]
            definition = self._run(self._schemas.definition(version))
        except UnknownSchemaError:
            return f"its schema, {number}, isn't in the store"
        if version.format != stored_name(target.options.format):
            return f"it was written as {version.format}"
        return _kept(key, lambda: _stored_decoder(target, definition))


def schema_ids(events: pa.Array) -> Numbers:
    """The schema that each event names, _NONE where there is none.

    >>> schema_ids(pa.array([b"{}", MAGIC + bytes([0, 0, 1, 2]) + b"{}", MAGIC], pa.binary())).tolist()
    [-1, 258, -1]
    """
    ids = np.full(len(events), _NONE, np.int64)
    _, offsets, data = events.buffers()
    if len(events) == 0 or data is None:
        return ids
    borders = np.frombuffer(offsets, np.int32)[events.offset : events.offset + len(events) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(borders[1:] - borders[:-1] >= HEADER_BYTES)
    at = at[content[borders[at]] == MAGIC[0]]
    at = at[content[borders[at] + 1] == MAGIC[1]]
    start = borders[at]
    ids[at] = sum(content[start + 2 + place].astype(np.int64) << (8 * (3 - place)) for place in range(4))
    return ids


def _joined(parts: Sequence[tuple[Numbers | None, Decoded]], count: int) -> Decoded:
    rows = []
    wrong: dict[int, str] = {}
    for mine, one in parts:
        assert mine is not None
        rows.append(mine if one.rows is None else mine[one.rows])
        wrong |= {int(mine[number]): why for number, why in one.wrong.items()}
    together = np.concatenate(rows)
    order = np.argsort(together, kind="stable")
    values = pa.concat_arrays([one.values for _, one in parts]).take(pa.array(order))
    is_one_each = all(one.rows is None for _, one in parts)
    return Decoded(values, None if is_one_each else together[order], wrong)


def _kept(key: tuple[object, ...], make: Callable[[], Decode | str]) -> Decode | str:
    decoder = _decoders.get(key)
    if decoder is None:
        decoder = make()
        while len(_decoders) >= SCHEMA_CACHE_DECODERS:
            del _decoders[next(iter(_decoders))]
        _decoders[key] = decoder
    return decoder


def _stored_decoder(target: ReadTarget, written: bytes) -> Decode | str:
    """Return what reads events of a stored definition; or what keeps it from being read."""
    format_, wanted = format_of(target.options.format), target.definition
    problems = [] if wanted is None or wanted == written else format_.incompatibilities(wanted, written)
    if problems:
        return f"its schema can't be read with this one: {problems[0]}"
    return format_.decoder(target.kind, wanted or written, written)


def _schemaless(encoding: str) -> bytes:
    return json.dumps({"encoding": encoding, "schema": {}}).encode()


# --- values to events ---------------------------------------------------------------------------------


def check_column(given: pa.DataType, target: ReadTarget, name: str) -> None:
    """InvalidArgumentError unless a column of that type can be written. name: the column's."""
    problem = _problem(given, target.kind, name)
    if problem is not None:
        raise InvalidArgumentError(
            f"the column {name!r} isn't what version {target.schema_id} of the stream's schema says: {problem}"
        )


def _problem(given: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    types, wanted = pa.types, plain(kind)
    if types.is_struct(kind):
        if not types.is_struct(given):
            return f"{path} must be a struct, and is {given}"
        there = {field.name: field.type for field in given}
        names = [field.name for field in kind]
        for extra in there.keys() - set(names):
            return f"there is no field {path}.{extra}, but {', '.join(names)}"
        for field in kind:
            if field.name not in there:
                if not field.nullable:
                    return f"{path}.{field.name} is missing"
                continue
            problem = _problem(there[field.name], field.type, f"{path}.{field.name}")
            if problem is not None:
                return problem
        return None
    if types.is_list(kind) and (types.is_list(given) or types.is_large_list(given)):
        return _problem(given.value_type, kind.value_type, f"{path}.element")
    if types.is_map(kind) and types.is_map(given):
        return _problem(given.key_type, kind.key_type, f"{path}.key") or _problem(
            given.item_type, kind.item_type, f"{path}.value"
        )
    if plain(given) == wanted:
        return None
    text = " (the text of its JSON)" if is_json(kind) else ""
    return f"{path} is {plain(given)}, and must be {wanted}{text}: cast it"


def encoder(target: ReadTarget) -> Callable[[pa.Array], list[bytes]]:
    """Return what makes an event of each value, which has all fields of the target's; they name no schema if the target
    has none in the store. SerializationError for a value that the schema doesn't take."""
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
