"""What is read of pieces, and whatever has batches of it to offer as Arrow's C stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from nadi.client.reading.damage import OnDamage
from nadi.client.scan.connection import Client
from nadi.client.scan.pieces import Piece
from nadi.client.scan.rows import Server, arrow_schema, read_rows
from nadi.client.scan.unnested import unnested, unnested_schema
from nadi.client.values.options import Target


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
        found = read_rows(self, client, pieces, Server(self, client))
        return (unnested(batch, self.schema) for batch in found) if self.is_unnested else found


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
