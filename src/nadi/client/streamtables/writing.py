"""Rows into a stream: whatever offers Arrow's C stream, each row an event under the key of its table.

Rows with a name are numbered. A number is the row's place, and a checksum of all rows up to there: so whoever begins
them again sees, by the last numbers that segments have of the name, whether they are the same.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.arguments import checking
from nadi.client.control.loop_thread import LoopThread
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.client.serializers.columns import reason
from nadi.client.streamtables.encoded import EncodedRows, RowEncoder
from nadi.client.streamtables.table import stream_table
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.limits import STREAM_TABLE_BATCH_ROWS, STREAM_TABLE_TXN_BYTES
from nadi.model.keyspace import key_position

_CHECKSUM_BITS = 23  # of a number of 63: 40 are left for places


class ArrowRows(Protocol):
    """A table or data frame, of PyArrow, Polars, pandas, DuckDB or whatever else speaks Arrow's protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@checking
def write_rows(manager: StreamManager, scope: str, name: str, rows: ArrowRows, *, once: str | None = None) -> int:
    """Write rows into the stream of a stream table, each as an event under its key; return how many.

    They are all in the stream then, or none is: it is one transaction. Of more than 256 MiB InvalidArgumentError is
    raised, and none is written.

    once: a name for these rows, by which they may be written again, whatever became of the first try: each is in the
    stream once then. They have to be the same in the same order, or ConflictError is raised; what comes behind those
    that were written is taken for their rest. They come by and by, not all at once, in any number.
    """
    table = stream_table(manager, scope, name)
    if not hasattr(rows, "__arrow_c_stream__"):
        raise InvalidArgumentError(
            f"rows are a table or a data frame that speaks Arrow's protocol, not {type(rows).__name__}: "
            "pyarrow.Table.from_pylist makes one of dictionaries"
        )
    if once == "":
        raise InvalidArgumentError("once is a name for the rows, a text that isn't empty")
    try:
        reader = pa.RecordBatchReader.from_stream(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:  # what a data frame raises for a column without a type
        raise InvalidArgumentError(f"the rows have no form in Arrow: {reason(error)}") from error
    found = _events(RowEncoder(table.definition, table.target, reader.schema), reader)
    stream = table.definition.stream
    if once is None:
        return _together(manager, scope, stream, found)
    thread, core = inside(manager)
    stores = stores_of(core)
    writer_id = hashlib.blake2b(f"{scope}/{stream}/{once}".encode(), digest_size=16, person=b"nadi write_rows").digest()
    writer = IdempotentWriter(StreamShape(stores, scope, stream), writer_id)
    try:
        return _numbered(thread, writer, once, found)
    finally:
        thread.result(writer.close)


def _events(encode: RowEncoder, reader: pa.RecordBatchReader) -> Iterator[EncodedRows]:
    first = 0
    for batch in reader:
        for low in range(0, batch.num_rows, STREAM_TABLE_BATCH_ROWS):
            yield encode.of(batch.slice(low, STREAM_TABLE_BATCH_ROWS), first + low)
        first += batch.num_rows


def _together(manager: StreamManager, scope: str, stream: str, found: Iterator[EncodedRows]) -> int:
    count = size = 0
    with manager.create_transaction_writer(scope, stream) as writer, writer.begin_txn() as txn:
        for made in found:
            count += len(made.events)
            size += sum(map(len, made.events))
            if size > STREAM_TABLE_TXN_BYTES:
                raise InvalidArgumentError(
                    f"the rows are more than {STREAM_TABLE_TXN_BYTES:,} bytes, the most that one transaction gets: "
                    "name them, as once='import of monday', and they are written by and by, each once"
                )
            txn.write_batch(list(made.events), made.keys)
        txn.commit(wait=True)
    return count


def _numbered(thread: LoopThread, writer: IdempotentWriter, once: str, found: Iterator[EncodedRows]) -> int:
    count = checksum = 0
    stored = {number >> _CHECKSUM_BITS: number for number in thread.run(writer.last_numbers())}
    for made in found:
        numbered = []
        for place, (event, key, text) in enumerate(zip(made.events, made.keys, made.texts(), strict=True), count):
            checksum = zlib.crc32(text, checksum)
            number = place << _CHECKSUM_BITS | checksum >> 32 - _CHECKSUM_BITS
            if stored.pop(place, number) != number:
                raise _others(once)
            position = key_position(key if key is not None else f"{once}/{place}")
            numbered.append(NumberedEvent(number, position, event))
        thread.run(writer.write(numbered))
        count += len(numbered)
    if stored:  # more rows than these
        raise _others(once)
    return count


def _others(once: str) -> ConflictError:
    return ConflictError(
        f"other rows were written under the name {once[:60]!r} before: give these a name of their own, or write those "
        "again that it stands for"
    )
