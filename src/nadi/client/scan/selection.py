"""What is read of pieces, and whatever has batches of it to offer as Arrow's C stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.reading.damage import OnDamage
from nadi.client.scan.connection import Client
from nadi.client.scan.pieces import Piece
from nadi.client.scan.rows import Server, arrow_schema, read_rows
from nadi.client.segments.info import what_became_of
from nadi.client.values.options import Target
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.model.event import EventBlock
from nadi.naming import VALUE


def unnested_schema(made: pa.Schema) -> pa.Schema:
    """The columns with the fields in place of the value. InvalidArgumentError where there are none, or where two
    columns had one name.

    >>> unnested_schema(pa.schema({"value": pa.struct({"wh": pa.int64()}), "offset": pa.int64()})).names
    ['wh', 'offset']
    """
    value = made.field(VALUE)
    if not pa.types.is_struct(value.type):
        raise InvalidArgumentError(f"unnest has no effect on values that are {value.type}, and have no fields")
    fields: list[pa.Field] = []
    for column in made:
        fields += list(value.type) if column.name == VALUE else [column]
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"the values have a field {twice!r}, as is a column called: leave that out of columns, or don't unnest"
        )
    return pa.schema(fields)


def unnested(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with those columns; where a value is null, its fields are."""
    columns: list[pa.Array] = []
    for name in batch.schema.names:
        column = batch.column(name)
        columns += column.flatten() if name == VALUE else [column]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Rows:
    """What is read of pieces, as `pieces.Wanted` has it; and whether the fields of values are columns of their own."""

    scope: str
    columns: tuple[str, ...]
    event_time_unit: str
    target: Target | None
    on_damage: OnDamage
    is_unnested: bool

    @property
    def schema(self) -> pa.Schema:
        made = arrow_schema(self)
        return unnested_schema(made) if self.is_unnested else made

    def batches(self, client: Client, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        with why_missing(client):
            for batch in read_rows(self, client, pieces, Server(self, client)):
                yield unnested(batch, self.schema) if self.is_unnested else batch

    def blocks(self, client: Client, pieces: Iterable[Piece]) -> Iterator[tuple[int, EventBlock]]:
        """Segments and blocks of the events themselves, one piece after the other."""
        source = Server(self, client)
        with why_missing(client):
            for piece in pieces:
                for block in client.thread.each(source.blocks(piece)):
                    yield piece.segment_id, block


@contextmanager
def why_missing(client: Client) -> Iterator[None]:
    """What became of a segment that its store doesn't have: it was truncated away, or deleted with its stream."""
    try:
        yield
    except SegmentNotFoundError as error:
        raise client.run(what_became_of(stores_of(client.manager), error.segment)) from None


class Readable:
    """What has batches: read anew each time that one asks for them."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, a batch at a time: each segment's in order, and each key's."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)
