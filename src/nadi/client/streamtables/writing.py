"""Rows into a stream: whatever offers Arrow's C stream, each row an event under the key of its table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.loop_thread import LoopThread
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.client.streamtables.encoded import RowEncoder
from nadi.client.streamtables.table import stream_table
from nadi.errors import InvalidArgumentError
from nadi.limits import STREAM_TABLE_BATCH_ROWS, STREAM_TABLE_TXN_BYTES
from nadi.model.keyspace import key_position


class Rows(Protocol):
    """A table or data frame, of PyArrow, Polars, pandas, DuckDB or whatever else speaks Arrow's protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def write_rows(manager: StreamManager, scope: str, name: str, rows: Rows, *, once: str | None = None) -> int:
    """Write rows into the stream of a stream table, each as an event under its key; return how many.

    They are all in the stream then, or none is: it is one transaction. Of more than 256 MiB InvalidArgumentError is
    raised, and none is written.

    once: a name for these rows, by which they may be written again, whatever became of the first try: each is in the
    stream once then. They have to be the same in the same order. They come by and by, not all at once, in any number.
    """
    table = stream_table(manager, scope, name)
    if not hasattr(rows, "__arrow_c_stream__"):
        raise InvalidArgumentError(
            f"rows are a table or a data frame that speaks Arrow's protocol, not {type(rows).__name__}: "
            "pyarrow.Table.from_pylist makes one of dictionaries"
        )
    if once == "":
        raise InvalidArgumentError("`once` is a name for the rows: it can't be empty")
    reader = pa.RecordBatchReader.from_stream(rows)
    found = _Events(RowEncoder(table.definition, table.target, reader.schema), reader)
    stream = table.definition.stream
    if once is None:
        return _together(manager, scope, stream, found)
    thread, core = inside(manager)
    stores = stores_of(core)
    writer_id = hashlib.blake2b(f"{scope}/{stream}/{once}".encode(), digest_size=16, person=b"nadi write_rows").digest()
    writer = NumberedWriter(StreamShape(stores, scope, stream), writer_id)
    try:
        return _numbered(thread, writer, once, found)
    finally:
        thread.result(writer.close)


class _Events:
    """Those of the rows, some at a time."""

    def __init__(self, encode: RowEncoder, reader: pa.RecordBatchReader) -> None:
        self._encode, self._reader = encode, reader

    def __iter__(self) -> Iterator[tuple[list[bytes], list[str | None]]]:
        for batch in self._reader:
            for low in range(0, batch.num_rows, STREAM_TABLE_BATCH_ROWS):
                events, keys = self._encode.of(batch.slice(low, STREAM_TABLE_BATCH_ROWS))
                yield list(events), keys


def _together(manager: StreamManager, scope: str, stream: str, found: _Events) -> int:
    count = size = 0
    with manager.create_transaction_writer(scope, stream) as writer, writer.begin_txn() as txn:
        for events, keys in found:
            count += len(events)
            size += sum(map(len, events))
            if size > STREAM_TABLE_TXN_BYTES:
                raise InvalidArgumentError(
                    f"the rows are more than {STREAM_TABLE_TXN_BYTES:,} bytes, the most that one transaction gets: "
                    "name them, as once='import of monday', and they are written by and by, each once"
                )
            txn.write_batch(events, keys)
        txn.commit(wait=True)
    return count


def _numbered(thread: LoopThread, writer: NumberedWriter, once: str, found: _Events) -> int:
    count = 0
    for events, keys in found:
        numbered = [
            NumberedEvent(number, key_position(key if key is not None else f"{once}/{number}"), event)
            for number, (event, key) in enumerate(zip(events, keys, strict=True), count)
        ]
        thread.run(writer.write(numbered))
        count += len(events)
    return count
