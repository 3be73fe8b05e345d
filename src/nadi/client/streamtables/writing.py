"""Write rows into a stream from any source of Arrow's C stream: one event per row, with its table's routing key.

With a name, rows are numbered. A number is the row's index and a checksum of all rows up to it; so a repeated call sees
from each segment's last number of that name whether its rows are the same.
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

_CHECKSUM_BITS = 23  # of 63 bits of a number; 40 are for the index


class ArrowRows(Protocol):
    """A table or data frame of PyArrow, Polars, pandas, DuckDB or any library with Arrow's protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@checking
def write_rows(manager: StreamManager, scope: str, name: str, rows: ArrowRows, *, once: str | None = None) -> int:
    """Write rows into the stream of a stream table, each as an event with its key; return their number.

    They are written in one transaction, so all or none. InvalidArgumentError for more than 256 MiB; nothing is written
    then.

    once: a name of these rows, under which the call may be repeated after any failure; each row is written exactly
    once. The rows have to be the same in the same order, or ConflictError is raised; rows after those already written
    continue them. They are written gradually instead of all at once, and without a size limit.
    """
    table = stream_table(manager, scope, name)
    if not hasattr(rows, "__arrow_c_stream__"):
        raise InvalidArgumentError(
            f"rows are a {type(rows).__name__}, which lacks Arrow's protocol: pass a table or a data frame, for "
            "example from pyarrow.Table.from_pylist"
        )
    if once == "":
        raise InvalidArgumentError("once is empty: give the rows a name")
    try:
        reader = pa.RecordBatchReader.from_stream(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:  # raised by data frames for untyped columns
        raise InvalidArgumentError(f"the rows can't be converted to Arrow: {reason(error)}") from error
    batches = _events(RowEncoder(table.definition, table.target, reader.schema), reader)
    stream = table.definition.stream
    if once is None:
        return _write_transaction(manager, scope, stream, batches)
    thread, core = inside(manager)
    stores = stores_of(core)
    writer_id = hashlib.blake2b(f"{scope}/{stream}/{once}".encode(), digest_size=16, person=b"nadi write_rows").digest()
    writer = IdempotentWriter(StreamShape(stores, scope, stream), writer_id)
    try:
        return _write_numbered(thread, writer, once, batches)
    finally:
        thread.result(writer.close)


def _events(encode: RowEncoder, reader: pa.RecordBatchReader) -> Iterator[EncodedRows]:
    first = 0
    for batch in reader:
        for low in range(0, batch.num_rows, STREAM_TABLE_BATCH_ROWS):
            yield encode.of(batch.slice(low, STREAM_TABLE_BATCH_ROWS), first + low)
        first += batch.num_rows


def _write_transaction(manager: StreamManager, scope: str, stream: str, batches: Iterator[EncodedRows]) -> int:
    count = size = 0
    with manager.create_transaction_writer(scope, stream) as writer, writer.begin_txn() as txn:
        for batch in batches:
            count += len(batch.events)
            size += sum(map(len, batch.events))
            if size > STREAM_TABLE_TXN_BYTES:
                raise InvalidArgumentError(
                    f"the rows exceed {STREAM_TABLE_TXN_BYTES:,} bytes, the limit of one transaction: give them a "
                    "name, such as once='import of monday', to write them gradually, each exactly once"
                )
            txn.write_batch(list(batch.events), batch.keys)
        txn.commit(wait=True)
    return count


def _write_numbered(thread: LoopThread, writer: IdempotentWriter, once: str, batches: Iterator[EncodedRows]) -> int:
    count = checksum = 0
    stored = {number >> _CHECKSUM_BITS: number for number in thread.run(writer.last_numbers())}
    for batch in batches:
        numbered = []
        for index, (event, key, text) in enumerate(zip(batch.events, batch.keys, batch.texts(), strict=True), count):
            checksum = zlib.crc32(text, checksum)
            number = index << _CHECKSUM_BITS | checksum >> 32 - _CHECKSUM_BITS
            if stored.pop(index, number) != number:
                raise _conflict(once)
            position = key_position(key if key is not None else f"{once}/{index}")
            numbered.append(NumberedEvent(number, position, event))
        thread.run(writer.write(numbered))
        count += len(numbered)
    if stored:  # an earlier call wrote more rows
        raise _conflict(once)
    return count


def _conflict(once: str) -> ConflictError:
    return ConflictError(
        f"different rows were written under the name {once[:60]!r} before: use a new name for these rows, or repeat "
        "the call with the original ones"
    )
