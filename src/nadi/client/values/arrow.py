"""Arrow: an event is a record batch, and each of its rows a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from nadi.client.serializers.arrow import Arrow, check_batch, has_free_values, resolved, schema_of
from nadi.client.serializers.arrow_columns import cast, plain
from nadi.client.values.columns import MISFITS, Decoded, check_taken, told


def type_of(definition: bytes) -> pa.DataType:
    return pa.struct(list(schema_of(definition)))


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    return Arrow(schema_of(reader)).incompatibilities(reader, writer)


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    """What reads events of the writer's definition into the reader's."""
    written, wanted, made = schema_of(writer), schema_of(reader), plain(kind)
    has_free = has_free_values(pa.struct(list(written)))

    def rows(batches: Sequence[pa.RecordBatch]) -> pa.Array:
        """All rows; what lies within the batches is looked at, for a wrong offset would be followed."""
        whole = pa.Table.from_batches(batches, written).combine_chunks().to_batches()
        if not whole:
            return pa.nulls(0, made)
        whole[0].validate(full=True)
        values = cast(resolved(whole[0], wanted).to_struct_array(), made)
        check_taken(values)
        return values

    def decode(events: Sequence[bytes]) -> Decoded:
        batches: list[pa.RecordBatch | None] = []
        wrong: dict[int, str] = {}
        for number, event in enumerate(events):
            try:
                check_batch(event, has_free=has_free)
                batch = pa.ipc.read_record_batch(pa.py_buffer(event), written)
                batch.validate()
            except (*MISFITS, OSError, EOFError) as error:
                wrong[number] = f"it is no Arrow record batch: {told(error)}"
                batch = None
            batches.append(batch)
        try:
            values = [rows([batch for batch in batches if batch is not None])]
            if wrong:
                values = _each(batches, rows, made, wrong)
        except MISFITS:
            values = _each(batches, rows, made, wrong)
        lengths = [1 if batch is None or number in wrong else len(batch) for number, batch in enumerate(batches)]
        return Decoded(pa.concat_arrays(values), np.repeat(np.arange(len(events)), lengths), wrong)

    return decode


def _each(
    batches: Sequence[pa.RecordBatch | None],
    rows: Callable[[Sequence[pa.RecordBatch]], pa.Array],
    made: pa.DataType,
    wrong: dict[int, str],
) -> list[pa.Array]:
    """The values of one event after the other; what is wrong with more of them is added."""
    found = []
    for number, batch in enumerate(batches):
        values = pa.nulls(1, made)
        if batch is not None:
            try:
                values = rows([batch])
            except MISFITS as error:
                wrong[number] = told(error)
        found.append(values)
    return found


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    serializer = Arrow(schema_of(definition))

    def encode(values: pa.Array) -> list[bytes]:
        batch = resolved(pa.RecordBatch.from_struct_array(values), serializer.schema)
        return [serializer.serialize(batch.slice(row, 1)) for row in range(len(batch))]

    return encode
